"""Names of weight layouts, as ops pass them and backends list them."""

from __future__ import annotations

import torch

from di_kernels.fragments import MXFP4FragmentWeight, MXFP8FragmentWeight
from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight
from di_kernels.packed import PackedWeight

PACKED_WITH_MXFP8_ROWS = "packed scales with MXFP8 rows"
"""What `product_layout` calls a product of MXFP8 rows with a weight with packed scales."""


def layout_of(weight: object) -> str:
    """Name of a weight's layout."""
    if isinstance(weight, MXFP4FragmentWeight):
        return "interleaved fragment order" if weight.is_interleaved else "fragment order"
    if isinstance(weight, MXFP4E4M3FragmentWeight):
        return "interleaved e4m3 fragment order" if weight.is_interleaved else "e4m3 fragment order"
    if isinstance(weight, MXFP8FragmentWeight):
        return "fragment order"
    if isinstance(weight, PackedWeight):
        return "packed scales"
    return "dense" if isinstance(weight, torch.Tensor) else "checkpoint order"


def product_layout(weight: object, quantize_input: bool) -> str:
    """Name of a product's layout: the weight's, and the rows' format where it decides."""
    if not isinstance(weight, PackedWeight):
        return layout_of(weight)
    return PACKED_WITH_MXFP8_ROWS if quantize_input else "packed scales with unquantised rows"
