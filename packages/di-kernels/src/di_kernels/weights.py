"""Weights in the checkpoint's block formats, as they lie in the file."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from di_kernels.checks import check_dtype
from di_kernels.formats import mxfp4_decode, ue8m0_decode

MXFP8_TILE = 32

_SCALE_DTYPES = (torch.float8_e8m0fnu, torch.uint8)


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


@dataclass(frozen=True, slots=True, eq=False)
class MXFP8Weight:
    """A matrix of e4m3 values with one power-of-two scale per 32 x 32 tile, partial at the edges.

    Source: DeepSeek-V4.1 checkpoint layout, `weight_block_size` [32, 32], `scale_fmt` ue8m0.

    Args:
        data: Shape (rows, columns), float8_e4m3fn.
        scale: Shape (ceil(rows / 32), ceil(columns / 32)), float8_e8m0fnu or uint8.

    Raises:
        ValueError: The scale does not cover the data exactly.
        TypeError: Another dtype.
    """

    data: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        check_dtype("data", self.data, (torch.float8_e4m3fn,))
        check_dtype("scale", self.scale, _SCALE_DTYPES)
        if self.data.dim() != 2:
            raise ValueError(
                f"invalid shape of `data`: expected (rows, columns), got: {tuple(self.data.shape)}"
            )
        expected = tuple(_ceil_div(size, MXFP8_TILE) for size in self.data.shape)
        if tuple(self.scale.shape) != expected:
            raise ValueError(
                f"invalid shape of `scale`: expected {expected}, got: {tuple(self.scale.shape)}"
            )

    @property
    def shape(self) -> torch.Size:
        """Logical shape (rows, columns)."""
        return self.data.shape

    @property
    def device(self) -> torch.device:
        """Where the data lies."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales."""
        return self.data.nbytes + self.scale.nbytes

    def to(self, device: torch.device | str) -> MXFP8Weight:
        """The same weight on another device."""
        return MXFP8Weight(self.data.to(device), self.scale.to(device))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values, shape `shape`; exact in bfloat16, float32 and float64."""
        rows, columns = self.data.shape
        scale = ue8m0_decode(self.scale).repeat_interleave(MXFP8_TILE, 0)[:rows]
        scale = scale.repeat_interleave(MXFP8_TILE, 1)[:, :columns]
        return (self.data.to(torch.float32) * scale).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class MXFP4Weight:
    """Matrices of e2m1 values with one power-of-two scale per row and 32 columns.

    Source: DeepSeek-V4.1 checkpoint layout of routed experts. Byte j of a row holds columns 2j (low
    nibble) and 2j + 1.

    Args:
        data: Shape (..., rows, columns / 2), int8 or uint8.
        scale: Shape (..., rows, columns / 32), float8_e8m0fnu or uint8.

    Raises:
        ValueError: The scale does not cover the data exactly.
        TypeError: Another dtype.
    """

    data: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        check_dtype("data", self.data, (torch.int8, torch.uint8))
        check_dtype("scale", self.scale, _SCALE_DTYPES)
        if self.data.dim() < 2 or self.data.shape[-1] % 16:
            raise ValueError(
                "invalid shape of `data`: expected (..., rows, columns / 2) with a multiple of 32 "
                f"columns, got: {tuple(self.data.shape)}"
            )
        expected = (*self.data.shape[:-1], self.data.shape[-1] // 16)
        if tuple(self.scale.shape) != expected:
            raise ValueError(
                f"invalid shape of `scale`: expected {expected}, got: {tuple(self.scale.shape)}"
            )

    @property
    def shape(self) -> torch.Size:
        """Logical shape (..., rows, columns)."""
        return torch.Size((*self.data.shape[:-1], 2 * self.data.shape[-1]))

    @property
    def device(self) -> torch.device:
        """Where the data lies."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales."""
        return self.data.nbytes + self.scale.nbytes

    def __getitem__(self, index: int) -> MXFP4Weight:
        """The matrix of one expert, sharing memory."""
        return MXFP4Weight(self.data[index], self.scale[index])

    def to(self, device: torch.device | str) -> MXFP4Weight:
        """The same weight on another device."""
        return MXFP4Weight(self.data.to(device), self.scale.to(device))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense values, shape `shape`; exact in bfloat16, float32 and float64."""
        return mxfp4_decode(self.data, self.scale, dtype)


QuantizedWeight = MXFP8Weight | MXFP4Weight
Weight = torch.Tensor | MXFP8Weight | MXFP4Weight
"""A dense matrix or one in a block format."""
