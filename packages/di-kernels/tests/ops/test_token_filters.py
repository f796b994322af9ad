import math

import pytest
import torch

from di_kernels import ops
from di_kernels.masses import pack_bits, unpack_bits


def column(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def kept(logits, temperature=1.0, **filters):
    """Tokens that survive in one row."""
    bits = ops.filter_tokens(logits.unsqueeze(0), column(temperature), **filters)
    return unpack_bits(bits, len(logits))[0].nonzero().flatten().tolist()


LOGITS = torch.tensor([0.1, 0.4, 0.4, 0.06, 0.04]).log()


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_top_k_takes_the_lower_ids_of_equal_logits(k):
    assert kept(LOGITS, top_k=column(k, dtype=torch.int64)) == sorted([1, 2, 0, 3, 4][:k])


@pytest.mark.parametrize(
    ("top_p", "count"), [(1e-9, 1), (0.39, 1), (0.41, 2), (0.79, 2), (0.81, 3), (0.95, 4), (1, 5)]
)
def test_top_p_keeps_a_token_while_the_mass_before_it_does_not_exceed(top_p, count):
    assert kept(LOGITS, top_p=column(top_p)) == sorted([1, 2, 0, 3, 4][:count])


def test_min_p_is_relative_to_the_most_likely():
    assert kept(LOGITS, min_p=column(0.2)) == [0, 1, 2]
    assert kept(LOGITS, min_p=column(1.0)) == [1, 2]
    assert kept(LOGITS, 2.0, min_p=column(0.2)) == [0, 1, 2, 3, 4]


def test_filters_take_masses_of_the_whole_row_and_commute():
    both = kept(LOGITS, top_k=column(2, dtype=torch.int64), top_p=column(0.45))
    assert both == [1, 2]
    assert kept(LOGITS, top_k=column(1, dtype=torch.int64), top_p=column(0.45)) == [1]


def test_rows_without_a_law_keep_their_mask():
    logits = torch.randn(6, 70)
    logits[2, 3], logits[3, 4], logits[4] = torch.nan, torch.inf, -torch.inf
    mask = torch.randint(-(2**31), 2**31, (6, 3)).to(torch.int32)
    mask[5] = 0
    top_k = column(3, -1, 3, 3, 3, 3, dtype=torch.int64)
    temperature = column(0, 1, 1, 1, 1, 1)
    bits = ops.filter_tokens(logits, temperature, top_k=top_k, mask_bits=mask)
    assert torch.equal(unpack_bits(bits, 70), unpack_bits(mask, 70))
    assert bits[:, 2].max() < 1 << 6
    assert bits[:, 2].min() >= 0


def test_a_row_has_its_tokens_alone_and_among_others():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 300, generator=generator).round()
    temperature = torch.linspace(0, 3, 7, dtype=torch.float64)
    top_k, top_p = torch.arange(0, 70, 10), torch.linspace(0.3, 1, 7, dtype=torch.float64)
    whole = ops.filter_tokens(logits, temperature, top_k=top_k, top_p=top_p)
    for row in range(7):
        only = slice(row, row + 1)
        alone = ops.filter_tokens(
            logits[only], temperature[only], top_k=top_k[only], top_p=top_p[only]
        )
        assert torch.equal(alone, whole[only])


def test_tiny_temperatures_leave_the_largest():
    assert kept(LOGITS, 1e-320, top_p=column(0.999)) == [1, 2]
    assert kept(LOGITS, 1e-320, min_p=column(5e-324)) == [1, 2]


def test_bits_come_back():
    flags = torch.rand(3, 77) < 0.5
    assert torch.equal(unpack_bits(pack_bits(flags), 77), flags)


def test_wrong_arguments_are_named():
    logits = torch.randn(2, 8)
    with pytest.raises(TypeError, match="invalid dtype of `top_k`"):
        ops.filter_tokens(logits, column(1, 1), top_k=column(1, 1))
    with pytest.raises(ValueError, match="invalid shape of `min_p`: expected"):
        ops.filter_tokens(logits, column(1, 1), min_p=column(1))


def test_log_probs_are_those_of_what_the_filters_leave():
    bits = ops.filter_tokens(LOGITS[None], column(1.0), top_p=column(0.81))
    got = ops.log_probs(LOGITS[None], column(3, dtype=torch.int64), num_top=4, mask_bits=bits)
    assert got.chosen.tolist() == [-math.inf]
    assert got.top_token_ids.tolist() == [[1, 2, 0, -1]]
    want = torch.tensor([[0.4 / 0.9, 0.4 / 0.9, 0.1 / 0.9, 0]]).log()
    torch.testing.assert_close(got.top, want)
