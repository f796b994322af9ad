"""MXFP4 matrices in the fragment order of e4m3 tensor cores, for FP8 activations.

The order is that of the first operand of `wgmma m64nNk32` and of `mma m16n8k32` (PTX ISA, register
fragments). A matrix is cut into blocks of 64 rows x 64 columns. In a block, thread = 32 * warp +
4 * g + t holds rows 16 * warp + g and + 8, and of every 16 columns 4t .. 4t + 3.

| codes of a block | scales of a block |
|---|---|
| 512 words: thread x 4; word 2h + q: columns 32h + 16q .. + 15 | 128 bytes: warp x g x 4 |

Code i = 0 .. 3 of a word (column 4t + i): of row g, magnitude on bits 4i + 2 .. 4i and sign on
8i + 7; of row g + 8, magnitude on 16 + 4i + 2 .. 16 + 4i and sign on 8i + 3. The four scale bytes
are group 0 row g, group 0 row g + 8, group 1 row g, group 1 row g + 8.

The product runs on weights relative to their row: e2m1 times 2^j is a normal e4m3 number for j =
-5 .. 6, so folding the scales is exact where those of a row span at most 11 octaves. With row base
= max(1, largest scale byte of the row - 6), a stored scale byte is (scale byte - base + 8) * 8, and
a row's sum is multiplied by 2^(base - 127) in the end. Size unchanged but for that factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from di_kernels.checks import check_multiple
from di_kernels.errors import UnsupportedWeightError
from di_kernels.fragments import (
    BLOCK,
    INTERLEAVE,
    interleaved_rows,
    logical_shape,
    signed_words,
)
from di_kernels.weights import MXFP4Weight

MAX_OCTAVES = 11
"""Largest distance of two scale bytes of one row."""

_TOP = 6  # largest power of two above the row base: 6 * 2^6 = 384 is below e4m3's 448
_SCALE_BIAS = 8
_EXPONENT_BIAS = 127
_LARGEST_SCALE_BYTE = 254


@dataclass(frozen=True, slots=True, eq=False)
class MXFP4E4M3FragmentWeight:
    """MXFP4 matrices in e4m3 fragment order. Made by `mxfp4_to_e4m3_fragment_order`.

    Args:
        codes: Shape (matrices, rows / 64, columns / 64, 512), int32.
        scales: Shape (matrices, rows / 64, columns / 64, 32), int32.
        row_factors: Power of two of every row, shape (matrices, rows / 64, 64), float32.
        is_interleaved: Gate and up rows alternate by 8.
        is_single: Made of a matrix without a leading dimension.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    row_factors: torch.Tensor
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
        """Bytes of codes, scales and row factors."""
        return self.codes.nbytes + self.scales.nbytes + self.row_factors.nbytes

    def to(self, device: torch.device | str) -> MXFP4E4M3FragmentWeight:
        """The same weight on another device."""
        return MXFP4E4M3FragmentWeight(
            self.codes.to(device), self.scales.to(device), self.row_factors.to(device),
            self.is_interleaved, self.is_single,
        )  # fmt: skip

    def __getitem__(self, index: int) -> MXFP4E4M3FragmentWeight:
        """The matrix of one expert, sharing memory."""
        part = slice(index, index + 1)
        return MXFP4E4M3FragmentWeight(
            self.codes[part], self.scales[part], self.row_factors[part], self.is_interleaved, True
        )

    def checkpoint_order(self) -> MXFP4Weight:
        """The weight this was made of, bit for bit."""
        matrices, row_blocks, blocks, _ = self.codes.shape
        rows, columns = row_blocks * BLOCK, blocks * BLOCK
        words = self.codes.to(torch.int64).view(matrices, row_blocks, blocks, 4, 8, 4, 2, 2)
        codes = words.new_zeros((*words.shape, 2, 4))
        for row in range(2):
            for i in range(4):
                magnitude = words >> (16 * row + 4 * i) & 7
                codes[..., row, i] = magnitude | (words >> (8 * i + 7 - 4 * row) & 1) << 3
        # (e, R, B, w, g, t, h, q, row, i) -> rows (R, w, row, g), columns (B, h, q, t, i)
        codes = codes.permute(0, 1, 3, 8, 4, 2, 6, 7, 5, 9).reshape(matrices, rows, columns)
        packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        stored = self.scales.view(torch.uint8).view(matrices, row_blocks, blocks, 4, 8, 2, 2)
        stored = stored.permute(0, 1, 3, 6, 4, 2, 5).reshape(matrices, rows, columns // 32)
        scales = (stored // 8).to(torch.int32) - _SCALE_BIAS + self._row_bases()
        scales = scales.to(torch.uint8)
        if self.is_interleaved:
            order = interleaved_rows(rows, packed.device).argsort()
            packed, scales = packed[:, order], scales[:, order]
        if self.is_single:
            packed, scales = packed[0], scales[0]
        return MXFP4Weight(packed.contiguous(), scales.contiguous())

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values in the rows' original order, shape `shape`."""
        return self.checkpoint_order().dequantize(dtype)

    def _row_bases(self) -> torch.Tensor:
        """Scale byte that a row's stored scales are relative to, shape (matrices, rows, 1)."""
        bits = self.row_factors.contiguous().view(torch.int32)
        return (bits >> 23).flatten(1).unsqueeze(-1)


def mxfp4_to_e4m3_fragment_order(
    weight: MXFP4Weight, *, interleave_gate_up: bool = False
) -> MXFP4E4M3FragmentWeight:
    """Re-lays MXFP4 matrices for products with e4m3 activations; values do not change.

    Args:
        weight: Shape (rows, columns) or (matrices, rows, columns), multiples of 64 and 128.
        interleave_gate_up: The first half of the rows are gates, the second half their ups: let
            them alternate by 8. `moe_experts` needs this of its first matrix.

    Raises:
        ValueError: Rows are no multiple of 64, or columns of 128.
        UnsupportedWeightError: The scales of a row span more than 11 octaves, so that e4m3 cannot
            hold the scaled codes, or a scale is NaN.
    """
    is_single = len(weight.shape) == 2
    data = weight.data.view(torch.uint8).view(-1, *weight.data.shape[-2:])
    scale = weight.scale.view(torch.uint8).view(-1, *weight.scale.shape[-2:])
    matrices, rows = data.shape[:2]
    check_multiple("rows", rows, BLOCK)
    check_multiple("columns", weight.shape[-1], 2 * BLOCK)
    if interleave_gate_up:
        check_multiple("rows", rows, 4 * INTERLEAVE)
        order = interleaved_rows(rows, data.device)
        data, scale = data[:, order], scale[:, order]
    _check_octaves(scale)
    row_blocks, blocks = rows // BLOCK, weight.shape[-1] // BLOCK
    base = (scale.amax(-1, keepdim=True).to(torch.int32) - _TOP).clamp_min(1)
    stored = ((scale - base + _SCALE_BIAS) * 8).to(torch.uint8)
    stored = stored.view(matrices, row_blocks, 4, 2, 8, blocks, 2)
    stored = stored.permute(0, 1, 5, 2, 4, 6, 3).reshape(matrices, row_blocks, blocks, 128)
    factors = (base << 23).view(torch.float32).view(matrices, row_blocks, BLOCK)
    codes = torch.stack([_words(matrix) for matrix in data])
    return MXFP4E4M3FragmentWeight(
        codes, stored.contiguous().view(torch.int32), factors, interleave_gate_up, is_single
    )


def _words(packed: torch.Tensor) -> torch.Tensor:
    """Words of one matrix (rows, columns / 2): shape (rows / 64, columns / 64, 512), int32."""
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(rows, columns)
    # rows (R, w, row, g), columns (B, h, q, t, i) -> (R, B, w, g, t, h, q, row, i)
    codes = codes.view(rows // BLOCK, 4, 2, 8, columns // BLOCK, 2, 2, 4, 4)
    codes = codes.permute(0, 4, 1, 3, 7, 5, 6, 2, 8)
    words = torch.zeros(codes.shape[:-2], dtype=torch.int64, device=packed.device)
    for row in range(2):
        for i in range(4):
            code = codes[..., row, i].to(torch.int64)
            words |= (code & 7) << (16 * row + 4 * i) | (code >> 3) << (8 * i + 7 - 4 * row)
    return signed_words(words).view(rows // BLOCK, columns // BLOCK, 512)


def _check_octaves(scale: torch.Tensor) -> None:
    if not scale.numel():
        return
    largest, smallest = scale.amax(-1).to(torch.int32), scale.amin(-1).to(torch.int32)
    if int(largest.max()) > _LARGEST_SCALE_BYTE:
        raise UnsupportedWeightError("a scale of `weight` is NaN (byte 255)")
    octaves = int((largest - smallest).max())
    if octaves > MAX_OCTAVES:
        raise UnsupportedWeightError(
            f"the scales of a row of `weight` span too much for e4m3: at most {MAX_OCTAVES} "
            f"octaves, got: {octaves}\nhint: `mxfp4_to_fragment_order`, with bfloat16 activations"
        )
