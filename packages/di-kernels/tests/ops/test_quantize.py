import pytest
import torch

from di_kernels import ops

FAKE = {
    "fp8_ue8m0_block32": ops.mxfp8_fake_quantize,
    "fp4_ue8m0_block32": ops.mxfp4_fake_quantize,
    "fp4_e4m3_block16": ops.nvfp4_fake_quantize,
}


@pytest.mark.parametrize("name", FAKE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_golden_cases_are_met_exactly(quant_cases, name, dtype):
    x = quant_cases["fp8_ue8m0_block32.input"].to(dtype)
    assert torch.equal(FAKE[name](x).float(), quant_cases[f"{name}.output"])


@pytest.mark.parametrize(
    ("largest", "byte"), [(1.0, 119), (448.0, 127), (449.0, 128), (0.0, 105), (0.7, 118)]
)
def test_mxfp8_scale_is_the_smallest_power_of_two_that_fits(largest, byte):
    codes, scale = ops.mxfp8_quantize(torch.full((1, 32), largest))
    assert scale.tolist() == [[byte]]
    assert codes.float().abs().max() <= 448


@pytest.mark.parametrize(
    ("value", "decoded"), [(1.0, 6 * 0.171875), (7.0, 6.75), (0.01, 0.01171875), (0.0, 0.0)]
)
def test_nvfp4_scale_is_rounded_to_nearest(value, decoded):
    assert ops.nvfp4_fake_quantize(torch.full((16,), value)).tolist() == [decoded] * 16


@pytest.mark.parametrize(
    ("value", "decoded"),
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (-5, -4), (6, 6)],
)
def test_fp4_ties_go_to_the_even_code(value, decoded):
    x = torch.zeros(32)
    x[0], x[1] = 6.0, value
    assert ops.mxfp4_fake_quantize(x)[1] == decoded


def test_every_byte_decodes_low_nibble_first_and_encodes_back():
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)
    scale = torch.full((16, 1), 127, dtype=torch.uint8)
    values = ops.mxfp4_dequantize(packed, scale)
    assert values[0, :4].tolist() == [0, 0, 0.5, 0]
    assert values[15, 30:].tolist() == [-6, -6]
    # A group with a smaller maximum would get a smaller scale: pin it with a 6 in the last place.
    pinned = torch.cat((values[:, :31], torch.full((16, 1), 6.0)), dim=1)
    again, _ = ops.mxfp4_quantize(pinned)
    assert torch.equal(again[:, :15], packed[:, :15])


@pytest.mark.parametrize("fake", FAKE.values())
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_group_that_is_not_finite_decodes_to_nan_and_harms_no_other(fake, bad):
    x = torch.ones(2, 64)
    x[0, 3] = bad
    y = fake(x)
    assert y[0, :16].isnan().all()
    assert not y[0, 32:].isnan().any()
    assert not y[1].isnan().any()


@pytest.mark.parametrize("fake", [ops.mxfp8_fake_quantize, ops.mxfp4_fake_quantize])
def test_quantising_again_changes_nothing(fake):
    once = fake(torch.randn(20, 64, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(fake(once), once)
    assert torch.equal(once.bfloat16().float(), once)


@pytest.mark.parametrize("fake", FAKE.values())
def test_no_rows_are_fine(fake):
    assert fake(torch.empty(0, 64)).shape == (0, 64)


def test_wrong_sizes_and_dtypes_are_named():
    with pytest.raises(ValueError, match="multiple of 32, got: 33"):
        ops.mxfp8_quantize(torch.zeros(1, 33))
    with pytest.raises(TypeError, match=r"invalid dtype of `x`.*torch\.int64"):
        ops.nvfp4_quantize(torch.zeros(1, 32, dtype=torch.int64))
