"""`sparse_attention` by TileLang: views of the pools, the form for so many rows, the launches."""

from __future__ import annotations

import torch

from di_kernels.ops.rope import RopeRotation
from di_kernels.records import RecordPool
from di_kernels.tile.catalogue import kernel_for

ROTARY = 64
"""Channels of a head that rotate."""

_UNIT = 16
_TILE = 64
MOST_TILES = 10
"""Tiles of keys whose values by slices fit into shared memory together."""

_MOST_ROWS_BY_SLICES = 32


def sparse_attention(
    q: torch.Tensor,
    window: RecordPool,
    window_slots: torch.Tensor,
    selected: RecordPool | None,
    selected_slots: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
    rotation: RopeRotation | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; with `batch_invariant` one block works on a row."""
    num_rows, device = q.shape[0], q.device
    window_width = window_slots.shape[1]
    selected_width = 0 if selected_slots is None else selected_slots.shape[1]
    num_tiles = -(-window_width // _TILE) + -(-selected_width // _TILE)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if num_rows == 0 or num_tiles == 0:
        return out.zero_()
    if selected is None or selected_slots is None:
        selected, selected_slots = window, window_slots
    pools = (
        _units(window), _units(selected), window_slots.to(torch.int32).contiguous(),
        selected_slots.to(torch.int32).contiguous(),
    )  # fmt: skip
    places = (window_width, selected_width, *_places(window), *_places(selected))
    angles = (*_angles(rotation, device), int(rotation is not None))
    q, sink = q.contiguous(), sink.to(torch.float32)
    if not batch_invariant and goes_by_slices(num_rows, num_tiles):
        shape = (num_rows, num_tiles, 64)
        powers = torch.empty(*shape, _TILE, dtype=torch.bfloat16, device=device)
        peaks, totals = torch.empty(2, *shape, dtype=torch.float32, device=device).unbind()
        kernel_for(f"attention_scores_{selected.format}", device)(
            q, *pools, *angles, scale, *places, powers, peaks, totals
        )
        kernel_for(f"attention_values_{selected.format}", device)(
            *pools, sink, *angles, *places, powers, peaks, totals, out
        )
        return out
    blocks = min(num_rows, torch.cuda.get_device_properties(device).multi_processor_count)
    kernel_for(f"sparse_attention_{selected.format}", device)(
        q, *pools, sink, *angles, scale, blocks, *places, out
    )
    return out


def goes_by_slices(num_rows: int, num_tiles: int) -> bool:
    """Whether scores by tiles and values by slices are faster than a block for every row.

    Up to so many rows they were on an H200: with more, the second conversion of all records costs
    more than blocks side by side save.
    """
    return num_rows <= _MOST_ROWS_BY_SLICES and num_tiles <= MOST_TILES


def _angles(
    rotation: RopeRotation | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 tables, whose values float64 ones hold too; one row that nobody reads without."""
    if rotation is None:
        unused = torch.empty(1, ROTARY, dtype=torch.float32, device=device)
        return unused, unused
    cosines, sines = (table.to(torch.float32).contiguous() for table in rotation)
    return cosines, sines


def _units(pool: RecordPool) -> torch.Tensor:
    """The pool's buffer as rows of four words."""
    return pool.buffer.view(-1, _UNIT).view(torch.uint32)


def _places(pool: RecordPool) -> tuple[int, int, int]:
    """Entries per block, and block stride and section offset in units."""
    return (pool.entries_per_block, pool.buffer.stride(0) // _UNIT, pool.section_offset // _UNIT)
