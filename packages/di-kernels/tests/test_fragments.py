"""Fragment order: exact inverse, the documented places, refusals."""

import pytest
import torch

from di_kernels import MXFP4Weight, MXFP8Weight
from di_kernels.errors import UnsupportedWeightError
from di_kernels.fragments import mxfp4_to_fragment_order, mxfp8_to_fragment_order


def random_mxfp4(*shape: int, seed: int = 0) -> MXFP4Weight:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), generator=generator)
    scale = torch.randint(0, 129, (*shape[:-1], shape[-1] // 32), generator=generator)
    return MXFP4Weight(data.to(torch.uint8), scale.to(torch.uint8))


def random_mxfp8(rows: int, columns: int, seed: int = 0) -> MXFP8Weight:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 255, (rows, columns), generator=generator)
    data = torch.where((data & 127) == 127, 0, data).to(torch.uint8)
    scale = torch.randint(0, 135, (rows // 32, columns // 32), generator=generator)
    return MXFP8Weight(data.view(torch.float8_e4m3fn), scale.to(torch.uint8))


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("shape", [(64, 64), (3, 128, 192)])
def test_mxfp4_comes_back_bit_for_bit(shape: tuple[int, ...], interleave: bool) -> None:
    weight = random_mxfp4(*shape)
    fragments = mxfp4_to_fragment_order(weight, interleave_gate_up=interleave)
    back = fragments.checkpoint_order()
    assert fragments.shape == weight.shape
    assert fragments.nbytes == weight.nbytes
    assert torch.equal(back.data, weight.data)
    assert torch.equal(back.scale, weight.scale)
    assert torch.equal(fragments.dequantize(), weight.dequantize())


def test_mxfp8_comes_back_bit_for_bit() -> None:
    weight = random_mxfp8(128, 192)
    fragments = mxfp8_to_fragment_order(weight)
    back = fragments.checkpoint_order()
    assert fragments.shape == weight.shape
    assert torch.equal(back.data.view(torch.uint8), weight.data.view(torch.uint8))
    assert torch.equal(back.scale, weight.scale)


def test_a_word_of_mxfp4_lies_where_a_thread_multiplies_it() -> None:
    weight = random_mxfp4(64, 64)
    values = weight.dequantize(torch.float64)
    words = mxfp4_to_fragment_order(weight).codes.view(4, 8, 4, 4).to(torch.int64)
    scales = mxfp4_to_fragment_order(weight).scales.view(torch.uint8).view(4, 8, 2, 2)
    for warp, g, t, step in [(0, 0, 0, 0), (1, 3, 2, 1), (3, 7, 3, 3), (2, 5, 1, 2)]:
        word = int(words[warp, g, t, step])
        shifted = (word, word << 3 | 0, word << 6, word >> 4)
        signs = (word, word << 1, word << 6, word << 2)
        for place, (row, first) in enumerate([(0, 0), (8, 0), (0, 8), (8, 8)]):
            bits = (shifted[place] & 0x01C001C0) | (signs[place] & 0x80008000)
            pair = torch.tensor([bits & 0xFFFF, bits >> 16 & 0xFFFF], dtype=torch.int32)
            raw = pair.to(torch.uint16).view(torch.bfloat16).double()
            exponent = int(scales[warp, g, step // 2, row // 8]) - 127
            column = 16 * step + first + 2 * t
            want = values[16 * warp + g + row, column : column + 2]
            assert torch.equal(raw * 2.0**exponent, want)


def test_scales_and_codes_out_of_range_are_refused() -> None:
    weight = random_mxfp4(64, 64)
    weight.scale[3, 1] = 129
    with pytest.raises(UnsupportedWeightError, match="at most 128, got: 129"):
        mxfp4_to_fragment_order(weight)
    large = random_mxfp8(64, 64)
    large.scale[0, 0] = 135
    with pytest.raises(UnsupportedWeightError, match="at most 134, got: 135"):
        mxfp8_to_fragment_order(large)
    nan = random_mxfp8(64, 64)
    nan.data.view(torch.uint8)[5, 5] = 0xFF
    with pytest.raises(UnsupportedWeightError, match="NaN code"):
        mxfp8_to_fragment_order(nan)


def test_sizes_that_are_no_multiple_of_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 64, got: 96"):
        mxfp4_to_fragment_order(random_mxfp4(96, 64))
    with pytest.raises(ValueError, match="multiple of 64, got: 96"):
        mxfp8_to_fragment_order(random_mxfp8(64, 96))
