"""`select_topk` and `select_candidate_blocks` by TileLang: the choice of variant, the launch."""

from __future__ import annotations

import torch

from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.selection import BLOCK_ENTRIES, CLUSTER_ENTRIES, selection_name
from di_kernels.tile.views import words_of

_FEW_ENTRIES = 4096
# By the entries of a candidate: with more to read for each, a cluster pays for longer.
_FEW_ROWS = {1: 16, 8: 64}
# Rows whose clusters of eight do not run at once on an H200, while those of six do.
_ROWS_OF_SIX = (16, 17)


def variant_for(num_rows: int, num_candidates: int, block_size: int) -> str:
    """Who selects a row: one block, a cluster, or a cluster that reads the scores again.

    A cluster is faster where all rows' clusters run at once, one block does more rows per second.
    """
    if num_candidates > CLUSTER_ENTRIES:
        return "long"
    if block_size == 1 and num_rows in _ROWS_OF_SIX and num_candidates > BLOCK_ENTRIES:
        return "six"
    is_few = num_rows <= _FEW_ROWS[block_size] and num_candidates > _FEW_ENTRIES
    return "cluster" if num_candidates > BLOCK_ENTRIES or is_few else "block"


def select_topk(scores: torch.Tensor, num_visible: torch.Tensor, k: int) -> torch.Tensor:
    """Arguments as the op passes them: more columns than k."""
    return _select(scores, num_visible, k, 1)


def select_candidate_blocks(
    scores: torch.Tensor, num_visible: torch.Tensor, block_size: int, num_blocks: int
) -> torch.Tensor:
    """Arguments as the op passes them; maxima of blocks never reach memory."""
    return _select(scores, num_visible, num_blocks, block_size)


def _select(
    scores: torch.Tensor, num_visible: torch.Tensor, k: int, block_size: int
) -> torch.Tensor:
    num_rows, num_entries = scores.shape
    chosen = torch.empty(num_rows, k, dtype=torch.int64, device=scores.device)
    if num_rows == 0:
        return chosen
    if scores.stride(1) != 1:
        scores = scores.contiguous()
    variant = variant_for(num_rows, -(-num_entries // block_size), block_size)
    name = selection_name(scores.dtype, block_size, variant)
    bits = scores.view(torch.uint32 if scores.dtype == torch.float32 else torch.uint16)
    kernel_for(name, scores.device)(bits, *words_of(num_visible), chosen)
    return chosen
