"""Hyper-connections: coefficients, collapse with norm, expand, and the step between sub-layers."""

from __future__ import annotations

import functools

from di_kernels.tile.gemm_tile import HOPPER_ARCHITECTURE
from di_kernels.tile.kernel import Kernel

_MIXES, _TRANSITION = ("hc_mixes",), ("hc_transition",)


def _of_streams(architecture: str, *, blocks_at_once: int) -> object:
    from di_kernels.tile.hyper_products import of_streams

    # Elsewhere two would spill; not measured.
    if architecture != HOPPER_ARCHITECTURE:
        blocks_at_once = 1
    return of_streams(overlaps_launch=architecture != "sm_80", blocks_at_once=blocks_at_once)


def _of_transition(architecture: str) -> object:
    from di_kernels.tile.hyper_products import of_transition

    return of_transition(overlaps_launch=architecture != "sm_80")


def _finish(architecture: str, *, has_norm: bool) -> object:
    from di_kernels.tile.hyper_connections import finish

    return finish(has_norm=has_norm, overlaps_launch=architecture != "sm_80")


def _streams(architecture: str, *, name: str) -> object:
    from di_kernels.tile import hyper_streams

    return getattr(hyper_streams, name)()


def kernels() -> list[Kernel]:
    """Two launches each for coefficients and for a transition, one for collapse and for expand."""
    products = (
        ("hc_mixes_few", _MIXES, functools.partial(_of_streams, blocks_at_once=1)),
        ("hc_mixes_many", _MIXES, functools.partial(_of_streams, blocks_at_once=2)),
        ("hc_transition_products", _TRANSITION, _of_transition),
    )
    return [
        *(
            Kernel(name, ops, build, has_tensor_core=True, is_guarded=True)
            for name, ops, build in products
        ),
        Kernel("hc_mixes_finish", _MIXES, functools.partial(_finish, has_norm=False)),
        Kernel("hc_transition_finish", _TRANSITION, functools.partial(_finish, has_norm=True)),
        Kernel("hc_expand", ("hc_expand",), functools.partial(_streams, name="expand")),
        Kernel(
            "hc_collapse_norm",
            ("hc_collapse_norm",),
            functools.partial(_streams, name="collapse_norm"),
        ),
    ]
