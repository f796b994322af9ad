"""Small ops of a layer: router and Engram."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import Kernel


def _router(architecture: str, *, has_mask: bool) -> object:
    from di_kernels.tile.router_topk import router_topk

    return router_topk(has_mask=has_mask)


def _engram(architecture: str, *, name: str, **options: bool) -> object:
    from di_kernels.tile import engram_kernels

    return getattr(engram_kernels, name)(**options)


def kernels() -> list[Kernel]:
    """One launch each; those with a row mask have a variant for it."""
    gate = functools.partial(_engram, name="gate")
    return [
        Kernel("router_topk", ("router_topk",), functools.partial(_router, has_mask=False)),
        Kernel("router_topk_masked", ("router_topk",), functools.partial(_router, has_mask=True)),
        Kernel("engram_hash", ("engram_hash",), functools.partial(_engram, name="hash_rows")),
        Kernel("engram_lookup", ("engram_lookup",), functools.partial(_engram, name="lookup")),
        Kernel("engram_gate", ("engram_gate",), functools.partial(gate, has_mask=False)),
        Kernel("engram_gate_masked", ("engram_gate",), functools.partial(gate, has_mask=True)),
    ]
