"""Index scores, dense and over candidate blocks."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import Kernel

BLOCKS_PER_SM = {1: 5, 2: 4, 4: 4, 6: 4, 8: 3}
"""Rows of a request that share unpacked keys, ascending; thread blocks of a multiprocessor."""


def scores_name(rows_per_block: int, *, is_candidate: bool) -> str:
    """Name of the kernel."""
    return "candidate_scores" if is_candidate else f"index_scores_{rows_per_block}"


def _scores(architecture: str, *, rows_per_block: int, is_candidate: bool) -> object:
    from di_kernels.tile.index import score_keys

    # A fifth block would leave too few registers on sm_80.
    blocks = min(BLOCKS_PER_SM[rows_per_block], 4 if architecture == "sm_80" else 5)
    return score_keys(
        rows_per_block, blocks, is_candidate=is_candidate, has_async_proxy=architecture != "sm_80"
    )


def _kernel(rows_per_block: int, *, is_candidate: bool) -> Kernel:
    return Kernel(
        scores_name(rows_per_block, is_candidate=is_candidate),
        ("candidate_scores" if is_candidate else "index_scores",),
        functools.partial(_scores, rows_per_block=rows_per_block, is_candidate=is_candidate),
        has_tensor_core=True,
        is_guarded=True,
    )


def kernels() -> list[Kernel]:
    """Dense for each number of rows; candidates, which every row has of its own, for one."""
    dense = [_kernel(rows, is_candidate=False) for rows in BLOCKS_PER_SM]
    return [*dense, _kernel(1, is_candidate=True)]
