"""Experts and linears."""

from __future__ import annotations

import torch

from di_kernels.ops.linear import _GROUPED_LINEAR, _MXFP8_LINEAR
from di_kernels.ops.moe import _MOE_EXPERTS
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import experts, linears
from di_kernels.tile.experts_e4m3 import MAX_SIZE as FP8_MAX_SIZE
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_STAGE_COLUMNS = 256
_WEIGHT_ROWS = 128


def _product_rules(*sizes: str) -> tuple[SizeRule, ...]:
    return tuple(SizeRule(size, _STAGE_COLUMNS, multiple_of=_STAGE_COLUMNS) for size in sizes)


_MOE_EXPERTS.register(
    Backend(
        TILELANG,
        experts.moe_experts,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(
            *_product_rules("hidden", "size"),
            SizeRule("experts", 1, 1024),
            SizeRule("fp8_size", 0, FP8_MAX_SIZE),
        ),
        determinism="row_invariant_on_request",
        availability=missing_tools,
        layouts=(
            "w13 in interleaved fragment order, w2 in fragment order",
            "w13 in interleaved e4m3 fragment order, w2 in e4m3 fragment order, FP8 rows",
        ),
        note="MXFP4 weights in fragment order, bfloat16 or e4m3 rows, SwiGLU in registers.",
    )
)
for _op, _function in (
    (_MXFP8_LINEAR, linears.mxfp8_linear),
    (_GROUPED_LINEAR, linears.grouped_linear),
):
    _op.register(
        Backend(
            TILELANG,
            _function,  # type: ignore[arg-type]  # `layouts` leaves fragment weights only
            device_types=("cuda",),
            compute_capabilities=HOPPER,
            dtypes=(torch.bfloat16,),
            size_rules=(
                *_product_rules("size"),
                SizeRule("out_size", _WEIGHT_ROWS, multiple_of=_WEIGHT_ROWS),
                # The kernels round to bfloat16; float32 results are promised unrounded.
                SizeRule("out_bytes", maximum=torch.bfloat16.itemsize),
            ),
            determinism="row_invariant_on_request",
            availability=missing_tools,
            layouts=("fragment order",),
            note="MXFP8 weights in fragment order; parts of the columns summed in order.",
        )
    )
