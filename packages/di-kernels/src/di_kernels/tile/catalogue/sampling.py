"""The draw of tokens, and what comes before and after it."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import Kernel

ROW_BLOCKS = {"cluster": 8, "block": 1}
"""Thread blocks of a row of logits, by the name of the variant."""

_CLUSTER = {"sm_80": "a row's thread blocks add their bins up in a cluster's shared memory"}


def _draw(architecture: str, *, name: str, dtype: str) -> object:
    from di_kernels.tile import draw_kernels

    return getattr(draw_kernels, name)(dtype)


def _keep_tokens(architecture: str, *, dtype: str, blocks: int) -> object:
    from di_kernels.tile.filter_kernels import keep_tokens
    from di_kernels.tile.row_steps import RowShape

    return keep_tokens(RowShape(dtype, blocks))


def _log_probs(architecture: str, *, dtype: str, blocks: int) -> object:
    from di_kernels.tile.log_prob_kernels import log_probs
    from di_kernels.tile.row_steps import RowShape

    return log_probs(RowShape(dtype, blocks))


def _edit_logits(architecture: str, *, dtype: str) -> object:
    from di_kernels.tile.edit_kernels import edit_logits

    return edit_logits(dtype)


def _verify_drafts(architecture: str) -> object:
    from di_kernels.tile.verify_kernels import verify_drafts

    return verify_drafts()


def kernels() -> list[Kernel]:
    """Edits, filters, draw and log-probabilities for both dtypes of logits, and verification."""
    draws = [
        Kernel(
            f"draw_{name}_{dtype}",
            ("draw_tokens",),
            functools.partial(_draw, name=name, dtype=dtype),
        )
        for dtype in ("float32", "float64")
        for name in ("screen", "decide")
    ]
    rows = [
        Kernel(
            f"{op}_{dtype}_{name}",
            (op,),
            functools.partial(build, dtype=dtype, blocks=blocks),
            undeclared=_CLUSTER if blocks > 1 else {},
            is_guarded=True,
        )
        for op, build in (("filter_tokens", _keep_tokens), ("log_probs", _log_probs))
        for dtype in ("float32", "float64")
        for name, blocks in ROW_BLOCKS.items()
    ]
    edits = [
        Kernel(
            f"edit_logits_{dtype}", ("edit_logits",), functools.partial(_edit_logits, dtype=dtype)
        )
        for dtype in ("float32", "float64")
    ]
    return [*draws, *rows, *edits, Kernel("verify_drafts", ("verify_drafts",), _verify_drafts)]
