"""Top-k and candidate blocks."""

from __future__ import annotations

import torch

from di_kernels.ops.selection import _SELECT_CANDIDATE_BLOCKS, _SELECT_TOPK
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import select
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_DTYPES = (torch.float32, torch.bfloat16)

_SELECT_TOPK.register(
    Backend(
        TILELANG,
        select.select_topk,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=_DTYPES,
        size_rules=(SizeRule("k", 1, 2048),),
        determinism="row_invariant",
        availability=missing_tools,
        note="Radix selection on ordered keys in shared memory, a cluster of eight blocks per row.",
    )
)
_SELECT_CANDIDATE_BLOCKS.register(
    Backend(
        TILELANG,
        select.select_candidate_blocks,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=_DTYPES,
        size_rules=(SizeRule("block_size", 8, 8), SizeRule("num_blocks", 1, 2048)),
        determinism="row_invariant",
        availability=missing_tools,
        note="As `select_topk`, maxima of blocks taken from the scores on the way.",
    )
)
