"""The draw of tokens, and what comes before and after it."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import Kernel

ROW_BLOCKS = {"cluster": 8, "block": 1}
"""Thread blocks of a row of logits, by the name of the variant."""

_CLUSTER = {"sm_80": "a row's thread blocks meet in a cluster's shared memory"}
_LARGE_CLUSTER = {**_CLUSTER, "sm_120a": "a block's part of a row of float64 takes 128 KiB"}


def _draw_tokens(architecture: str, *, dtype: str, blocks: int) -> object:
    from di_kernels.tile.draw_kernels import draw_tokens
    from di_kernels.tile.row_steps import RowShape

    return draw_tokens(RowShape(dtype, blocks))


def _keep_tokens(architecture: str, *, dtype: str, blocks: int) -> object:
    from di_kernels.tile.filter_kernels import keep_tokens
    from di_kernels.tile.row_steps import RowShape

    return keep_tokens(RowShape(dtype, blocks))


def _log_probs(architecture: str, *, dtype: str, blocks: int) -> object:
    from di_kernels.tile.log_prob_kernels import log_probs
    from di_kernels.tile.row_steps import RowShape

    return log_probs(RowShape(dtype, blocks))


def _ratio(architecture: str, *, name: str, dtype: str, blocks: int) -> object:
    from di_kernels.tile import ratio_kernels
    from di_kernels.tile.row_steps import RowShape

    shape = RowShape(dtype, blocks)
    if name == "draft_laws":
        return ratio_kernels.draft_laws(shape)
    # On sm_120a 128 registers of a thread do not do.
    blocks_per_sm = 2 if shape.is_shared and architecture != "sm_120a" else 1
    return ratio_kernels.decide_drafts(shape, blocks_per_sm)


def _undeclared(dtype: str, blocks: int) -> dict[str, str]:
    """Architectures without the kernels of a row's shape, with the reason."""
    if blocks == 1:
        return {}
    return _LARGE_CLUSTER if dtype == "float64" else _CLUSTER


def _edit_logits(architecture: str, *, dtype: str) -> object:
    from di_kernels.tile.edit_kernels import edit_logits

    return edit_logits(dtype)


def _verify_drafts(architecture: str) -> object:
    from di_kernels.tile.verify_kernels import verify_drafts

    return verify_drafts()


def kernels() -> list[Kernel]:
    """Edits, filters, draw and log-probabilities for both dtypes of logits, and verification."""
    rows = [
        Kernel(
            f"{op}_{dtype}_{name}",
            (op,),
            functools.partial(build, dtype=dtype, blocks=blocks),
            undeclared=_undeclared(dtype, blocks),
            is_guarded=True,
        )
        for op, build in (
            ("draw_tokens", _draw_tokens),
            ("filter_tokens", _keep_tokens),
            ("log_probs", _log_probs),
        )
        for dtype in ("float32", "float64")
        for name, blocks in ROW_BLOCKS.items()
    ]
    edits = [
        Kernel(
            f"edit_logits_{dtype}", ("edit_logits",), functools.partial(_edit_logits, dtype=dtype)
        )
        for dtype in ("float32", "float64")
    ]
    ratios = [
        Kernel(
            f"{name}_{dtype}_{shape}",
            ("verify_drafts_by_ratio",),
            functools.partial(_ratio, name=name, dtype=dtype, blocks=blocks),
            undeclared=_undeclared(dtype, blocks),
            is_guarded=True,
        )
        for name in ("draft_laws", "decide_drafts")
        for dtype in ("float32", "float64")
        for shape, blocks in ROW_BLOCKS.items()
    ]
    verification = Kernel("verify_drafts", ("verify_drafts",), _verify_drafts)
    return [*rows, *edits, verification, *ratios]
