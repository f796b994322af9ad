"""Index scores."""

from __future__ import annotations

import torch

from di_kernels.ops.indexer import _CANDIDATE_SCORES, _INDEX_SCORES
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import scores
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_SIZES = (
    SizeRule("heads", 32, 32),
    SizeRule("head_dim", 128, 128),
    SizeRule("entries_per_block", 64, 128, multiple_of=64),
)
_LAYOUTS = ("index_mxfp4 records",)

_INDEX_SCORES.register(
    Backend(
        TILELANG,
        scores.index_scores,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=_SIZES,
        determinism="row_invariant",
        availability=missing_tools,
        layouts=_LAYOUTS,
        note="FP4 keys unpacked in registers, shared by the rows of a request; scales up to 2^17.",
    )
)
_CANDIDATE_SCORES.register(
    Backend(
        TILELANG,
        scores.candidate_scores,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(*_SIZES, SizeRule("block_size", 8, 8)),
        determinism="row_invariant",
        availability=missing_tools,
        layouts=_LAYOUTS,
        note="As `index_scores`, over the entries of candidate blocks alone.",
    )
)
