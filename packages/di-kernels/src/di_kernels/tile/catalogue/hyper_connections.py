"""Hyper-connections: coefficients, collapse with norm, expand, and the step between sub-layers."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import MMA_SYNC, Kernel

_MIXES, _TRANSITION = ("hc_mixes",), ("hc_transition",)


def _partial(architecture: str, *, has_expand: bool) -> object:
    from di_kernels.tile.hyper_connections import partial_mixes

    return partial_mixes(has_expand=has_expand, overlaps_launch=architecture != "sm_80")


def _finish(architecture: str, *, has_norm: bool) -> object:
    from di_kernels.tile.hyper_connections import finish_mixes

    return finish_mixes(has_norm=has_norm, overlaps_launch=architecture != "sm_80")


def _streams(architecture: str, *, name: str) -> object:
    from di_kernels.tile import hyper_streams

    return getattr(hyper_streams, name)()


def kernels() -> list[Kernel]:
    """Two launches each for coefficients and for a transition, one for collapse and for expand."""
    both = (_MIXES, "hc_mixes", False), (_TRANSITION, "hc_transition", True)
    pairs = [
        kernel
        for ops, name, is_transition in both
        for kernel in (
            Kernel(
                f"{name}_partial",
                ops,
                functools.partial(_partial, has_expand=is_transition),
                MMA_SYNC,
                has_tensor_core=True,
            ),
            Kernel(f"{name}_finish", ops, functools.partial(_finish, has_norm=is_transition)),
        )
    ]
    return [
        *pairs,
        Kernel("hc_expand", ("hc_expand",), functools.partial(_streams, name="expand")),
        Kernel(
            "hc_collapse_norm",
            ("hc_collapse_norm",),
            functools.partial(_streams, name="collapse_norm"),
        ),
    ]
