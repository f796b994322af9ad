"""DeepSeek's libraries on SM100: adapters that were never run on it."""

from __future__ import annotations

import torch

from di_kernels.layouts import PACKED_WITH_MXFP8_ROWS
from di_kernels.ops.attention import _SPARSE_ATTENTION
from di_kernels.ops.linear import _MXFP8_LINEAR
from di_kernels.ops.moe import _MOE_EXPERTS
from di_kernels.packed import PACKED_COLUMNS
from di_kernels.registry import Backend, SizeRule
from di_kernels.sm100 import attention, products
from di_kernels.sm100.libraries import BLACKWELL, DEEP_GEMM, FLASH_MLA, missing

_NEVER_RUN = "Signatures and formulas tested against the published sources, never run on SM100."


def _columns(size: str) -> SizeRule:
    return SizeRule(size, PACKED_COLUMNS, multiple_of=PACKED_COLUMNS)


_SPARSE_ATTENTION.register(
    Backend(
        FLASH_MLA.module,
        attention.sparse_attention,
        device_types=("cuda",),
        compute_capabilities=BLACKWELL,
        dtypes=(torch.bfloat16,),
        size_rules=(
            SizeRule("heads", 64, 128, 64),
            SizeRule("head_dim", 512, 512),
            SizeRule("stray_bytes", 0, 0),
        ),
        determinism="row_invariant_on_request",
        availability=missing(FLASH_MLA),
        layouts=("mxfp8 records", "mxfp8 + nvfp4 records", "mxfp8 + mxfp8 records"),
        is_verified=False,
        note=_NEVER_RUN,
    )
)
_MXFP8_LINEAR.register(
    Backend(
        DEEP_GEMM.module,
        products.mxfp8_linear,  # type: ignore[arg-type]  # `layouts` leaves packed weights only
        device_types=("cuda",),
        compute_capabilities=BLACKWELL,
        dtypes=(torch.bfloat16,),
        size_rules=(_columns("size"), SizeRule("out_size", 64, multiple_of=64)),
        availability=missing(DEEP_GEMM),
        layouts=(PACKED_WITH_MXFP8_ROWS,),
        is_verified=False,
        note=_NEVER_RUN,
    )
)
_MOE_EXPERTS.register(
    Backend(
        DEEP_GEMM.module,
        products.moe_experts,  # type: ignore[arg-type]  # `layouts` leaves packed weights only
        device_types=("cuda",),
        compute_capabilities=BLACKWELL,
        dtypes=(torch.bfloat16,),
        size_rules=(_columns("hidden"), _columns("size")),
        availability=missing(DEEP_GEMM),
        layouts=(f"w13 in {PACKED_WITH_MXFP8_ROWS}, w2 in {PACKED_WITH_MXFP8_ROWS}",),
        is_verified=False,
        note=_NEVER_RUN,
    )
)
