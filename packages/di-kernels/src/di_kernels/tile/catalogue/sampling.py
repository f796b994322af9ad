"""The draw of tokens."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import Kernel


def _draw(architecture: str, *, name: str, dtype: str) -> object:
    from di_kernels.tile import draw_kernels

    return getattr(draw_kernels, name)(dtype)


def kernels() -> list[Kernel]:
    """Screen and decision for both dtypes of logits."""
    return [
        Kernel(
            f"draw_{name}_{dtype}",
            ("draw_tokens",),
            functools.partial(_draw, name=name, dtype=dtype),
        )
        for dtype in ("float32", "float64")
        for name in ("screen", "decide")
    ]
