"""The draw of tokens, and what comes before and after it."""

from __future__ import annotations

import torch

from di_kernels.ops.log_probs import _LOG_PROBS
from di_kernels.ops.logit_edits import _EDIT_LOGITS
from di_kernels.ops.ratio import _VERIFY_BY_RATIO
from di_kernels.ops.sampling import _DRAW_TOKENS
from di_kernels.ops.token_filters import _FILTER_TOKENS
from di_kernels.ops.verification import _VERIFY_DRAFTS
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import draw, edits, filters, log_probs, ratio, verification
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_ROWS_OF_LOGITS = (SizeRule("vocab_size", 1, 1 << 17),)
"""A cluster's shared memory holds a row; sums of the parts of masses stay inside 32 bits."""

_DRAW_TOKENS.register(
    Backend(
        TILELANG,
        draw.draw_tokens,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.float32, torch.float64),
        size_rules=_ROWS_OF_LOGITS,
        determinism="row_invariant",
        availability=missing_tools,
        note="Screens with fast logarithms in one pass, decides in float64: the reference's token.",
    )
)
_EDIT_LOGITS.register(
    Backend(
        TILELANG,
        edits.edit_logits,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.float32, torch.float64),
        size_rules=(SizeRule("vocab_size", 1, 1 << 24),),
        determinism="row_invariant",
        availability=missing_tools,
        note="Copies, masks and edits in one launch; each step rounds as torch's float64.",
    )
)

_FILTER_TOKENS.register(
    Backend(
        TILELANG,
        filters.filter_tokens,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.float32, torch.float64),
        size_rules=_ROWS_OF_LOGITS,
        determinism="row_invariant",
        availability=missing_tools,
        note="Searches the cut of every row in bins of integer masses, in a cluster's shared "
        "memory; no sort.",
    )
)

_LOG_PROBS.register(
    Backend(
        TILELANG,
        log_probs.log_probs,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.float32, torch.float64),
        size_rules=(*_ROWS_OF_LOGITS, SizeRule("num_top", 0, 32)),
        determinism="row_invariant",
        availability=missing_tools,
        note="Integer sum of masses, and the most likely tokens by the search of the filters.",
    )
)

_VERIFY_DRAFTS.register(
    Backend(
        TILELANG,
        verification.verify_drafts,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.int64,),
        determinism="row_invariant",
        availability=missing_tools,
        note="A thread per request.",
    )
)

_VERIFY_BY_RATIO.register(
    Backend(
        TILELANG,
        ratio.verify_drafts_by_ratio,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.float32, torch.float64),
        size_rules=_ROWS_OF_LOGITS,
        determinism="row_invariant",
        availability=missing_tools,
        note="Screens what stands for a refused draft with fast logarithms, decides in float64.",
    )
)
