"""The backends beside the references, registered with what they serve.

Importing this module registers them and imports no compiler: a kernel is built when the first call
needs it.
"""

from __future__ import annotations

import torch

from di_kernels.ops.attention import _SPARSE_ATTENTION
from di_kernels.ops.linear import _GROUPED_LINEAR, _MXFP8_LINEAR
from di_kernels.ops.moe import _MOE_EXPERTS
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import attend, experts, linears
from di_kernels.tile.toolchain import missing_tools

TILELANG = "tilelang"
_HOPPER = ((9, 0),)
_STAGE_COLUMNS = 256
_WEIGHT_ROWS = 128


def _product_rules(*sizes: str) -> tuple[SizeRule, ...]:
    return tuple(SizeRule(size, _STAGE_COLUMNS, multiple_of=_STAGE_COLUMNS) for size in sizes)


_MOE_EXPERTS.register(
    Backend(
        TILELANG,
        experts.moe_experts,  # type: ignore[arg-type]  # `layouts` leaves fragment weights only
        device_types=("cuda",),
        compute_capabilities=_HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(*_product_rules("hidden", "size"), SizeRule("experts", 1, 1024)),
        determinism="row_invariant_on_request",
        availability=missing_tools,
        layouts=("w13 in interleaved fragment order, w2 in fragment order",),
        note="MXFP4 weights in fragment order, bfloat16 activations, SwiGLU in registers.",
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
            compute_capabilities=_HOPPER,
            dtypes=(torch.bfloat16,),
            size_rules=(
                *_product_rules("size"),
                SizeRule("out_size", _WEIGHT_ROWS, multiple_of=_WEIGHT_ROWS),
            ),
            determinism="row_invariant_on_request",
            availability=missing_tools,
            layouts=("fragment order",),
            note="MXFP8 weights in fragment order; parts of the columns summed in order.",
        )
    )
_SPARSE_ATTENTION.register(
    Backend(
        TILELANG,
        attend.sparse_attention,
        device_types=("cuda",),
        compute_capabilities=_HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(
            SizeRule("heads", 64, 64),
            SizeRule("head_dim", 512, 512),
            SizeRule("window", 0, 256),
            SizeRule("k", 0, 768),
        ),
        determinism="row_invariant_on_request",
        availability=missing_tools,
        layouts=("mxfp8 records", "mxfp8 + nvfp4 records", "mxfp8 + mxfp8 records"),
        note="Records converted in shared memory; parts of the keys merged in order.",
    )
)
