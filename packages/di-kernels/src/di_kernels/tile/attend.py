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
_MAX_PARTS = 10
_MOST_ROWS_IN_PARTS = 32


def parts_for(num_rows: int, num_tiles: int, multiprocessors: int) -> int:
    """Parts of a row's keys: as many as there are multiprocessors for, of equal size.

    Merging two parts costs what they save, and many rows fill the device by themselves.
    """
    wanted = max(1, min(_MAX_PARTS, num_tiles, multiprocessors // max(1, num_rows)))
    part_tiles = -(-num_tiles // wanted)
    parts = -(-num_tiles // part_tiles)
    return parts if parts > 2 and num_rows <= _MOST_ROWS_IN_PARTS else 1


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
    """Arguments as the op passes them; with `batch_invariant` a row's keys are never split."""
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
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    parts = 1 if batch_invariant else parts_for(num_rows, num_tiles, sms)
    if parts > 1:
        shape = (parts, num_rows, 64)
        sums = torch.empty(*shape, 512, dtype=torch.float32, device=device)
        peaks, totals = torch.empty(2, *shape, dtype=torch.float32, device=device).unbind()
        kernel_for(f"attention_parts_{selected.format}", device)(
            q, *pools, *angles, scale, -(-num_tiles // parts), *places, sums, peaks, totals
        )
        kernel_for("merge_parts", device)(sums, peaks, totals, sink, *angles, out)
        return out
    blocks = min(num_rows, sms)
    kernel_for(f"sparse_attention_{selected.format}", device)(
        q, *pools, sink, *angles, scale, blocks, *places, out
    )
    return out


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
