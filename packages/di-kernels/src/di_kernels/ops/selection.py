"""Which entries a query attends to: top-k, candidate blocks, and the arithmetic between numberings.

Rules that no source fixes and this package does: of equal scores the lower index wins; NaN and
minus infinity rank lowest, and a visible entry is selected whatever its score while there is room.
"""

from __future__ import annotations

import torch

from di_kernels.checks import check_shape
from di_kernels.registry import Op


def select_topk(scores: torch.Tensor, num_visible: torch.Tensor, k: int) -> torch.Tensor:
    """The k best visible entries of each row.

    Args:
        scores: Shape (num_rows, num_entries), float; columns from `num_visible` on are ignored.
        num_visible: Shape (num_rows,), integer.
        k: Entries to select.

    Returns:
        Entry numbers, ascending, -1 at the end, shape (num_rows, k), int64.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("num_visible", num_visible, (scores.shape[0],))
    if scores.shape[1] <= k:
        return select_all(num_visible, k)
    return _SELECT_TOPK.select(scores, k=k)(scores, num_visible, k)


def select_all(num_visible: torch.Tensor, k: int) -> torch.Tensor:
    """The selection when no row sees more than k entries: all of them. No scores are needed.

    Args:
        num_visible: At most k each, shape (num_rows,), integer.
        k: Columns of the result.

    Returns:
        Entry numbers, ascending, -1 at the end, shape (num_rows, k), int64.
    """
    entries = torch.arange(k, device=num_visible.device)
    return torch.where(entries < num_visible.unsqueeze(1), entries, -1)


def select_candidate_blocks(
    scores: torch.Tensor, num_visible: torch.Tensor, *, block_size: int, num_blocks: int
) -> torch.Tensor:
    """The best blocks of each row by their best visible entry, and always the newest block.

    Source: DeepSeek-V4.1 reference `inference/model.py` and DeepInfer 0.1.0 `candidate_blocks.py`.

    Args:
        scores: Shape (num_rows, num_entries), float; columns from `num_visible` on are ignored.
        num_visible: Shape (num_rows,), integer.
        block_size: Entries per block.
        num_blocks: Blocks to select.

    Returns:
        Block numbers, ascending, -1 at the end, shape (num_rows, num_blocks), int64.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("num_visible", num_visible, (scores.shape[0],))
    num_visible_blocks = (num_visible + block_size - 1) // block_size
    if scores.shape[1] <= block_size * num_blocks:
        return select_all(num_visible_blocks, num_blocks)
    run = _SELECT_CANDIDATE_BLOCKS.select(scores, block_size=block_size, num_blocks=num_blocks)
    return run(scores, num_visible, block_size, num_blocks)


def candidate_visible(
    candidate_blocks: torch.Tensor, num_visible: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Visible entries among each row's candidates, shape (num_rows,).

    They are the first ones in candidate order, because only the last block can be partly visible.
    """
    left = num_visible.unsqueeze(1) - candidate_blocks * block_size
    return torch.where(candidate_blocks >= 0, left.clamp(0, block_size), 0).sum(1)


def expand_candidates(
    compact: torch.Tensor, candidate_blocks: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Entry numbers of positions among the candidates.

    Args:
        compact: Positions in `candidate_scores`' columns, shape (num_rows, k); -1 stays -1.
        candidate_blocks: Shape (num_rows, num_candidates).
        block_size: Entries per block.

    Returns:
        Shape (num_rows, k), int64.
    """
    position = compact.clamp_min(0).to(torch.int64)
    block = candidate_blocks.gather(1, position // block_size)
    return torch.where(compact >= 0, block * block_size + position % block_size, -1)


def entries_to_slots(
    entries: torch.Tensor,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    entries_per_block: int,
) -> torch.Tensor:
    """Slots of a request's entries in the pool of their layer.

    Args:
        entries: Entry numbers, shape (num_rows, k), integer; -1 stays -1.
        block_tables: Blocks of each request, shape (num_requests, max_blocks), integer.
        row_request: Request of each row, shape (num_rows,), int64.
        entries_per_block: Entries per block.

    Returns:
        Shape (num_rows, k), int64.
    """
    entry = entries.clamp_min(0).to(torch.int64)
    if block_tables.shape[1] == 0:
        return torch.full_like(entry, -1)
    block = block_tables[row_request].gather(1, entry // entries_per_block).to(torch.int64)
    return torch.where(entries >= 0, block * entries_per_block + entry % entries_per_block, -1)


# --- Reference ---


def _visible_scores(scores: torch.Tensor, num_visible: torch.Tensor) -> torch.Tensor:
    columns = torch.arange(scores.shape[1], device=scores.device)
    is_hidden = (columns >= num_visible.unsqueeze(1)) | scores.isnan()
    return scores.masked_fill(is_hidden, -torch.inf)


def _select_topk(scores: torch.Tensor, num_visible: torch.Tensor, k: int) -> torch.Tensor:
    """Stable descending sort: ties stay in index order, hidden entries behind visible ones."""
    ranked = torch.sort(_visible_scores(scores, num_visible), dim=1, descending=True, stable=True)
    best = ranked.indices[:, :k]
    beyond = scores.shape[1]
    ascending = best.masked_fill(best >= num_visible.unsqueeze(1), beyond).sort(dim=1).values
    return ascending.masked_fill(ascending == beyond, -1)


def _select_candidate_blocks(
    scores: torch.Tensor, num_visible: torch.Tensor, block_size: int, num_blocks: int
) -> torch.Tensor:
    """Top-k of block maxima with the newest block above every finite score."""
    visible = _visible_scores(scores, num_visible)
    padding = -visible.shape[1] % block_size
    visible = torch.nn.functional.pad(visible, (0, padding), value=-torch.inf)
    maxima = torch.unflatten(visible, 1, (-1, block_size)).amax(2)
    maxima = maxima.clamp_max(torch.finfo(maxima.dtype).max)
    newest = (num_visible - 1).div(block_size, rounding_mode="floor").unsqueeze(1)
    blocks = torch.arange(maxima.shape[1], device=scores.device)
    maxima = maxima.masked_fill(blocks == newest, torch.inf)
    return _select_topk(maxima, (num_visible + block_size - 1) // block_size, num_blocks)


_SELECT_TOPK = Op("select_topk", _select_topk, is_differentiable=False)
_SELECT_CANDIDATE_BLOCKS = Op(
    "select_candidate_blocks", _select_candidate_blocks, is_differentiable=False
)
