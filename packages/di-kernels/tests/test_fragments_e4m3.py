"""e4m3 fragment order: exact inverse, the documented places, the fold, refusals."""

import pytest
import torch

from di_kernels import MXFP4Weight, mxfp4_to_e4m3_fragment_order
from di_kernels.errors import UnsupportedWeightError


def random_mxfp4(*shape: int, lowest: int = 110, octaves: int = 11) -> MXFP4Weight:
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), generator=generator)
    scale = torch.randint(
        lowest, lowest + octaves + 1, (*shape[:-1], shape[-1] // 32), generator=generator
    )
    return MXFP4Weight(data.to(torch.uint8), scale.to(torch.uint8))


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("shape", [(64, 128), (3, 128, 384)])
@pytest.mark.parametrize("lowest", [0, 110, 243])
def test_it_comes_back_bit_for_bit(shape: tuple[int, ...], interleave: bool, lowest: int) -> None:
    weight = random_mxfp4(*shape, lowest=lowest)
    fragments = mxfp4_to_e4m3_fragment_order(weight, interleave_gate_up=interleave)
    back = fragments.checkpoint_order()
    assert fragments.shape == weight.shape
    assert torch.equal(back.data, weight.data)
    assert torch.equal(back.scale, weight.scale)
    assert torch.equal(fragments.dequantize(), weight.dequantize())
    if len(shape) == 3:
        assert torch.equal(fragments[1].dequantize(), weight[1].dequantize())


def permute_bytes(low: int, high: int, selectors: int) -> list[int]:
    """The instruction `prmt` with plain selectors."""
    table = (low | high << 32).to_bytes(8, "little")
    return [table[selectors >> 4 * i & 7] for i in range(4)]


def test_a_word_becomes_what_the_tensor_core_multiplies() -> None:
    weight = random_mxfp4(64, 128)
    values = weight.dequantize(torch.float64)
    fragments = mxfp4_to_e4m3_fragment_order(weight)
    words = fragments.codes.view(2, 4, 8, 4, 4).to(torch.int64) & 0xFFFFFFFF
    scales = fragments.scales.view(torch.uint8).view(2, 4, 8, 2, 2)
    factors = fragments.row_factors.flatten().double()
    for block in range(2):
        for warp, g, t, word in [(0, 0, 0, 0), (1, 3, 2, 1), (3, 7, 3, 3), (2, 5, 1, 2)]:
            code = int(words[block, warp, g, t, word])
            for half in range(2):
                scale = int(scales[block, warp, g, word // 2, half])
                low = (scale * 0x01010100 + 0xFBF7F000) & 0xFFFFFFFF
                high = (scale * 0x01010101 + 0x0C080400) & 0xFFFFFFFF
                selectors = (code & 0x77777777) >> 16 * half
                signs = ((code << 4 * half) & 0x80808080).to_bytes(5, "little")[:4]
                magnitudes = permute_bytes(low, high, selectors)
                codes = [m | s for m, s in zip(magnitudes, signs, strict=True)]
                row = 16 * warp + g + 8 * half
                column = 64 * block + 16 * word + 4 * t
                got = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
                assert torch.equal(got * factors[row], values[row, column : column + 4])


def test_rows_whose_scales_span_too_much_are_refused() -> None:
    weight = random_mxfp4(64, 128, octaves=0)
    weight.scale[3, 1] += 11
    mxfp4_to_e4m3_fragment_order(weight)
    weight.scale[3, 1] += 1
    with pytest.raises(UnsupportedWeightError, match="at most 11 octaves, got: 12") as caught:
        mxfp4_to_e4m3_fragment_order(weight)
    assert "hint: `mxfp4_to_fragment_order`" in str(caught.value)
    weight.scale[:] = 255
    with pytest.raises(UnsupportedWeightError, match="NaN"):
        mxfp4_to_e4m3_fragment_order(weight)


def test_sizes_that_are_no_multiple_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 64, got: 96"):
        mxfp4_to_e4m3_fragment_order(random_mxfp4(96, 128))
    with pytest.raises(ValueError, match="multiple of 128, got: 192"):
        mxfp4_to_e4m3_fragment_order(random_mxfp4(64, 192))
