"""Weights in tensor-core fragment order: a load-time re-layout, exact both ways.

The order is that of the first operand of `wgmma m64nNk16` and of `mma m16n8k16` (PTX ISA, register
fragments), so a thread loads 16 bytes of shared memory and has what it multiplies. A matrix is cut
into blocks of 64 rows x 64 columns. In a block, thread = 32 * warp + 4 * g + t holds rows
16 * warp + g and + 8, and of every 16 columns 2t, 2t + 1, 2t + 8, 2t + 9.

| format | codes of a block | scales of a block |
|---|---|---|
| MXFP4 | 512 words: thread x 4; word s: columns 16 s .. 16 s + 15 | 128 bytes + 126: warp x g x 4 |
| MXFP8 | 1024 words: half of the columns x thread x 4 | 8 words: one per warp, 4 of zeros |

The four scale bytes of MXFP4 are group 0 row g, group 0 row g + 8, group 1 row g, group 1 row
g + 8. A scale word of MXFP8 holds the bfloat16 multipliers of both halves of the columns, (byte +
120) << 7.

Bits of an MXFP4 word, in each 16-bit half (columns 2t and 2t + 1): row g, columns 0 .. 7: sign 15,
magnitude 8 .. 6; row g + 8: 14, 5 .. 3; row g, columns 8 .. 15: 9, 2 .. 0; row g + 8: 13, 12 .. 10.
Bits of an MXFP8 word: row g: sign 15, the others 10 .. 4; row g + 8: sign 14, 13 .. 11 and 3 .. 0.

MXFP4 keeps its size; MXFP8 grows by 28 bytes per 4,100, because the copies of a pipeline stage
must start at multiples of 128 bytes. The scale offsets are folded in because the
kernels multiply raw bits, which read 2^126 and 2^120 too small.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from di_kernels.checks import check_multiple
from di_kernels.errors import UnsupportedWeightError
from di_kernels.weights import MXFP4Weight, MXFP8Weight

BLOCK = 64
MXFP4_SCALE_OFFSET = 126
MXFP8_SCALE_OFFSET = 120
_LARGEST_SCALE_BYTE = 254
INTERLEAVE = 8
# Of an MXFP4 word: where bits 3 .. 0 of a code go, by (columns 8 .. 15?, row g + 8?).
_MXFP4_BITS = (((15, 8, 7, 6), (14, 5, 4, 3)), ((9, 2, 1, 0), (13, 12, 11, 10)))


@dataclass(frozen=True, slots=True, eq=False)
class MXFP4FragmentWeight:
    """MXFP4 matrices in fragment order. Made by `to_fragment_order`.

    Args:
        codes: Shape (matrices, rows / 64, columns / 64, 512), int32.
        scales: Shape (matrices, rows / 64, columns / 64, 32), int32.
        is_interleaved: Gate and up rows alternate by 8.
        is_single: Made of a matrix without a leading dimension.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    is_interleaved: bool = False
    is_single: bool = False

    @property
    def shape(self) -> torch.Size:
        """Logical shape (..., rows, columns)."""
        return logical_shape(self.codes, self.is_single)

    @property
    def device(self) -> torch.device:
        """Where the codes lie."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def to(self, device: torch.device | str) -> MXFP4FragmentWeight:
        """The same weight on another device."""
        return MXFP4FragmentWeight(
            self.codes.to(device), self.scales.to(device), self.is_interleaved, self.is_single
        )

    def __getitem__(self, index: int) -> MXFP4FragmentWeight:
        """The matrix of one expert, sharing memory."""
        part = slice(index, index + 1)
        return MXFP4FragmentWeight(self.codes[part], self.scales[part], self.is_interleaved, True)

    def checkpoint_order(self) -> MXFP4Weight:
        """The weight this was made of, bit for bit."""
        matrices, row_blocks, blocks, _ = self.codes.shape
        words = self.codes.to(torch.int64).view(matrices, row_blocks, blocks, 4, 8, 4, 4)
        codes = words.new_zeros((*words.shape, 2, 2, 2))
        for (column, row, half), bits in _mxfp4_places():
            for source, target in bits:
                codes[..., column, row, half] |= ((words >> target) & 1) << source
        # (e, R, B, w, g, t, s, column, row, half)
        # -> rows (R, w, row, g), columns (B, s, column, t, half)
        codes = codes.permute(0, 1, 3, 8, 4, 2, 6, 7, 5, 9).reshape(
            matrices, row_blocks * BLOCK, blocks * BLOCK
        )
        packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        scales = self.scales.view(torch.uint8).view(matrices, row_blocks, blocks, 4, 8, 2, 2)
        scales = scales.permute(0, 1, 3, 6, 4, 2, 5).reshape(
            matrices, row_blocks * BLOCK, blocks * 2
        )
        scales = scales - MXFP4_SCALE_OFFSET
        if self.is_interleaved:
            order = interleaved_rows(packed.shape[1], packed.device).argsort()
            packed, scales = packed[:, order], scales[:, order]
        if self.is_single:
            packed, scales = packed[0], scales[0]
        return MXFP4Weight(packed.contiguous(), scales.contiguous())

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values in the rows' original order, shape `shape`."""
        return self.checkpoint_order().dequantize(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class MXFP8FragmentWeight:
    """An MXFP8 matrix in fragment order, or several of equal shape stacked by rows.

    Args:
        codes: Shape (rows / 64, columns / 64, 1024), int32.
        scales: Shape (rows / 64, columns / 64, 8), int32.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Logical shape (rows, columns)."""
        return torch.Size((self.codes.shape[0] * BLOCK, self.codes.shape[1] * BLOCK))

    @property
    def device(self) -> torch.device:
        """Where the codes lie."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def to(self, device: torch.device | str) -> MXFP8FragmentWeight:
        """The same weight on another device."""
        return MXFP8FragmentWeight(self.codes.to(device), self.scales.to(device))

    def checkpoint_order(self) -> MXFP8Weight:
        """The weight this was made of, bit for bit."""
        row_blocks, blocks, _ = self.codes.shape
        words = self.codes.to(torch.int64).view(row_blocks, blocks, 2, 4, 8, 4, 2, 2)
        data = words.new_zeros((*words.shape, 2, 2))
        for half in range(2):
            lane = words >> (16 * half)
            data[..., 0, half] = (lane >> 8 & 0x80) | (lane >> 4 & 0x7F)
            data[..., 1, half] = (lane >> 7 & 0x80) | (lane >> 7 & 0x70) | (lane & 0xF)
        # (R, B, k32, w, g, t, k16, k8, row, half)
        # -> rows (R, w, row, g), columns (B, k32, k16, k8, t, half)
        data = data.permute(0, 3, 8, 4, 1, 2, 6, 7, 5, 9).reshape(self.shape)
        halves = self.scales.view(torch.int16).view(row_blocks, blocks, 8, 2)[:, :, :4:2]
        scales = (halves >> 7) - MXFP8_SCALE_OFFSET
        scales = scales.permute(0, 2, 1, 3).reshape(2 * row_blocks, 2 * blocks)
        return MXFP8Weight(
            data.to(torch.uint8).contiguous().view(torch.float8_e4m3fn),
            scales.to(torch.uint8).contiguous(),
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values, shape `shape`."""
        return self.checkpoint_order().dequantize(dtype)


FragmentWeight = MXFP4FragmentWeight | MXFP8FragmentWeight
"""A weight in fragment order."""


def mxfp4_to_fragment_order(
    weight: MXFP4Weight, *, interleave_gate_up: bool = False
) -> MXFP4FragmentWeight:
    """Re-lays MXFP4 matrices; codes move, their values do not change.

    Args:
        weight: Shape (rows, columns) or (matrices, rows, columns), both multiples of 64.
        interleave_gate_up: The first half of the rows are gates, the second half their ups: let
            them alternate by 8, so that a kernel has both of a pair in one thread. `moe_experts`
            needs this of its first matrix.

    Raises:
        ValueError: Rows or columns are no multiple of 64.
        UnsupportedWeightError: A scale exceeds 2 (byte 128), which the kernels cannot fold.
    """
    is_single = len(weight.shape) == 2
    data = weight.data.view(torch.uint8).view(-1, *weight.data.shape[-2:])
    scale = weight.scale.view(torch.uint8).view(-1, *weight.scale.shape[-2:])
    matrices, rows = data.shape[:2]
    check_multiple("rows", rows, BLOCK)
    check_multiple("columns", weight.shape[-1], BLOCK)
    _check_scales(scale, MXFP4_SCALE_OFFSET)
    if interleave_gate_up:
        check_multiple("rows", rows, 4 * INTERLEAVE)
        order = interleaved_rows(rows, data.device)
        data, scale = data[:, order], scale[:, order]
    parts = [_mxfp4_codes(matrix) for matrix in data]
    row_blocks, blocks = rows // BLOCK, weight.shape[-1] // BLOCK
    scales = scale.view(matrices, row_blocks, 4, 2, 8, blocks, 2) + MXFP4_SCALE_OFFSET
    scales = scales.permute(0, 1, 5, 2, 4, 6, 3).reshape(matrices, row_blocks, blocks, 128)
    return MXFP4FragmentWeight(
        torch.stack(parts), scales.contiguous().view(torch.int32), interleave_gate_up, is_single
    )


def mxfp8_to_fragment_order(weight: MXFP8Weight) -> MXFP8FragmentWeight:
    """Re-lays an MXFP8 matrix; codes move, their values do not change.

    Args:
        weight: Shape (rows, columns), both multiples of 64.

    Raises:
        ValueError: Rows or columns are no multiple of 64.
        UnsupportedWeightError: A scale exceeds 2^7 (byte 134), or a code is NaN.
    """
    rows, columns = weight.shape
    check_multiple("rows", rows, BLOCK)
    check_multiple("columns", columns, BLOCK)
    scale = weight.scale.view(torch.uint8)
    _check_scales(scale, MXFP8_SCALE_OFFSET)
    data = weight.data.view(torch.uint8)
    if bool(((data & 0x7F) == 0x7F).any()):
        raise UnsupportedWeightError(
            "`weight` holds a NaN code, which the fragment kernels would read as 480\n"
            "hint: keep it in checkpoint order, the reference serves it"
        )
    row_blocks, blocks = rows // BLOCK, columns // BLOCK
    # rows (R, w, row, g), columns (B, k32, k16, k8, t, half)
    # -> (R, B, k32, w, g, t, k16, k8, row, half)
    codes = data.view(row_blocks, 4, 2, 8, blocks, 2, 2, 2, 4, 2)
    codes = codes.permute(0, 4, 5, 1, 3, 8, 6, 7, 2, 9).to(torch.int64)
    words = torch.zeros(codes.shape[:-2], dtype=torch.int64, device=data.device)
    for half in range(2):
        upper, lower = codes[..., 0, half], codes[..., 1, half]
        lane = (upper & 0x80) << 8 | (upper & 0x7F) << 4
        lane |= (lower & 0x80) << 7 | (lower & 0x70) << 7 | lower & 0xF
        words |= lane << (16 * half)
    halves = scale.view(row_blocks, 2, blocks, 2).permute(0, 2, 1, 3).repeat_interleave(2, dim=2)
    halves = (halves.to(torch.int16) + MXFP8_SCALE_OFFSET) << 7
    scales = torch.nn.functional.pad(halves.flatten(2), (0, 8))
    return MXFP8FragmentWeight(
        signed_words(words).view(row_blocks, blocks, 1024), scales.contiguous().view(torch.int32)
    )


def _mxfp4_codes(packed: torch.Tensor) -> torch.Tensor:
    """Words of one matrix (rows, columns / 2): shape (rows / 64, columns / 64, 512), int32."""
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(rows, columns)
    # rows (R, w, row, g), columns (B, s, column, t, half) -> (R, B, w, g, t, s, column, row, half)
    codes = codes.view(rows // BLOCK, 4, 2, 8, columns // BLOCK, 4, 2, 4, 2)
    codes = codes.permute(0, 4, 1, 3, 7, 5, 6, 2, 8).to(torch.int32)
    words = torch.zeros(codes.shape[:-3], dtype=torch.int32, device=packed.device)
    for (column, row, half), bits in _mxfp4_places():
        code = codes[..., column, row, half]
        for source, target in bits:
            words |= ((code >> source) & 1) << target
    return words.view(rows // BLOCK, columns // BLOCK, 512)


@functools.cache
def _mxfp4_places() -> tuple[tuple[tuple[int, int, int], tuple[tuple[int, int], ...]], ...]:
    """((columns 8 .. 15?, row g + 8?, half), ((bit of the code, bit of the word), ...))."""
    return tuple(
        (
            (column, row, half),
            tuple(zip((3, 2, 1, 0), (bit + 16 * half for bit in bits), strict=True)),
        )
        for column, of_column in enumerate(_MXFP4_BITS)
        for row, bits in enumerate(of_column)
        for half in range(2)
    )


def interleaved_rows(rows: int, device: torch.device) -> torch.Tensor:
    """Old row of every new row: 8 gates, their 8 ups, the next 8 gates, ..."""
    halves = torch.arange(rows, device=device).view(2, -1, INTERLEAVE)
    return halves.transpose(0, 1).reshape(-1)


def signed_words(words: torch.Tensor) -> torch.Tensor:
    """Unsigned 32-bit numbers in int64 as the int32 of the same bits."""
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _check_scales(scale: torch.Tensor, offset: int) -> None:
    limit = _LARGEST_SCALE_BYTE - offset
    largest = int(scale.max()) if scale.numel() else 0
    if largest > limit:
        raise UnsupportedWeightError(
            f"a scale byte of `weight` is too large for fragment order: at most {limit}, "
            f"got: {largest}\nhint: keep it in checkpoint order, the reference serves it"
        )


def logical_shape(codes: torch.Tensor, is_single: bool) -> torch.Size:
    """Shape of the matrices that codes of shape (matrices, rows / 64, columns / 64, ...) hold."""
    matrices, row_blocks, blocks, _ = codes.shape
    matrix = (row_blocks * BLOCK, blocks * BLOCK)
    return torch.Size(matrix if is_single else (matrices, *matrix))
