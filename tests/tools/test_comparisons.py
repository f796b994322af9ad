"""What the comparisons with other libraries compute themselves; their times need a GPU."""

import argparse

import pytest
import torch

from compare_experts import ALL_EXPERTS, all_counts
from compare_tilekernels import difference
from di_kernels.cases.case import Source
from tilekernels_ops import COPIES, EPS, HIDDEN, NORM_EPS, Streams


def test_a_difference_is_the_largest_of_all_results():
    x, codes = torch.tensor([3.0, 4.0]), torch.tensor([1, 2, 3, 4])
    assert difference((x, codes), (x, codes.int())) == 0
    assert difference((x, codes), (x + torch.tensor([0.0, 0.5]), codes)) == pytest.approx(0.1)
    assert difference((x, codes), (x, codes + (codes == 2))) == 0.25


def test_codes_of_one_byte_differ_by_their_bytes():
    packed = torch.tensor([0x17, 0x80, 0x00, 0x7F], dtype=torch.uint8)
    assert difference((packed,), (packed.view(torch.int8),)) == 0
    zeros = packed.view(torch.float8_e4m3fn).clone()
    zeros[1] = 0.0
    assert difference((packed.view(torch.float8_e4m3fn),), (zeros,)) == 0.25


def test_the_product_given_to_the_other_library_makes_our_mixes():
    streams = Streams(Source(torch.device("cpu"), torch.bfloat16, False, torch.Generator()), 3)
    product, squares = streams.product(streams.x)
    mean = squares[0].unsqueeze(1) / (COPIES * HIDDEN)
    gates = product[0, :, :COPIES] * torch.rsqrt(mean + NORM_EPS) * streams.scale[0]
    expected = torch.sigmoid(gates + streams.base[:COPIES]) + EPS
    torch.testing.assert_close(streams.our_mixes().pre, expected)


def test_ragged_rows_are_those_of_the_first_experts():
    args = argparse.Namespace(rows=[2], ragged=[64, 64])
    equal, ragged, again = all_counts(args, 48)
    assert equal == (2, [2] * 48)
    assert ragged == again
    assert len(ragged[1]) == 48
    (whole,) = all_counts(argparse.Namespace(rows=[], ragged=[64]), ALL_EXPERTS)
    assert sum(whole[1]) == 64 * 6
    assert whole[1][:48] == ragged[1]
