"""Linears and experts by the stand-in for `deep_gemm`, against the references."""

import pytest
import torch

from di_kernels import mxfp4_to_packed_scales, mxfp8_to_packed_scales, ops
from di_kernels.packed import pack_scales, unpack_scales
from di_kernels.sm100 import products
from di_kernels.testing import assert_bitwise, assert_close


@pytest.fixture
def layer():
    torch.manual_seed(5)
    w13 = ops.mxfp4_weight_quantize(torch.randn(6, 256, 256) / 16)
    w2 = ops.mxfp4_weight_quantize(torch.randn(6, 256, 128) / 11)
    return w13, w2


def routing(rows, experts, k=3):
    generator = torch.Generator().manual_seed(rows)
    indices = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(rows)])
    indices = torch.where(torch.rand(rows, k, generator=generator) < 0.2, -1, indices)
    # One expert has no row, one has most.
    indices = torch.where(indices == 2, -1, indices)
    return indices, torch.rand(rows, k, generator=generator)


# --- Packed scales ---


@pytest.mark.parametrize("rows", [1, 3, 4, 130])
def test_packing_is_exact_and_lies_as_the_library_asks(rows):
    scale = torch.randint(0, 255, (2, rows, 8), dtype=torch.uint8)
    packed = pack_scales(scale)
    assert torch.equal(unpack_scales(packed), scale)
    aligned = -(-rows // 4) * 4
    assert packed.stride() == (2 * aligned, 1, aligned)
    word = int(packed[1, rows - 1, 1]) & 0xFFFFFFFF
    assert [word >> shift & 0xFF for shift in (0, 8, 16, 24)] == scale[1, rows - 1, 4:].tolist()


def test_packed_weights_hold_the_values_of_the_checkpoints(layer):
    matrix = ops.mxfp8_weight_quantize(torch.randn(70, 256))
    packed = mxfp8_to_packed_scales(matrix)
    assert packed.shape == (70, 256)
    assert_bitwise(packed.dequantize(), matrix.dequantize())
    moved = packed.to("cpu")
    assert moved.scales.stride() == packed.scales.stride() == (1, 72)
    for weight in layer:
        experts = mxfp4_to_packed_scales(weight)
        assert experts.shape == weight.shape
        assert_bitwise(experts.dequantize(), weight.dequantize())
        assert_bitwise(experts[4].dequantize(), weight[4].dequantize())
        assert experts.codes.data_ptr() == weight.data.data_ptr()


def test_columns_that_share_no_whole_words_are_refused():
    with pytest.raises(ValueError, match="multiple of 128, got: 96"):
        mxfp8_to_packed_scales(ops.mxfp8_weight_quantize(torch.randn(32, 96)))
    with pytest.raises(ValueError, match="multiple of 128, got: 64"):
        mxfp4_to_packed_scales(ops.mxfp4_weight_quantize(torch.randn(32, 64)))


@pytest.mark.parametrize("quantize_input", [False, True])
def test_the_reference_serves_packed_weights_with_the_same_bits(layer, quantize_input):
    w13, w2 = layer
    x = torch.randn(5, 256, dtype=torch.bfloat16)
    indices, weights = routing(5, 6)
    options = {"limit": 10.0, "quantize_input": quantize_input}
    want = ops.moe_experts(x, indices, weights, w13, w2, **options)
    packed = mxfp4_to_packed_scales(w13), mxfp4_to_packed_scales(w2)
    assert_bitwise(ops.moe_experts(x, indices, weights, *packed, **options), want)
    matrix = ops.mxfp8_weight_quantize(torch.randn(64, 256))
    want = ops.linear(x, matrix, quantize_input=quantize_input)
    got = ops.linear(x, mxfp8_to_packed_scales(matrix), quantize_input=quantize_input)
    assert_bitwise(got, want)


# --- Products ---


@pytest.mark.parametrize("shape", [(0, 256), (1, 256), (3, 128), (2, 5, 384), (130, 128)])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_linear_equals_the_reference(deep_gemm, shape, out_dtype):
    torch.manual_seed(shape[0])
    matrix = ops.mxfp8_weight_quantize(torch.randn(192, shape[-1]) / 16)
    x = torch.randn(shape).to(torch.bfloat16)
    got = products.mxfp8_linear(x, mxfp8_to_packed_scales(matrix), True, out_dtype, False)
    want = ops.linear(x, matrix, quantize_input=True, out_dtype=out_dtype)
    assert got.dtype is out_dtype
    # A float64 result of float32 sums is as good as those.
    assert_close(got, want, dtype=torch.float32 if out_dtype is torch.float64 else None)
    assert len(deep_gemm.calls) == (shape[0] > 0)


@pytest.mark.parametrize("has_shared", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 63, 130])
def test_experts_equal_the_reference(deep_gemm, layer, rows, has_shared):
    w13, w2 = layer
    torch.manual_seed(rows)
    x = torch.randn(rows, 256).to(torch.bfloat16)
    indices, weights = routing(rows, 6) if rows else (torch.zeros(0, 3).long(), torch.zeros(0, 3))
    shared = torch.randn(rows, 256).to(torch.bfloat16) if has_shared else None
    packed = mxfp4_to_packed_scales(w13), mxfp4_to_packed_scales(w2)
    got = products.moe_experts(x, indices, weights, *packed, 10.0, True, False, shared, False)
    want = ops.moe_experts(
        x, indices, weights, w13, w2, limit=10.0, quantize_input=True, shared=shared
    )
    assert got.dtype is torch.bfloat16
    assert_close(got, want)


def test_rows_without_any_expert_are_zero_and_leave_the_others_alone(deep_gemm, layer):
    packed = [mxfp4_to_packed_scales(weight) for weight in layer]
    x = torch.randn(2, 256).to(torch.bfloat16)
    weights = torch.rand(2, 2)
    indices = torch.tensor([[-1, -1], [5, -1]])
    got = products.moe_experts(x, indices, weights, *packed, 10.0, True, False, None, False)
    assert not got[0].any()
    alone = products.moe_experts(
        x[1:], indices[1:], weights[1:], *packed, 10.0, True, False, None, False
    )
    assert_bitwise(got[1:], alone)


@pytest.mark.parametrize("alignment", [128, 256])
@pytest.mark.parametrize(("pairs", "experts"), [(1, 1), (6, 384), (40, 8), (700, 48)])
def test_places_are_unique_aligned_and_within_the_capacity(pairs, experts, alignment):
    generator = torch.Generator().manual_seed(pairs)
    for _ in range(5):
        chosen = torch.randint(-1, experts, (pairs,), generator=generator)
        places, ends, capacity = products.expert_places(chosen, experts, alignment)
        assert (places[chosen < 0] == capacity).all()
        routed = places[chosen >= 0]
        assert routed.unique().numel() == routed.numel()
        end = 0
        for expert, stop in enumerate(ends.tolist()):
            start = -(-end // alignment) * alignment
            mine = places[chosen == expert]
            # In the order of the pairs, from the aligned start to the stated end.
            assert torch.equal(mine, torch.arange(start, stop))
            end = stop
        assert end <= capacity
        assert capacity % alignment == 0
