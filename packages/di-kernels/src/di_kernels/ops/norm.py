"""RMSNorm (DeepSeek-V4.1 reference `inference/model.py`)."""

from __future__ import annotations

import torch

from di_kernels.checks import check_shape
from di_kernels.numerics import cast, widen
from di_kernels.registry import Op


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-20,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension, with one rounding at the end.

    The release's eps is 1e-20: a row of tiny values is amplified to unit size, and a row of zeros
    stays zero.

    Args:
        x: Shape (..., size), float32, float64 or bfloat16.
        weight: Shape (size,); None for no weight.
        eps: Added to the mean of squares.
        out_dtype: Dtype of the result; the dtype of `x` when None.

    Returns:
        Shape of `x`.

    Raises:
        ValueError: `weight` has another size.
    """
    if weight is not None:
        check_shape("weight", weight, (x.shape[-1],))
    return _RMS_NORM.select(x, size=x.shape[-1])(x, weight, eps, out_dtype or x.dtype)


def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Statistics and weight product in float32, or float64 for float64 input."""
    wide = widen(x)
    wide_weight = None if weight is None else cast(weight, wide.dtype)
    return cast(torch.nn.functional.rms_norm(wide, wide.shape[-1:], wide_weight, eps), out_dtype)


_RMS_NORM = Op("rms_norm", _rms_norm)
