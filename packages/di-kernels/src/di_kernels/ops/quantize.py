"""Quantise and dequantise in the block formats; `di_kernels.formats` describes them."""

from __future__ import annotations

import torch

from di_kernels.checks import check_dtype, check_multiple
from di_kernels.formats import (
    MX_GROUP,
    NVFP4_GROUP,
    fp8_encode,
    mxfp4_decode,
    mxfp4_encode,
    mxfp4_round_trip,
    mxfp8_decode,
    mxfp8_encode,
    mxfp8_round_trip,
    nvfp4_decode,
    nvfp4_encode,
    nvfp4_round_trip,
)
from di_kernels.registry import FLOATS, Op


def fp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises rows to e4m3 with one scale each: x is codes * scale up to e4m3's rounding.

    Args:
        x: Values, shape (..., size), float32, float64 or bfloat16.

    Returns:
        Codes, shape (..., size), float8_e4m3fn, and scales, row maximum / 448, shape (...), float32
        (float64 for float64). A row that holds a NaN or an infinity has codes or a scale that make
        all of it NaN.

    Raises:
        TypeError: Another dtype.
    """
    check_dtype("x", x, FLOATS)
    return _FP8_QUANTIZE.select(x, size=x.shape[-1])(x)


def mxfp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises the last dimension in groups of 32.

    Args:
        x: Values, shape (..., size), size a multiple of 32, float32, float64 or bfloat16.

    Returns:
        Codes, shape (..., size), float8_e4m3fn, and UE8M0 scale bytes, shape (..., size / 32),
        uint8.

    Raises:
        ValueError: The size is not a multiple of 32.
        TypeError: Another dtype.
    """
    _check(x, MX_GROUP)
    return _MXFP8_QUANTIZE.select(x)(x)


def mxfp8_dequantize(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Values of MXFP8 codes, exact in every float dtype unless the exponent leaves its range.

    Args:
        codes: Shape (..., size), float8_e4m3fn.
        scale: Shape (..., size / 32), uint8 or float8_e8m0fnu.
        dtype: Dtype of the result.

    Returns:
        Values, shape (..., size).
    """
    return _MXFP8_DEQUANTIZE.select(codes)(codes, scale, dtype)


def mxfp8_fake_quantize(x: torch.Tensor) -> torch.Tensor:
    """`mxfp8_dequantize(mxfp8_quantize(x))` in the dtype of `x`."""
    _check(x, MX_GROUP)
    return _MXFP8_FAKE_QUANTIZE.select(x)(x)


def mxfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises the last dimension in groups of 32.

    Args:
        x: Values, shape (..., size), size a multiple of 32, float32, float64 or bfloat16.

    Returns:
        Packed codes, shape (..., size / 2), uint8, and UE8M0 scale bytes, shape (..., size / 32),
        uint8.

    Raises:
        ValueError: The size is not a multiple of 32.
        TypeError: Another dtype.
    """
    _check(x, MX_GROUP)
    return _MXFP4_QUANTIZE.select(x)(x)


def mxfp4_dequantize(
    packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Values of packed MXFP4 codes.

    Args:
        packed: Shape (..., size / 2), uint8 or int8.
        scale: Shape (..., size / 32), uint8 or float8_e8m0fnu.
        dtype: Dtype of the result.

    Returns:
        Values, shape (..., size).
    """
    return _MXFP4_DEQUANTIZE.select(packed)(packed, scale, dtype)


def mxfp4_fake_quantize(x: torch.Tensor) -> torch.Tensor:
    """`mxfp4_dequantize(mxfp4_quantize(x))` in the dtype of `x`."""
    _check(x, MX_GROUP)
    return _MXFP4_FAKE_QUANTIZE.select(x)(x)


def nvfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises the last dimension in groups of 16 with E4M3 scales.

    Args:
        x: Values, shape (..., size), size a multiple of 16, float32, float64 or bfloat16.

    Returns:
        Packed codes, shape (..., size / 2), uint8, and scales, shape (..., size / 16),
        float8_e4m3fn.

    Raises:
        ValueError: The size is not a multiple of 16.
        TypeError: Another dtype.
    """
    _check(x, NVFP4_GROUP)
    return _NVFP4_QUANTIZE.select(x)(x)


def nvfp4_dequantize(
    packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Values of packed FP4 codes with E4M3 scales.

    Args:
        packed: Shape (..., size / 2), uint8 or int8.
        scale: Shape (..., size / 16), float8_e4m3fn.
        dtype: Dtype of the result.

    Returns:
        Values, shape (..., size).
    """
    return _NVFP4_DEQUANTIZE.select(packed)(packed, scale, dtype)


def nvfp4_fake_quantize(x: torch.Tensor) -> torch.Tensor:
    """`nvfp4_dequantize(nvfp4_quantize(x))` in the dtype of `x`."""
    _check(x, NVFP4_GROUP)
    return _NVFP4_FAKE_QUANTIZE.select(x)(x)


# --- Reference ---


def _check(x: torch.Tensor, group: int) -> None:
    check_dtype("x", x, FLOATS)
    check_multiple("x.shape[-1]", x.shape[-1], group)


_FP8_QUANTIZE = Op("fp8_quantize", fp8_encode, is_differentiable=False)
_BYTES = (torch.uint8, torch.int8)
_MXFP8_QUANTIZE = Op("mxfp8_quantize", mxfp8_encode, is_differentiable=False)
_MXFP8_DEQUANTIZE = Op(
    "mxfp8_dequantize", mxfp8_decode, dtypes=(torch.float8_e4m3fn,), is_differentiable=False
)
_MXFP8_FAKE_QUANTIZE = Op("mxfp8_fake_quantize", mxfp8_round_trip, is_differentiable=False)
_MXFP4_QUANTIZE = Op("mxfp4_quantize", mxfp4_encode, is_differentiable=False)
_MXFP4_DEQUANTIZE = Op("mxfp4_dequantize", mxfp4_decode, dtypes=_BYTES, is_differentiable=False)
_MXFP4_FAKE_QUANTIZE = Op("mxfp4_fake_quantize", mxfp4_round_trip, is_differentiable=False)
_NVFP4_QUANTIZE = Op("nvfp4_quantize", nvfp4_encode, is_differentiable=False)
_NVFP4_DEQUANTIZE = Op("nvfp4_dequantize", nvfp4_decode, dtypes=_BYTES, is_differentiable=False)
_NVFP4_FAKE_QUANTIZE = Op("nvfp4_fake_quantize", nvfp4_round_trip, is_differentiable=False)
