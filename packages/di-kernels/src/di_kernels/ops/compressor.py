"""Pooling of neighbouring tokens into one compressed entry."""

from __future__ import annotations

import torch

from di_kernels.checks import check_shape
from di_kernels.numerics import widen
from di_kernels.registry import Op


def compress_pool(
    values: torch.Tensor,
    gates: torch.Tensor,
    groups: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Gated mean of each group of rows, every channel on its own.

    z[g,c] = sum over i of softmax_i(gates[groups[g,i],c]) * values[groups[g,i],c]. Groups do not
    overlap and carry no position embedding (DeepSeek-V4.1 reference `inference/model.py`).

    Args:
        values: Projected rows, shape (num_rows, size), float32, float64 or bfloat16.
        gates: Their gates, same shape.
        groups: Rows of each group in token order, shape (num_groups, ratio), integer.
        out_dtype: Dtype of the result; the dtype of `values` when None.

    Returns:
        Shape (num_groups, size).

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("gates", gates, tuple(values.shape))
    check_shape("groups", groups, (None, None))
    run = _COMPRESS_POOL.select(values, size=values.shape[-1], ratio=groups.shape[1])
    return run(values, gates, groups, out_dtype or values.dtype)


def _compress_pool(
    values: torch.Tensor, gates: torch.Tensor, groups: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """Softmax over the group in float32 (float64), one rounding at the end."""
    grouped_gates = widen(gates)[groups]
    # The exponential of differences keeps every step elementwise, so a group's bits stand alone.
    powers = torch.exp(grouped_gates - grouped_gates.amax(1, keepdim=True))
    weighted = powers * widen(values)[groups]
    total, norm = weighted[:, 0], powers[:, 0]
    for member in range(1, groups.shape[1]):
        total, norm = total + weighted[:, member], norm + powers[:, member]
    return (total / norm).to(out_dtype)


_COMPRESS_POOL = Op("compress_pool", _compress_pool)
