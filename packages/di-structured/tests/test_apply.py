"""Masks on logits: any dtype, padding, slack bits, chosen rows."""

import numpy as np
import pytest
import torch

from di_structured import apply_token_mask


def expected(logits, masks, vocab_size, rows):
    out = logits.clone()
    for mask, row in zip(masks, rows, strict=True):
        for column in range(logits.shape[1]):
            allowed = column < vocab_size and (int(mask[column // 32]) >> (column % 32)) & 1
            if not allowed:
                out[row, column] = -torch.inf
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "vocab_size"), [(64, 64), (70, 50), (40, 40), (100, 64)])
def test_forbidden_and_padding_columns_become_minus_infinity(dtype, width, vocab_size):
    rng = np.random.default_rng(5)
    words = -(-vocab_size // 32)
    masks = rng.integers(-(2**31), 2**31, (3, words), dtype=np.int64).astype(np.int32)
    logits = torch.randn(6, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = [4, 0, 3]
    want = expected(logits, masks, vocab_size, rows)
    same = apply_token_mask(logits, masks, vocab_size=vocab_size, rows=rows)
    assert same is logits
    assert torch.equal(logits, want)


def test_slack_bits_do_not_matter():
    logits = torch.zeros(1, 40)
    for slack in (0, -1 << 8):
        got = apply_token_mask(logits.clone(), np.array([[5, slack]], np.int32), vocab_size=40)
        want = apply_token_mask(logits.clone(), np.array([[5, 0]], np.int32), vocab_size=40)
        assert torch.equal(got, want)


def test_no_masks_leave_the_logits_alone():
    logits = torch.ones(2, 40)
    apply_token_mask(logits, np.zeros((0, 2), np.int32), rows=[])
    assert torch.equal(logits, torch.ones(2, 40))


@pytest.mark.parametrize(
    ("logits", "masks", "options", "message"),
    [
        (torch.zeros(2, 40), np.zeros((1, 2), np.int64), {}, "`masks` must be int32"),
        (torch.zeros(2, 40, dtype=torch.int32), np.zeros((1, 2), np.int32), {}, "floating"),
        (torch.zeros(2, 40), np.zeros((1, 2), np.int32), {"rows": [2]}, "different rows"),
        (torch.zeros(2, 40), np.zeros((2, 2), np.int32), {"rows": [1, 1]}, "different rows"),
        (torch.zeros(2, 40), np.zeros((3, 2), np.int32), {}, "different rows"),
        (torch.zeros(2, 40), np.zeros((1, 1), np.int32), {"vocab_size": 40}, "from 1 to 32"),
        (torch.zeros(2, 40), np.zeros((1, 2), np.int32), {"rows": []}, "0 entries for 1 masks"),
    ],
)
def test_what_does_not_fit_is_refused(logits, masks, options, message):
    with pytest.raises(ValueError, match=message):
        apply_token_mask(logits, masks, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_device_gives_what_the_cpu_gives(dtype):
    rng = np.random.default_rng(6)
    masks = rng.integers(-(2**31), 2**31, (5, 4040), dtype=np.int64).astype(np.int32)
    logits = torch.randn(9, 129_300, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = [8, 1, 2, 6, 0]
    on_device = logits.cuda()
    apply_token_mask(on_device, masks, rows=rows)
    assert torch.equal(on_device.cpu(), apply_token_mask(logits, masks, rows=rows))
