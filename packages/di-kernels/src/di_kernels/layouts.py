"""Names of weight layouts, as ops pass them and backends list them."""

from __future__ import annotations

import torch

from di_kernels.fragments import MXFP4FragmentWeight, MXFP8FragmentWeight
from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight


def layout_of(weight: object) -> str:
    """Name of a weight's layout."""
    if isinstance(weight, MXFP4FragmentWeight):
        return "interleaved fragment order" if weight.is_interleaved else "fragment order"
    if isinstance(weight, MXFP4E4M3FragmentWeight):
        return "interleaved e4m3 fragment order" if weight.is_interleaved else "e4m3 fragment order"
    if isinstance(weight, MXFP8FragmentWeight):
        return "fragment order"
    return "dense" if isinstance(weight, torch.Tensor) else "checkpoint order"
