"""Cache records: where an entry's bytes lie, and views that gather and scatter them.

A pool is a buffer of blocks. Slot n is entry n % E of block n // E, with E entries per block; a
flat ring is a pool with one entry per block. Per entry, with d the head size:

| format | bytes of an entry | layout inside a block's section |
|---|---|---|
| `mxfp8` | d codes, then d / 32 scale bytes (528 for d = 512) | one after the other |
| `nvfp4` | d / 2 packed codes, then d / 16 e4m3 scales (288 for d = 512) | one after the other |
| `index_mxfp4` | d / 2 codes and d / 32 scale bytes (68 for d = 128) | all codes, then all scales |
| `plain` | d values of the buffer's dtype | one after the other |

Source: DeepInfer 0.1.0 `cache_engine.py` (record contents, segregated index pages, sections of one
block side by side).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from di_kernels.checks import check_multiple
from di_kernels.formats import (
    MX_GROUP,
    NVFP4_GROUP,
    mxfp4_decode,
    mxfp4_encode,
    mxfp8_decode,
    mxfp8_encode,
    nvfp4_decode,
    nvfp4_encode,
)
from di_kernels.numerics import cast

RecordFormat = Literal["plain", "mxfp8", "nvfp4", "index_mxfp4"]
UNIT_BYTES = 16
"""Bytes that a GPU kernel moves at a time."""

_PACKED_FORMATS = ("mxfp8", "nvfp4", "index_mxfp4")


def code_bytes(record_format: RecordFormat, head_dim: int) -> int:
    """Bytes of an entry's codes, without its scales."""
    return head_dim if record_format == "mxfp8" else head_dim // 2


def record_bytes(record_format: RecordFormat, head_dim: int) -> int:
    """Bytes of one packed entry, codes and scales.

    Args:
        record_format: One of the packed formats.
        head_dim: Values of an entry, a multiple of 32.

    Raises:
        ValueError: `plain`, an unknown format, or another head size.
    """
    if record_format not in _PACKED_FORMATS:
        raise ValueError(
            f"invalid `record_format`: expected one of {', '.join(_PACKED_FORMATS)}, "
            f"got: {record_format}"
        )
    check_multiple("head_dim", head_dim, MX_GROUP)
    group = NVFP4_GROUP if record_format == "nvfp4" else MX_GROUP
    return code_bytes(record_format, head_dim) + head_dim // group


@dataclass(frozen=True, slots=True, eq=False)
class RecordPool:
    """A view of the entries one layer keeps in a buffer. Owns nothing; writers modify the buffer.

    Args:
        buffer: Packed formats: uint8, shape (num_blocks, block_stride). `plain`: any float dtype,
            shape (num_blocks, block_entries, head_dim), or (num_blocks, head_dim) with one entry
            per block.
        format: Layout of an entry.
        head_dim: Values of an entry.
        entries_per_block: E.
        section_offset: Where the layer's section starts in a block: bytes, or entries for `plain`.

    Raises:
        ValueError: The section does not fit into a block.
        TypeError: A packed format in a buffer that is not uint8.
    """

    buffer: torch.Tensor
    format: RecordFormat
    head_dim: int
    entries_per_block: int = 1
    section_offset: int = 0

    def __post_init__(self) -> None:
        if self.format == "plain":
            self._check_plain()
            return
        if self.buffer.dtype != torch.uint8:
            raise TypeError(
                f"invalid dtype of `buffer`: expected torch.uint8 for `{self.format}`, "
                f"got: {self.buffer.dtype}"
            )
        end = self.section_offset + self.section_bytes
        if self.buffer.dim() != 2 or self.buffer.shape[1] < end:
            raise ValueError(
                f"invalid shape of `buffer`: expected (num_blocks, at least {end}), "
                f"got: {tuple(self.buffer.shape)}"
            )

    def _check_plain(self) -> None:
        shape = tuple(self.buffer.shape)
        blocks = (shape[0], 1, *shape[1:]) if len(shape) == 2 else shape
        end = self.section_offset + self.entries_per_block
        if len(blocks) != 3 or blocks[1] < end or blocks[2] != self.head_dim:
            raise ValueError(
                f"invalid shape of `buffer`: expected (num_blocks, at least {end}, "
                f"{self.head_dim}), got: {shape}"
            )

    @property
    def num_slots(self) -> int:
        """Entries the pool holds."""
        return self.buffer.shape[0] * self.entries_per_block

    @property
    def section_bytes(self) -> int:
        """Bytes the section takes in a block (packed formats)."""
        return self.entries_per_block * record_bytes(self.format, self.head_dim)

    @property
    def is_in_units(self) -> bool:
        """Whether sections start, and interleaved entries lie, at multiples of 16 bytes."""
        is_plain = self.format == "plain"
        size = self.buffer.element_size()
        entry = self.head_dim * size if is_plain else record_bytes(self.format, self.head_dim)
        places = [self.buffer.storage_offset() * size, self.buffer.stride(0) * size]
        places.append(entry * (self.format != "index_mxfp4"))
        places.append(self.section_offset * (entry if is_plain else 1))
        is_aligned = not any(place % UNIT_BYTES for place in places)
        return is_aligned and self.buffer.is_contiguous()

    def read(self, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Entries of the slots.

        Args:
            slots: Any shape, integer; -1 gives an entry of zeros.
            dtype: Dtype of the result.

        Returns:
            Shape (*slots.shape, head_dim).
        """
        if self.num_slots == 0:
            return torch.zeros(*slots.shape, self.head_dim, dtype=dtype, device=slots.device)
        flat = slots.reshape(-1)
        present = flat.clamp_min(0)
        parts = [_gather(rows, present) for rows in self._parts()]
        entries = self._decode(parts, dtype).masked_fill_((flat < 0).unsqueeze(-1), 0)
        return entries.view(*slots.shape, self.head_dim)

    def read_blocks(self, block_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """All entries of the blocks, in order.

        Args:
            block_ids: Shape (num_blocks,), integer, none negative.
            dtype: Dtype of the result.

        Returns:
            Shape (num_blocks * entries_per_block, head_dim).
        """
        parts = [rows.index_select(0, block_ids).flatten(0, 1) for rows in self._parts()]
        return self._decode(parts, dtype)

    def write(self, slots: torch.Tensor, values: torch.Tensor) -> None:
        """Encodes and stores entries; modifies the buffer.

        Args:
            slots: Shape (num_rows,), integer, all different; -1 stores nothing.
            values: Shape (num_rows, head_dim), float32, float64 or bfloat16.
        """
        if slots.device.type == "cpu":
            is_stored = slots.numpy() >= 0
            if not is_stored.all():
                stored = torch.from_numpy(is_stored.nonzero()[0])
                slots, values = slots[stored], values[stored]
        for rows, part in zip(self._parts(), self._encode(values), strict=True):
            if slots.device.type == "cpu":
                _scatter(rows, slots, part)
            elif self.num_slots and len(slots):
                scatter_stored(rows, slots, part)

    def _parts(self) -> list[torch.Tensor]:
        """Views (num_blocks, E, width): of whole entries, or of codes and of scales."""
        if self.format == "plain":
            blocks = self.buffer.unsqueeze(1) if self.buffer.dim() == 2 else self.buffer
            return [blocks[:, self.section_offset : self.section_offset + self.entries_per_block]]
        widths = [record_bytes(self.format, self.head_dim)]
        if self.format == "index_mxfp4":
            codes = code_bytes(self.format, self.head_dim)
            widths = [codes, widths[0] - codes]
        views, start = [], self.section_offset
        for width in widths:
            end = start + width * self.entries_per_block
            views.append(
                torch.unflatten(self.buffer[:, start:end], 1, (self.entries_per_block, width))
            )
            start = end
        return views

    def _encode(self, values: torch.Tensor) -> list[torch.Tensor]:
        if self.format == "plain":
            return [cast(values, self.buffer.dtype)]
        if self.format == "mxfp8":
            codes, scale = mxfp8_encode(values)
        elif self.format == "nvfp4":
            codes, scale = nvfp4_encode(values)
        else:
            return list(mxfp4_encode(values))
        return [torch.cat((codes.view(torch.uint8), scale.view(torch.uint8)), dim=-1)]

    def _decode(self, parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        if self.format == "plain":
            return cast(parts[0], dtype)
        if self.format == "index_mxfp4":
            return mxfp4_decode(parts[0], parts[1], dtype)
        size = code_bytes(self.format, self.head_dim)
        codes, scale = parts[0][..., :size], parts[0][..., size:]
        if self.format == "mxfp8":
            return mxfp8_decode(codes.view(torch.float8_e4m3fn), scale, dtype)
        return nvfp4_decode(codes, scale.view(torch.float8_e4m3fn), dtype)


def _flat_rows(rows: torch.Tensor) -> torch.Tensor | None:
    """Rows of all blocks as one matrix; None when a block is not a whole number of rows.

    Row n of the matrix lies n rows after the section's start, so the rows between two sections
    belong to others.
    """
    num_blocks, entries, width = rows.shape
    stride = rows.stride(0)
    if num_blocks == 0 or stride % width:
        return None
    return rows.as_strided(((num_blocks - 1) * (stride // width) + entries, width), (width, 1))


def _row_numbers(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    entries, width = rows.shape[1:]
    rows_per_block = rows.stride(0) // width
    if rows_per_block == entries:
        return slots
    return slots // entries * rows_per_block + slots % entries


def _gather(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows (num_slots, width) of a view (num_blocks, E, width)."""
    flat = _flat_rows(rows)
    if flat is None:
        return rows[slots // rows.shape[1], slots % rows.shape[1]]
    return flat.index_select(0, _row_numbers(rows, slots))


def _scatter(rows: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    flat = _flat_rows(rows)
    if flat is None:
        rows[slots // rows.shape[1], slots % rows.shape[1]] = values
    else:
        flat.index_copy_(0, _row_numbers(rows, slots).to(torch.int64), values)


def scatter_stored(rows: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Stores rows whose slot is not -1 without waiting for their number.

    The others store the value of the first that stores once more. Where there is none, an entry is
    overwritten with itself.
    """
    is_stored = slots >= 0
    first = is_stored.int().argmax()
    source = torch.where(is_stored, torch.arange(len(slots), device=slots.device), first)
    target = slots[source].clamp_min(0)
    _scatter(rows, target, torch.where(is_stored.any(), values[source], _gather(rows, target)))
