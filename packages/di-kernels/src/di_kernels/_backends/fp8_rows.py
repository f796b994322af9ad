"""Rows to e4m3."""

from __future__ import annotations

import torch

from di_kernels.ops.quantize import _FP8_QUANTIZE
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import experts_e4m3
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_FP8_QUANTIZE.register(
    Backend(
        TILELANG,
        experts_e4m3.fp8_quantize,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(SizeRule("size", 8, experts_e4m3.MAX_SIZE, multiple_of=8),),
        determinism="row_invariant",
        availability=missing_tools,
        note="One read, values kept in registers, bits as the reference.",
    )
)
