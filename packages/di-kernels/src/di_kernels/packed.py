"""Weights whose power-of-two scales lie four to a word, as tensor cores of SM100 read them.

Codes stay as the checkpoint has them. The scale bytes of 128 columns of a row are one 32-bit word,
the first group in the lowest byte; words of neighbouring rows are neighbours in memory, and each
column of words starts at a multiple of 16 bytes (DeepGEMM 2.8.2, `docs/scaling-factor-format.md`,
"pre-transformed" layout with granularity 1 x 32).

| field | MXFP8 | MXFP4 |
|---|---|---|
| `codes` | (rows, columns), float8_e4m3fn | (matrices, rows, columns / 2), int8 |
| `scales` | (rows, columns / 128), int32 | (matrices, rows, columns / 128), int32 |

Strides of `scales`: 1 between rows, rows rounded up to 4 between columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from di_kernels.checks import check_multiple
from di_kernels.formats import MX_GROUP, mxfp4_decode, mxfp8_decode
from di_kernels.weights import MXFP8_TILE, MXFP4Weight, MXFP8Weight

PACKED_COLUMNS = 4 * MX_GROUP
"""Columns whose scales share a word."""

_ROW_ALIGNMENT = 4


@dataclass(frozen=True, slots=True, eq=False)
class MXFP8PackedWeight:
    """An MXFP8 matrix with packed scales. Made by `mxfp8_to_packed_scales`.

    Args:
        codes: Shape (rows, columns), float8_e4m3fn.
        scales: Shape (rows, columns / 128), int32, columns first.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Logical shape (rows, columns)."""
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        """Where the codes lie."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def to(self, device: torch.device | str) -> MXFP8PackedWeight:
        """The same weight on another device."""
        return MXFP8PackedWeight(self.codes.to(device), columns_first(self.scales.to(device)))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values, shape `shape`."""
        return mxfp8_decode(self.codes, unpack_scales(self.scales), dtype)


@dataclass(frozen=True, slots=True, eq=False)
class MXFP4PackedWeight:
    """MXFP4 matrices with packed scales. Made by `mxfp4_to_packed_scales`.

    Args:
        codes: Shape (..., rows, columns / 2), int8, the even column in the low nibble.
        scales: Shape (..., rows, columns / 128), int32, columns first.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Logical shape (..., rows, columns)."""
        return torch.Size((*self.codes.shape[:-1], 2 * self.codes.shape[-1]))

    @property
    def device(self) -> torch.device:
        """Where the codes lie."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def __getitem__(self, index: int) -> MXFP4PackedWeight:
        """The matrix of one expert, sharing memory."""
        return MXFP4PackedWeight(self.codes[index], self.scales[index])

    def to(self, device: torch.device | str) -> MXFP4PackedWeight:
        """The same weight on another device."""
        return MXFP4PackedWeight(self.codes.to(device), columns_first(self.scales.to(device)))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values, shape `shape`."""
        return mxfp4_decode(self.codes, unpack_scales(self.scales), dtype)


PackedWeight = MXFP8PackedWeight | MXFP4PackedWeight
"""A weight with packed scales."""


def mxfp8_to_packed_scales(weight: MXFP8Weight) -> MXFP8PackedWeight:
    """Packs the scales of an MXFP8 matrix; codes are shared, values do not change.

    A 32 x 32 tile's byte is repeated for its rows: scales grow from 1/1,024 to 1/32 byte a weight.

    Raises:
        ValueError: The columns are no multiple of 128.
    """
    check_multiple("columns", weight.shape[1], PACKED_COLUMNS)
    scale = weight.scale.view(torch.uint8).repeat_interleave(MXFP8_TILE, 0)[: weight.shape[0]]
    return MXFP8PackedWeight(weight.data, pack_scales(scale))


def mxfp4_to_packed_scales(weight: MXFP4Weight) -> MXFP4PackedWeight:
    """Packs the scales of MXFP4 matrices; codes are shared, values do not change.

    Raises:
        ValueError: The columns are no multiple of 128.
    """
    check_multiple("columns", weight.shape[-1], PACKED_COLUMNS)
    return MXFP4PackedWeight(
        weight.data.view(torch.int8), pack_scales(weight.scale.view(torch.uint8))
    )


def pack_scales(scale: torch.Tensor) -> torch.Tensor:
    """Scale bytes in words, columns first.

    Args:
        scale: Shape (..., rows, columns / 32), uint8, columns a multiple of 128.

    Returns:
        Shape (..., rows, columns / 128), int32.
    """
    return columns_first(scale.contiguous().view(torch.int32))


def unpack_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scale bytes of each row, shape (..., rows, columns / 32), uint8."""
    # A single column counts as contiguous whatever its stride, which a view of bytes does not take.
    return scales.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def columns_first(words: torch.Tensor) -> torch.Tensor:
    """The same words with rows as neighbours, each column at a multiple of 16 bytes."""
    target = empty_scales(words.shape[:-1], PACKED_COLUMNS * words.shape[-1], words.device)
    return target.copy_(words)


def empty_scales(rows: tuple[int, ...], columns: int, device: torch.device | str) -> torch.Tensor:
    """Unset packed scales.

    Args:
        rows: Leading sizes, the rows last.
        columns: Columns of the weight or of the rows, a multiple of 128.
        device: Where.
    """
    *leading, num_rows = rows
    aligned = -(-num_rows // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    shape = (*leading, columns // PACKED_COLUMNS, aligned)
    buffer = torch.empty(shape, dtype=torch.int32, device=device)
    return buffer.transpose(-1, -2)[..., :num_rows, :]
