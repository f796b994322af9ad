"""Small rules about dtypes that all references share."""

from __future__ import annotations

import torch


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Dtype statistics and sums run in: float64 if any input is float64, otherwise float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x.to(dtype)` without the price of a call that changes nothing."""
    return x if x.dtype is dtype else x.to(dtype)


def widen(x: torch.Tensor) -> torch.Tensor:
    """`x` in its wide dtype; no copy when it has it already."""
    return x.to(torch.float32) if x.dtype is torch.bfloat16 else x


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Logistic function whose bits do not depend on where in the tensor a value lies.

    `torch.sigmoid` uses another exponential for the last values of a tensor than for those before
    them on a CPU; `torch.exp` does not, and the other steps are correctly rounded everywhere. Under
    autograd it is `torch.sigmoid`, whose gradient is finite for every argument.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return torch.sigmoid(x)
    return torch.exp(-x).add_(1).reciprocal_()
