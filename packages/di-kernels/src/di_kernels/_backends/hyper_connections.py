"""Hyper-connections."""

from __future__ import annotations

import functools

import torch

from di_kernels.ops.hyper_connections import _HC_COLLAPSE_NORM, _HC_EXPAND, _HC_MIXES
from di_kernels.ops.hyper_transition import _HC_TRANSITION
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile import hyper
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_COPIES = SizeRule("copies", hyper.COPIES, hyper.COPIES)
_BY_UNITS = SizeRule("hidden", 8, multiple_of=8)

_backend = functools.partial(
    Backend,
    TILELANG,
    device_types=("cuda",),
    compute_capabilities=HOPPER,
    dtypes=(torch.bfloat16,),
    availability=missing_tools,
)

_HC_MIXES.register(
    _backend(
        hyper.hc_mixes,
        determinism="row_invariant",
        size_rules=(_COPIES, _BY_UNITS),
        note="Float32 products by three exact bfloat16 parts of the factor; two launches.",
    )
)
_HC_TRANSITION.register(
    _backend(
        hyper.hc_transition,
        determinism="row_invariant_on_request",
        size_rules=(_COPIES, SizeRule("hidden", 8, hyper.MAX_HIDDEN, multiple_of=8)),
        note="Expand, coefficients, collapse and norm in two launches.",
    )
)
_HC_EXPAND.register(
    _backend(
        hyper.hc_expand,
        determinism="row_invariant",
        size_rules=(_COPIES, _BY_UNITS),
        note="One launch, the bits of the batch-invariant reference.",
    )
)
_HC_COLLAPSE_NORM.register(
    _backend(
        hyper.hc_collapse_norm,
        determinism="row_invariant",
        size_rules=(_COPIES, SizeRule("hidden", 8, hyper.MAX_HIDDEN, multiple_of=8)),
        note="One launch, one thread block per row.",
    )
)
