import pytest
import torch

from di_kernels import MXFP4Weight, MXFP8Weight, ops
from di_kernels.testing import assert_bitwise, assert_close

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_golden_weights_decode_exactly_and_quantise_back(quant_cases):
    mxfp8 = MXFP8Weight(quant_cases["weight_fp8.weight"], quant_cases["weight_fp8.scale"])
    mxfp4 = MXFP4Weight(quant_cases["weight_mxfp4.weight"], quant_cases["weight_mxfp4.scale"])
    for weight, name, quantize in (
        (mxfp8, "weight_fp8", ops.mxfp8_weight_quantize),
        (mxfp4, "weight_mxfp4", ops.mxfp4_weight_quantize),
    ):
        dense = weight.dequantize()
        assert torch.equal(dense, quant_cases[f"{name}.dequant"])
        assert torch.equal(quantize(dense).dequantize(), dense)
        assert torch.equal(weight.dequantize(torch.bfloat16).float(), dense)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (31, 33), (32, 32), (80, 65)])
def test_partial_tiles_have_their_own_scale(rows, columns):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    weight = ops.mxfp8_weight_quantize(values)
    assert weight.scale.shape == (-(-rows // 32), -(-columns // 32))
    torch.testing.assert_close(weight.dequantize(), values, rtol=2**-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "out_size"), [(1, 1), (32, 2), (33, 7), (64, 24), (96, 100), (160, 3), (512, 257)]
)
def test_a_row_has_the_same_bits_among_any_others(dtype, size, out_size, threads):
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(out_size, size, generator=generator).to(dtype)
    x = torch.randn(130, size, generator=generator).to(dtype)
    alone = torch.cat([ops.linear(row[None], weight, batch_invariant=True) for row in x])
    for num_rows in (1, 2, 7, 15, 16, 17, 31, 64, 65, 129, 130):
        for start in {0, 1, 130 - num_rows}:
            part = x[start : start + num_rows]
            together = ops.linear(part, weight, batch_invariant=True)
            assert_bitwise(together, alone[start : start + num_rows][: len(part)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_place_in_a_tile_gives_the_same_bits(dtype, threads):
    weight = torch.randn(48, 96).to(dtype)
    row = torch.randn(96).to(dtype)
    alone = ops.linear(row[None], weight, batch_invariant=True)
    for place in range(16):
        x = torch.full((16, 96), torch.nan, dtype=dtype)
        x[place] = row
        assert_bitwise(ops.linear(x, weight, batch_invariant=True)[place : place + 1], alone)


def test_bfloat16_rows_with_a_float32_weight_give_the_float32_product():
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(5, 64)
    y = ops.linear(x, weight, out_dtype=torch.float32)
    assert y.dtype == torch.float32
    assert_close(y, x.double() @ weight.double().T)
    assert ops.linear(x, weight).dtype == torch.bfloat16


def test_a_dimension_more_and_no_rows():
    weight = torch.randn(5, 32)
    x = torch.randn(2, 3, 32)
    for invariant in (False, True):
        assert ops.linear(x, weight, batch_invariant=invariant).shape == (2, 3, 5)
        assert ops.linear(x[:0], weight, batch_invariant=invariant).shape == (0, 3, 5)
        none = torch.empty(0, 2, 32)
        grouped = ops.grouped_linear(none, torch.randn(2, 7, 32), batch_invariant=invariant)
        assert grouped.shape == (0, 2, 7)


def test_grouped_linear_takes_both_layouts_and_mxfp8():
    x, weight = torch.randn(4, 2, 32), torch.randn(2, 64, 32)
    expected = torch.einsum("tgk,gnk->tgn", x.double(), weight.double())
    assert_close(ops.grouped_linear(x, weight), expected)
    assert_close(ops.grouped_linear(x, weight.flatten(0, 1)), expected)
    packed = ops.mxfp8_weight_quantize(weight.flatten(0, 1))
    dense = packed.dequantize(torch.float64).view(2, 64, 32)
    assert_close(ops.grouped_linear(x, packed), torch.einsum("tgk,gnk->tgn", x.double(), dense))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`weight`: expected \(any, 32\), got: \(5, 31\)"):
        ops.linear(torch.zeros(1, 32), torch.zeros(5, 31))
    with pytest.raises(ValueError, match="multiple of 3 rows"):
        ops.grouped_linear(torch.zeros(1, 3, 32), torch.zeros(10, 32))
    codes = torch.zeros(64, 64).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"`scale`: expected \(2, 2\), got: \(64, 2\)"):
        MXFP8Weight(codes, torch.zeros(64, 2, dtype=torch.uint8))
    with pytest.raises(TypeError, match="`data`"):
        MXFP8Weight(torch.zeros(32, 32), torch.zeros(1, 1, dtype=torch.uint8))
