"""FP8 activations: the quantiser, the semantics of the experts, and who serves them."""

import pytest
import torch

from di_kernels import (
    UnsupportedLayoutError,
    UnsupportedShapeError,
    backends,
    mxfp4_to_e4m3_fragment_order,
    ops,
)
from di_kernels.testing import assert_bitwise, assert_close
from di_kernels.tile import toolchain


@pytest.fixture(autouse=True)
def fresh_tools():
    yield
    toolchain.missing_tools.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_largest_value_of_a_row_becomes_448(dtype):
    x = torch.randn(5, 3, 64, dtype=dtype) * torch.logspace(-20, 4, 5).view(5, 1, 1).to(dtype)
    codes, scale = ops.fp8_quantize(x)
    assert codes.shape == x.shape
    assert scale.shape == (5, 3)
    assert (codes.float().abs().amax(-1) == 448).all()
    back = codes.to(scale.dtype) * scale.unsqueeze(-1)
    wide = x.to(scale.dtype)
    step = torch.maximum(wide.abs() / 16, scale.unsqueeze(-1) * 2**-10)
    assert ((back - wide).abs() <= step * 1.0001).all()


def test_zero_tiny_and_broken_rows():
    x = torch.randn(5, 32)
    x[0] = 0
    x[1] = 1e-36
    x[2, 3], x[3, 3] = torch.nan, torch.inf
    codes, scale = ops.fp8_quantize(x)
    values = codes.float() * scale.unsqueeze(-1)
    assert not values[0].any()
    assert scale[1] == 2.0**-100 * torch.tensor(1 / 448)
    assert values[2].isnan().all()
    assert values[3].isnan().all()
    assert values[4].isfinite().all()


@pytest.fixture
def layer():
    torch.manual_seed(3)
    w13 = ops.mxfp4_weight_quantize(torch.randn(4, 256, 128) / 11)
    w2 = ops.mxfp4_weight_quantize(torch.randn(4, 128, 128) / 11)
    indices = torch.tensor([[0, 1], [2, -1], [3, 0], [1, 1], [2, 0]])
    return indices, torch.rand(5, 2), w13, w2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("invariant", [False, True])
def test_experts_multiply_codes_and_scale_the_sums(layer, dtype, invariant):
    indices, weights, w13, w2 = layer
    x = torch.randn(5, 128).to(dtype)

    def product(row, matrix):
        codes, scale = ops.fp8_quantize(row)
        wide = scale.dtype
        total = codes.to(wide) @ matrix.dequantize(wide).T
        return (total * scale).to(dtype)

    expected = x.double().clone()
    for row in range(5):
        for expert, weight in zip(indices[row].tolist(), weights[row], strict=True):
            if expert >= 0:
                activated = ops.swiglu(product(x[row], w13[expert]), 1.5, row_weights=weight)
                expected[row] += product(activated, w2[expert]).double()
    arguments = {"limit": 1.5, "fp8_input": True, "shared": x, "batch_invariant": invariant}
    for experts in (
        (w13, w2),
        (
            mxfp4_to_e4m3_fragment_order(w13, interleave_gate_up=True),
            mxfp4_to_e4m3_fragment_order(w2),
        ),
        (w13.dequantize(), w2.dequantize()),
    ):
        out = ops.moe_experts(x, indices, weights, *experts, **arguments)
        assert_close(out, expected, tolerance=2e-2)
        assert out.dtype == dtype


def test_the_layout_of_the_weights_changes_no_bit(layer):
    indices, weights, w13, w2 = layer
    x = torch.randn(5, 128, dtype=torch.bfloat16)
    fragments = (
        mxfp4_to_e4m3_fragment_order(w13, interleave_gate_up=True),
        mxfp4_to_e4m3_fragment_order(w2),
    )
    for fp8 in (False, True):
        want = ops.moe_experts(x, indices, weights, w13, w2, limit=10.0, fp8_input=fp8)
        assert_bitwise(
            ops.moe_experts(x, indices, weights, *fragments, limit=10.0, fp8_input=fp8), want
        )


def test_two_quantisations_are_refused(layer):
    indices, weights, w13, w2 = layer
    x = torch.randn(5, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="exclude each other"):
        ops.moe_experts(
            x, indices, weights, w13, w2, limit=1.0, fp8_input=True, quantize_input=True
        )


def test_the_kernels_serve_matching_layouts_alone(monkeypatch):
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: "nvcc")
    real = toolchain.importlib.util.find_spec
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: real("json"))
    toolchain.missing_tools.cache_clear()
    backend = backends("moe_experts")[0]
    call = ("moe_experts", "cuda", (9, 0), torch.bfloat16)
    served = "w13 in interleaved e4m3 fragment order, w2 in e4m3 fragment order, FP8 rows"
    sizes = {"hidden": 512, "size": 256, "experts": 8, "fp8_size": 512}
    assert backend.refusal(*call, sizes, layout=served) is None
    for layout in (
        served.removesuffix(", FP8 rows"),
        "w13 in interleaved fragment order, w2 in fragment order, FP8 rows",
    ):
        assert isinstance(backend.refusal(*call, sizes, layout=layout), UnsupportedLayoutError)
    refusal = backend.refusal(*call, {**sizes, "fp8_size": 9216}, layout=served)
    assert isinstance(refusal, UnsupportedShapeError)
    assert "fp8_size <= 8192 (got 9216)" in str(refusal)
