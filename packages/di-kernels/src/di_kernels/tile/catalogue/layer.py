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
    """One launch each; those with a row mask have a variant for it, the gate for wide rows too."""
    gates = [
        Kernel(
            f"engram_gate{'_wide' if is_wide else ''}{'_masked' if has_mask else ''}",
            ("engram_gate",),
            functools.partial(_engram, name="gate", has_mask=has_mask, is_wide=is_wide),
        )
        for is_wide in (False, True)
        for has_mask in (False, True)
    ]
    return [
        Kernel("router_topk", ("router_topk",), functools.partial(_router, has_mask=False)),
        Kernel("router_topk_masked", ("router_topk",), functools.partial(_router, has_mask=True)),
        Kernel("engram_hash", ("engram_hash",), functools.partial(_engram, name="hash_rows")),
        Kernel("engram_lookup", ("engram_lookup",), functools.partial(_engram, name="lookup")),
        *gates,
    ]
