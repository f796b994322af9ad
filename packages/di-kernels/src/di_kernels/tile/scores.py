"""`index_scores` and `candidate_scores` by TileLang: views, how the work is cut, the launch.

No value is read from the device, so a captured graph serves any block tables, requests and numbers
of visible entries.
"""

from __future__ import annotations

import torch

from di_kernels.records import UNIT_BYTES, RecordPool
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.index import BLOCKS_PER_SM, scores_name
from di_kernels.tile.views import aligned, words_of

_TILE = 64
_MOST_RUNS = 128
# Rows of scores start at multiples of 32 bytes: the selection then reads 16 bytes at a time.
_ROW_ALIGNMENT = 8
# The kernel holds keys times 2^-16 (`index_source`).
_KEY_SCALE = 2.0**16


def group_rows_for(num_rows: int, num_requests: int) -> int:
    """Rows of a request that share unpacked keys: the average, decided without the device."""
    return min(max(BLOCKS_PER_SM), max(1, -(-num_rows // max(1, num_requests))))


def part_tiles_for(num_tiles: int, num_groups: int, resident: int, most: int) -> int:
    """Tiles per thread block, at most `most`: so many that all blocks run at once."""
    parts = max(1, resident // max(1, num_groups))
    return max(1, min(most, -(-num_tiles // parts)))


def index_scores(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    pool: RecordPool,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
    max_entries: int,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; bits are the same with and without `batch_invariant`."""
    group_rows = group_rows_for(q.shape[0], block_tables.shape[0])
    return _scores(
        q, head_weights, pool, block_tables, row_request, num_visible, None, max_entries, group_rows
    )


def candidate_scores(
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
    """Arguments as the op passes them; every entry has the bits that `index_scores` gives it."""
    num_places = candidate_blocks.shape[1] * block_size
    return _scores(
        q, head_weights, pool, block_tables, row_request, num_visible, candidate_blocks,
        num_places, 1,
    )  # fmt: skip


def _scores(
    q: torch.Tensor,
    head_weights: torch.Tensor,
    pool: RecordPool,
    block_tables: torch.Tensor,
    row_request: torch.Tensor,
    num_visible: torch.Tensor,
    candidate_blocks: torch.Tensor | None,
    num_places: int,
    group_rows: int,
) -> torch.Tensor:
    num_rows, heads, dim = q.shape
    width = -(-num_places // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    scores = torch.empty(num_rows, width, dtype=torch.float32, device=q.device)[:, :num_places]
    if scores.numel() == 0 or block_tables.numel() == 0:
        return scores.fill_(-torch.inf)
    run_places = _TILE if candidate_blocks is None else 8
    rows_per_block = next(rows for rows in BLOCKS_PER_SM if rows >= group_rows)
    tables, table_step = _table_words(block_tables)
    multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
    part_tiles = part_tiles_for(
        -(-num_places // _TILE), -(-num_rows // group_rows),
        BLOCKS_PER_SM[rows_per_block] * multiprocessors, _MOST_RUNS * run_places // _TILE,
    )  # fmt: skip
    words = words_of(num_visible)
    name = scores_name(rows_per_block, is_candidate=candidate_blocks is not None)
    kernel_for(name, q.device)(
        aligned(q), _weight_words(head_weights),
        pool.buffer.view(-1, UNIT_BYTES).view(torch.uint32), tables, table_step,
        *words_of(row_request), *words,
        *(words if candidate_blocks is None else words_of(candidate_blocks)),
        pool.entries_per_block.bit_length() - 1, pool.buffer.stride(0) // UNIT_BYTES,
        pool.section_offset // UNIT_BYTES, part_tiles, group_rows,
        dim**-0.5 * heads**-0.5 * _KEY_SCALE, scores,
    )  # fmt: skip
    return scores


def _table_words(tables: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Block tables as int32 words, their rows wherever they lie."""
    if tables.dtype == torch.int64 and tables.stride(1) == 1:
        return tables.view(torch.int32), 2
    tables = tables.to(torch.int32)
    return (tables if tables.stride(1) == 1 else tables.contiguous()), 1


def _weight_words(weights: torch.Tensor) -> torch.Tensor:
    """Weights as words of 16 bits: one for bfloat16, two for float32."""
    if weights.dtype != torch.bfloat16:
        weights = weights.to(torch.float32)
    return weights.contiguous().view(torch.uint16)
