"""Linear layers: dense, MXFP8 and MXFP4 weights, activations as they are or quantised to MXFP8.

The quantised product is y[t,o] = sum over groups g of 32 of 2^(a[t,g] + w[o,g]) * sum over i in g
of qa[t,i] * qw[o,i] (DeepSeek-V4.1 reference `inference/kernel.py`). A code times its power of two
is exact in bfloat16, so the product of the dequantised matrices is the same sum; accumulation is at
least float32, with one rounding to the result's dtype.
"""

from __future__ import annotations

import torch

from di_kernels.checks import check_shape
from di_kernels.formats import E4M3_MAX, MXFP8_FLOOR, mxfp4_encode, power_of_two_scale, ue8m0_encode
from di_kernels.fragments import FragmentWeight, MXFP8FragmentWeight
from di_kernels.layouts import layout_of, product_layout
from di_kernels.matmul import matmul_rows
from di_kernels.numerics import cast, widen
from di_kernels.ops.quantize import mxfp8_fake_quantize
from di_kernels.packed import MXFP8PackedWeight, PackedWeight
from di_kernels.registry import Op
from di_kernels.timed_pair import TimedPair
from di_kernels.weights import MXFP8_TILE, MXFP4Weight, MXFP8Weight, Weight


def linear(
    x: torch.Tensor,
    weight: Weight | FragmentWeight | PackedWeight,
    *,
    quantize_input: bool = False,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """`x @ weight.T` without bias.

    The product runs in the promoted dtype of `x`, a dense `weight` and `out_dtype`: bfloat16 rows
    with a float32 weight, or with `out_dtype=torch.float32`, give the float32 product of their
    exact values.

    Args:
        x: Rows, shape (..., size), float32, float64 or bfloat16.
        weight: Shape (out_size, size): dense, `MXFP8Weight` or `MXFP4Weight`.
        quantize_input: Quantise `x` to MXFP8 in groups of 32 first, as the release does for its FP8
            and FP4 weights.
        out_dtype: Dtype of the result; the dtype of `x` when None.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape (..., out_size).

    Raises:
        ValueError: The sizes do not match, or `quantize_input` with a size that is not a multiple
            of 32.
        TypeError: A dtype that is not served.
    """
    check_shape("weight", weight, (None, x.shape[-1]))
    out_dtype = out_dtype or x.dtype
    run = _linear_op(weight).select(
        x,
        row_invariant=batch_invariant,
        layout=product_layout(weight, quantize_input),
        size=x.shape[-1],
        out_size=weight.shape[0],
        out_bytes=out_dtype.itemsize,
        dense_bytes=weight.dtype.itemsize if isinstance(weight, torch.Tensor) else 0,
    )
    return run(x, weight, quantize_input, out_dtype, batch_invariant)


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor | MXFP8Weight | MXFP8FragmentWeight,
    *,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Block-diagonal product: group g of every row with matrix g.

    Args:
        x: Shape (num_rows, groups, size), float32, float64 or bfloat16.
        weight: Dense, shape (groups, out_size, size) or (groups * out_size, size), or `MXFP8Weight`
            of the latter.
        out_dtype: Dtype of the result; the dtype of `x` when None.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape (num_rows, groups, out_size).

    Raises:
        ValueError: The sizes do not match.
    """
    check_shape("x", x, (None, None, None))
    groups, size = x.shape[1:]
    if len(weight.shape) == 2 and weight.shape[0] % groups:
        raise ValueError(
            f"invalid shape of `weight`: expected a multiple of {groups} rows, "
            f"got: {weight.shape[0]}"
        )
    check_shape("weight", weight, (None, size) if len(weight.shape) == 2 else (groups, None, size))
    out_dtype = out_dtype or x.dtype
    run = _GROUPED_LINEAR.select(
        x,
        layout=layout_of(weight),
        size=size,
        groups=groups,
        out_size=weight.shape[0] // groups if len(weight.shape) == 2 else weight.shape[1],
        out_bytes=out_dtype.itemsize,
    )
    return run(x, weight, out_dtype, batch_invariant)


def mxfp8_weight_dequantize(
    weight: MXFP8Weight, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Dense values of a weight with 32 x 32 tiles, shape (rows, columns)."""
    return _MXFP8_WEIGHT_DEQUANTIZE.select(weight.data)(weight, dtype)


def mxfp8_weight_quantize(weight: torch.Tensor) -> MXFP8Weight:
    """Quantises a matrix in 32 x 32 tiles; values that the format represents come back unchanged.

    Args:
        weight: Shape (rows, columns), float32, float64 or bfloat16.

    Returns:
        The weight; partial tiles at the edges have their own scale.
    """
    check_shape("weight", weight, (None, None))
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(
        widen(weight), (0, -columns % MXFP8_TILE, 0, -rows % MXFP8_TILE)
    )
    tiles = torch.unflatten(torch.unflatten(padded, 1, (-1, MXFP8_TILE)), 0, (-1, MXFP8_TILE))
    tiles = tiles.transpose(1, 2)
    flat = tiles.flatten(-2)
    largest = flat.abs().amax(-1).clamp_min(MXFP8_FLOOR)
    scale = power_of_two_scale(largest, E4M3_MAX)
    scaled = (flat / scale.unsqueeze(-1)).view_as(tiles)
    codes = scaled.transpose(1, 2).flatten(2).flatten(0, 1)[:rows, :columns]
    return MXFP8Weight(codes.to(torch.float8_e4m3fn).contiguous(), ue8m0_encode(scale))


def mxfp4_weight_quantize(weight: torch.Tensor) -> MXFP4Weight:
    """Quantises matrices in groups of 32 columns; representable values come back unchanged.

    Args:
        weight: Shape (..., rows, columns), columns a multiple of 32, float32, float64 or bfloat16.
    """
    return MXFP4Weight(*mxfp4_encode(weight))


# --- Reference ---


def _linear(
    x: torch.Tensor,
    weight: Weight | FragmentWeight | PackedWeight,
    quantize_input: bool,
    out_dtype: torch.dtype,
    batch_invariant: bool,
) -> torch.Tensor:
    """Product with the dense values of the weight."""
    if quantize_input:
        x = mxfp8_fake_quantize(x)
    if isinstance(weight, torch.Tensor):
        compute = _promoted(x.dtype, weight.dtype, out_dtype)
        dense = cast(weight, compute)
    else:
        compute = _promoted(x.dtype, out_dtype)
        dense = weight.dequantize(compute)
    rows = cast(x, compute)
    if not batch_invariant:
        return cast(torch.nn.functional.linear(rows, dense), out_dtype)
    product = matmul_rows(rows.reshape(-1, x.shape[-1]), dense, batch_invariant=True)
    return cast(product.view(*x.shape[:-1], dense.shape[0]), out_dtype)


def _promoted(first: torch.dtype, *others: torch.dtype) -> torch.dtype:
    for other in others:
        if other is not first:
            first = torch.promote_types(first, other)
    return first


def _linear_op(
    weight: Weight | FragmentWeight | PackedWeight,
) -> Op[
    [torch.Tensor, Weight | FragmentWeight | PackedWeight, bool, torch.dtype, bool], torch.Tensor
]:
    if isinstance(weight, torch.Tensor):
        return _LINEAR
    is_mxfp8 = isinstance(weight, MXFP8Weight | MXFP8FragmentWeight | MXFP8PackedWeight)
    return _MXFP8_LINEAR if is_mxfp8 else _MXFP4_LINEAR


def _grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor | MXFP8Weight | MXFP8FragmentWeight,
    out_dtype: torch.dtype,
    batch_invariant: bool,
) -> torch.Tensor:
    """One product per group."""
    compute = _promoted(x.dtype, out_dtype)
    dense = (
        cast(weight, compute) if isinstance(weight, torch.Tensor) else weight.dequantize(compute)
    )
    dense = dense.view(x.shape[1], -1, x.shape[2])
    groups = x.to(compute).transpose(0, 1)
    if batch_invariant:
        products = [
            matmul_rows(group, matrix, batch_invariant=True)
            for group, matrix in zip(groups, dense, strict=True)
        ]
        return torch.stack(products, dim=1).to(out_dtype)
    return torch.bmm(groups, dense.transpose(1, 2)).transpose(0, 1).to(out_dtype)


def _mxfp8_weight_dequantize(weight: MXFP8Weight, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the power of two of their tile."""
    return weight.dequantize(dtype)


_LINEAR = Op(
    "linear",
    _linear,
    determinism="row_invariant_on_request",
    beside_torch=(
        TimedPair(
            "final norm and logits of 64 rows, 129,280 x 5,120 in bfloat16",
            "mm(out_dtype=torch.float32)", 363.1, "floor", 301.7, "H200, 30 November 2026",
        ),
    ),
)  # fmt: skip
_MXFP8_LINEAR = Op("mxfp8_linear", _linear, determinism="row_invariant_on_request")
_MXFP4_LINEAR = Op("mxfp4_linear", _linear, determinism="row_invariant_on_request")
_GROUPED_LINEAR = Op("grouped_linear", _grouped_linear, determinism="row_invariant_on_request")
_MXFP8_WEIGHT_DEQUANTIZE = Op(
    "mxfp8_weight_dequantize",
    _mxfp8_weight_dequantize,
    dtypes=(torch.float8_e4m3fn,),
    is_differentiable=False,
)
