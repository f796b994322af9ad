"""Scores of cached entries for sparse attention: dense, and over candidate blocks.

score[t,j] = sum over heads h of dim^-0.5 * heads^-0.5 * w[t,h] * max(0, q[t,h] . k[j]) for the
entries a row sees, j < num_visible[t]; minus infinity beyond (DeepSeek-V4.1 reference
`inference/model.py`).
"""

from __future__ import annotations

import numpy as np
import torch

from di_kernels.checks import check_shape
from di_kernels.matmul import matmul_rows
from di_kernels.numerics import widen
from di_kernels.records import RecordPool
from di_kernels.registry import Op

_KEY_TILE = 128


def index_scores(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    pool: RecordPool,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
    *,
    max_entries: int,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Scores of every visible entry.

    Args:
        q: Rotated index queries, shape (num_rows, heads, head_dim), float32, float64 or bfloat16.
        head_weights: Shape (num_rows, heads), any of these dtypes.
        pool: Index keys.
        block_tables: Blocks of each request, shape (num_requests, max_blocks), integer.
        row_request: Request of each row, ascending, shape (num_rows,), int64.
        num_visible: Entries each row sees, shape (num_rows,), integer.
        max_entries: Columns of the result, at least the largest `num_visible`.
        batch_invariant: A row's bits do not depend on the other rows nor on `max_entries`.

    Returns:
        Shape (num_rows, max_entries), float32 (float64 for float64 queries).

    Raises:
        ValueError: The shapes do not match, or the block tables are too short for `max_entries`.
    """
    _check_rows(q, head_weights, row_request, num_visible)
    num_blocks = -(-max_entries // pool.entries_per_block)
    if block_tables.dim() != 2 or block_tables.shape[1] < num_blocks:
        raise ValueError(
            f"invalid shape of `block_tables`: expected (num_requests, at least {num_blocks}) "
            f"for {max_entries} entries, got: {tuple(block_tables.shape)}"
        )
    run = _INDEX_SCORES.select(
        q, layout=_key_layout(pool), heads=q.shape[1], head_dim=q.shape[2],
        entries_per_block=pool.entries_per_block,
    )  # fmt: skip
    return run(
        q, head_weights, pool, block_tables[:, :num_blocks], row_request, num_visible, max_entries,
        batch_invariant,
    )  # fmt: skip


def candidate_scores(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    pool: RecordPool,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
    candidate_blocks: torch.Tensor,
    *,
    block_size: int,
    max_entries: int,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Scores of the entries of each row's candidate blocks, side by side in their order.

    An entry's bits are those `index_scores` gives it.

    Args:
        q: As in `index_scores`.
        head_weights: As in `index_scores`.
        pool: As in `index_scores`.
        block_tables: As in `index_scores`.
        row_request: As in `index_scores`.
        num_visible: As in `index_scores`.
        candidate_blocks: Candidate blocks of each row, ascending, -1 at the end, shape (num_rows,
            num_candidates).
        block_size: Entries per candidate block.
        max_entries: At least the largest `num_visible`.
        batch_invariant: As in `index_scores`.

    Returns:
        Shape (num_rows, num_candidates * block_size); minus infinity where there is no visible
        entry.

    Raises:
        ValueError: The shapes do not match.
    """
    _check_rows(q, head_weights, row_request, num_visible)
    check_shape("candidate_blocks", candidate_blocks, (q.shape[0], None))
    run = _CANDIDATE_SCORES.select(
        q, layout=_key_layout(pool), heads=q.shape[1], head_dim=q.shape[2],
        entries_per_block=pool.entries_per_block, block_size=block_size,
    )  # fmt: skip
    return run(
        q, head_weights, pool, block_tables, row_request, num_visible, candidate_blocks, block_size,
        max_entries, batch_invariant,
    )  # fmt: skip


def _key_layout(pool: RecordPool) -> str:
    """Name of the layout of keys, as backends list it."""
    return f"{pool.format} records" + ("" if pool.is_in_units else ", not in 16-byte units")


def _check_rows(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
) -> None:
    check_shape("q", q, (None, None, None))
    check_shape("head_weights", head_weights, tuple(q.shape[:2]))
    check_shape("row_request", row_request, (q.shape[0],))
    check_shape("num_visible", num_visible, (q.shape[0],))


# --- Reference ---


def _index_scores(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    pool: RecordPool,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
    max_entries: int,
    batch_invariant: bool,
) -> torch.Tensor:
    """One product per request; one for all when they have equally many rows."""
    num_rows, heads, head_dim = q.shape
    wide_q = widen(q)
    weights = head_weights.to(wide_q.dtype) * (head_dim**-0.5 * heads**-0.5)
    if num_rows == 0 or max_entries == 0:
        return wide_q.new_empty(num_rows, max_entries)
    keys = pool.read_blocks(block_tables.clamp_min(0).flatten(), wide_q.dtype)
    keys = keys.view(block_tables.shape[0], -1, head_dim)[:, :max_entries]
    num_requests = keys.shape[0]
    counts = np.bincount(row_request.cpu().numpy(), minlength=num_requests).tolist()
    if batch_invariant:
        per_request = zip(
            wide_q.split_with_sizes(counts), weights.split_with_sizes(counts), keys, strict=True
        )
        scores = torch.cat([_tiled_scores(*request) for request in per_request])
    elif len(set(counts)) == 1:
        scores = _scores(
            torch.unflatten(wide_q, 0, (num_requests, -1)),
            torch.unflatten(weights, 0, (num_requests, -1)),
            keys,
        ).flatten(0, 1)
    else:
        per_request = zip(
            wide_q.split_with_sizes(counts), weights.split_with_sizes(counts), keys, strict=True
        )
        scores = torch.cat([_scores(q[None], w[None], k[None])[0] for q, w, k in per_request])
    columns = torch.arange(max_entries, device=q.device)
    return scores.masked_fill(columns >= num_visible.unsqueeze(1), -torch.inf)


def _scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Scores (requests, rows, entries) of `q` (requests, rows, heads, dim) and all keys."""
    dots = torch.bmm(q.flatten(1, 2), keys.transpose(1, 2)).relu()
    dots = torch.unflatten(dots, 1, q.shape[1:3])
    return torch.matmul(weights.unsqueeze(2), dots).squeeze(2)


def _tiled_scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The same for one request, in products of one shape and elementwise sums over the heads."""
    num_entries = keys.shape[0]
    padded = torch.nn.functional.pad(keys, (0, 0, 0, -num_entries % _KEY_TILE))
    tiles = [
        matmul_rows(q.flatten(0, 1), tile, batch_invariant=True)
        for tile in torch.split(padded, _KEY_TILE)
    ]
    dots = torch.unflatten(torch.cat(tiles, dim=1)[:, :num_entries].relu(), 0, q.shape[:2])
    total = weights[:, 0, None] * dots[:, 0]
    for head in range(1, q.shape[1]):
        total = total + weights[:, head, None] * dots[:, head]
    return total


def _candidate_scores(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    pool: RecordPool,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
    candidate_blocks: torch.Tensor,
    block_size: int,
    max_entries: int,
    batch_invariant: bool,
) -> torch.Tensor:
    """Dense scores, then the candidates' columns."""
    dense = index_scores(
        q, head_weights, pool, block_tables, row_request, num_visible, max_entries=max_entries,
        batch_invariant=batch_invariant,
    )  # fmt: skip
    offsets = torch.arange(block_size, device=q.device)
    entries = (candidate_blocks.unsqueeze(-1) * block_size + offsets).flatten(1)
    is_visible = (entries >= 0) & (entries < num_visible.unsqueeze(1))
    if max_entries == 0:
        return dense.new_full(entries.shape, -torch.inf)
    picked = dense.gather(1, entries.clamp(0, max_entries - 1).to(torch.int64))
    return picked.masked_fill(~is_visible, -torch.inf)


_INDEX_SCORES = Op("index_scores", _index_scores, determinism="row_invariant_on_request")
_CANDIDATE_SCORES = Op(
    "candidate_scores", _candidate_scores, determinism="row_invariant_on_request"
)
