"""Sparse attention."""

from __future__ import annotations

import torch

from di_kernels.ops.attention import _SPARSE_ATTENTION
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import attend
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_SPARSE_ATTENTION.register(
    Backend(
        TILELANG,
        attend.sparse_attention,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(
            SizeRule("heads", 64, 64),
            SizeRule("head_dim", 512, 512),
            SizeRule("window", 0, 256),
            SizeRule("k", 0, 768),
            SizeRule("rotary_dim", 0, attend.ROTARY, multiple_of=attend.ROTARY),
        ),
        determinism="row_invariant_on_request",
        availability=missing_tools,
        layouts=("mxfp8 records", "mxfp8 + nvfp4 records", "mxfp8 + mxfp8 records"),
        note="Records converted in shared memory; few rows by tiles of keys, then slices.",
    )
)
