"""The draw of tokens, and what comes before and after it."""

from __future__ import annotations

import functools

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

_backend = functools.partial(
    Backend,
    TILELANG,
    device_types=("cuda",),
    compute_capabilities=HOPPER,
    dtypes=(torch.float32, torch.float64),
    determinism="row_invariant",
    availability=missing_tools,
)

_DRAW_TOKENS.register(
    _backend(
        draw.draw_tokens,
        size_rules=_ROWS_OF_LOGITS,
        note="Screens with fast logarithms in one pass, decides in float64: the reference's token.",
    )
)
_EDIT_LOGITS.register(
    _backend(
        edits.edit_logits,
        size_rules=(SizeRule("vocab_size", 1, 1 << 24),),
        note="Copies, masks and edits in one launch; each step rounds as torch's float64.",
    )
)

_FILTER_TOKENS.register(
    _backend(
        filters.filter_tokens,
        size_rules=_ROWS_OF_LOGITS,
        note="Searches the cut of every row in bins of integer masses, in a cluster's shared "
        "memory; no sort.",
    )
)

_LOG_PROBS.register(
    _backend(
        log_probs.log_probs,
        size_rules=(*_ROWS_OF_LOGITS, SizeRule("num_top", 0, 32)),
        note="Integer sum of masses, and the most likely tokens by the search of the filters.",
    )
)

_VERIFY_DRAFTS.register(
    _backend(
        verification.verify_drafts,
        dtypes=(torch.int64,),
        note="A thread per request.",
    )
)

_VERIFY_BY_RATIO.register(
    _backend(
        ratio.verify_drafts_by_ratio,
        size_rules=_ROWS_OF_LOGITS,
        note="Screens what stands for a refused draft with fast logarithms, decides in float64.",
    )
)
