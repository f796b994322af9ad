import pytest
import torch

from di_kernels import ops
from di_kernels.masses import IS_INFINITE, IS_NAN, NOTHING_ALLOWED
from di_kernels.ops.sampling import random_words

# Philox4x32-10 of the counter (0, 0, low and high word of the number) under the seed as key.
GOLDEN_WORDS = {
    (0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (42, 21): (0xE0020480, 0xBEDB05BB, 0xEE570C01, 0x371038E8),
    (1234567890123456789, 387): (0x73E4F3EA, 0x249CDA26, 0xFFFD4C86, 0x3AE09B77),
}


def of_rows(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(("seed", "position"), list(GOLDEN_WORDS))
def testrandom_words_are_those_of_curand(seed, position):
    words = random_words(of_rows(seed), of_rows(position), 0, 4)
    assert tuple(words[0].tolist()) == GOLDEN_WORDS[seed, position]


def test_temperature_zero_takes_the_first_of_the_largest():
    logits = torch.tensor([[1.0, 3.0, 3.0, -torch.inf], [0.0, -0.0, -1.0, -2.0]])
    drawn = ops.draw_tokens(logits, torch.zeros(2).double(), of_rows(1, 2), of_rows(0, 0))
    assert drawn.token_ids.tolist() == [1, 0]
    assert drawn.status.tolist() == [0, 0]


def test_frequencies_follow_the_softmax():
    logits = torch.tensor([0.1, 0.6, 0.3]).log().expand(20_000, 3)
    rows = torch.arange(20_000)
    drawn = ops.draw_tokens(logits, torch.ones(20_000).double(), rows, rows * 7)
    shares = drawn.token_ids.bincount(minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.6, 0.3]), atol=0.015, rtol=0)


def test_a_row_has_its_token_alone_and_among_others():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 101, generator=generator)
    temperature = torch.linspace(0, 2, 9, dtype=torch.float64)
    seed, position = torch.randint(0, 2**62, (2, 9), generator=generator)
    whole = ops.draw_tokens(logits, temperature, seed, position).token_ids
    for row in range(9):
        only = slice(row, row + 1)
        alone = ops.draw_tokens(logits[only], temperature[only], seed[only], position[only])
        assert alone.token_ids.item() == whole[row]


def test_masks_bind_and_bad_rows_are_reported():
    logits = torch.randn(5, 40)
    logits[1, 3], logits[2, 3], logits[3] = torch.nan, torch.inf, -torch.inf
    mask = torch.zeros(5, 2, dtype=torch.int32)
    mask[:4, 1] = 1 << 5
    drawn = ops.draw_tokens(
        logits, torch.ones(5).double(), torch.arange(5), torch.arange(5), mask_bits=mask
    )
    assert drawn.token_ids.tolist() == [37, -1, -1, -1, -1]
    assert drawn.status.tolist() == [0, IS_NAN, IS_INFINITE, NOTHING_ALLOWED, NOTHING_ALLOWED]


def test_wrong_arguments_are_named():
    logits, good = torch.randn(2, 8), (torch.ones(2).double(), of_rows(0, 1), of_rows(0, 1))
    with pytest.raises(TypeError, match="invalid dtype of `temperature`"):
        ops.draw_tokens(logits, torch.ones(2), *good[1:])
    with pytest.raises(ValueError, match="invalid shape of `mask_bits`: expected"):
        ops.draw_tokens(logits, *good, mask_bits=torch.zeros(2, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="expected `stream` below 256"):
        ops.draw_tokens(logits, *good, stream=256)
