"""Small ops of a layer: router and Engram."""

from __future__ import annotations

import functools

import torch

from di_kernels.ops.engram import _ENGRAM_GATE, _ENGRAM_HASH, _ENGRAM_LOOKUP
from di_kernels.ops.moe import _ROUTER_TOPK
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import engram, router
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_backend = functools.partial(
    Backend,
    TILELANG,
    device_types=("cuda",),
    compute_capabilities=HOPPER,
    determinism="row_invariant",
    availability=missing_tools,
)

_ROUTER_TOPK.register(
    _backend(
        router.router_topk,
        dtypes=(torch.float32,),
        size_rules=(
            SizeRule("experts", 1, router.MAX_EXPERTS),
            SizeRule("k", 1, router.MAX_CHOSEN),
        ),
        note="Scores, choice and weights in one launch, a warp per row.",
    )
)
_ENGRAM_HASH.register(
    _backend(
        engram.engram_hash,
        dtypes=(torch.int64,),
        size_rules=(SizeRule("heads", 1, engram.MAX_HEADS),),
        note="All layers and orders in one launch.",
    )
)
_ENGRAM_LOOKUP.register(
    _backend(
        engram.engram_lookup,  # type: ignore[arg-type]  # `layouts` leaves MXFP8 tables only
        dtypes=(torch.float8_e4m3fn,),
        size_rules=(SizeRule("size", 32, multiple_of=32),),
        layouts=("MXFP8 rows to bfloat16",),
        note="Gathers and decodes in one launch, from device memory or a view of pinned memory.",
    )
)
_ENGRAM_GATE.register(
    _backend(
        engram.engram_gate,
        dtypes=(torch.bfloat16,),
        size_rules=(
            SizeRule("copies", engram.COPIES, engram.COPIES),
            SizeRule("hidden", 8, engram.MAX_HIDDEN, multiple_of=8),
        ),
        note="One launch; keys and value are read where the projection left them.",
    )
)
