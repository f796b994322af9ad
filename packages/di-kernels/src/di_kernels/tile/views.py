"""Views that kernels read rows, slots and pools through, without copies where the layout allows."""

from __future__ import annotations

import functools

import torch

from di_kernels.records import UNIT_BYTES, RecordPool, code_bytes, record_bytes


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, contiguous and at an address that 16-byte loads accept."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % UNIT_BYTES else tensor


def row_units(rows: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Rows (num_rows, ..., size) as units of 16 bytes, and the units from row to row.

    Columns of a wider matrix are taken where they lie; other strides are copied. There must be a
    row.
    """
    per_unit = UNIT_BYTES // rows.element_size()
    width = rows[0].numel()
    stride = rows.stride(0)
    is_unit_rows = rows[0].is_contiguous() and not stride % per_unit and stride >= width
    if not is_unit_rows or rows.data_ptr() % UNIT_BYTES:
        rows, stride = aligned(rows), width
    units = ((rows.shape[0] - 1) * stride + width) // per_unit
    return rows.as_strided((units, per_unit), (per_unit, 1)), stride // per_unit


def words_of(numbers: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Slots or row numbers as 32-bit words, and the words from number to number.

    The upper words of 64-bit numbers are not read: numbers stay below 2^31.
    """
    numbers = numbers.contiguous().view(-1)
    if numbers.dtype == torch.int64:
        return numbers.view(torch.int32), 2
    return numbers.to(torch.int32), 1


def four_wide(table: torch.Tensor) -> torch.Tensor:
    """A float table as float32 units of four values."""
    return aligned(table.to(torch.float32)).view(-1, 4)


def constant(size: int, value: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Equal values, kept from call to call.

    Inside the capture of a graph they are made anew: its memory holds them in replays only.
    """
    make = torch.full if torch.cuda.is_current_stream_capturing() else _kept
    return make((size,), value, dtype=dtype, device=device)


_kept = functools.cache(torch.full)


def record_places(pool: RecordPool) -> tuple[int, ...]:
    """Entries per block; start and step of codes in units of a lane, of scale bytes in bytes."""
    codes, record = code_bytes(pool.format, pool.head_dim), record_bytes(pool.format, pool.head_dim)
    lane = codes // (pool.head_dim // 16)
    entries, start = pool.entries_per_block, pool.section_offset
    if pool.format == "index_mxfp4":
        places = (start // lane, codes // lane, start + entries * codes, record - codes)
    else:
        places = (start // lane, record // lane, start + codes, record)
    return entries, *places


def record_views(pool: RecordPool) -> tuple[torch.Tensor, torch.Tensor]:
    """The pool's blocks as units of a lane's codes, and as bytes."""
    words = code_bytes(pool.format, pool.head_dim) // (pool.head_dim // 16) // 4
    blocks = pool.buffer.shape[0]
    return pool.buffer.view(torch.uint32).view(blocks, -1, words), pool.buffer


def plain_places(pool: RecordPool) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """A `plain` pool as words in units of 16 bytes; entries, units from block to block, start."""
    size = pool.buffer.element_size()
    entry = pool.head_dim * size // UNIT_BYTES
    stride = pool.buffer.stride(0) * size // UNIT_BYTES
    units = pool.buffer.view(-1).view(torch.uint32).view(-1, 4)
    return units, (pool.entries_per_block, stride, pool.section_offset * entry)
