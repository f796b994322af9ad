"""Small rules about dtypes that all references share."""

from __future__ import annotations

import torch


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Dtype statistics and sums run in: float64 if any input is float64, otherwise float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def widen(x: torch.Tensor) -> torch.Tensor:
    """`x` in its wide dtype; no copy when it has it already."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Logistic function whose bits do not depend on where in the tensor a value lies.

    `torch.sigmoid` uses another exponential for the last values of a tensor than for those before
    them on a CPU; `torch.exp` does not, and the other steps are correctly rounded everywhere.
    """
    return torch.reciprocal(1 + torch.exp(-x))
