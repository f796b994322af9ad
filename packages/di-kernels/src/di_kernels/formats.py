"""Encodings of the block formats: e2m1 codes, UE8M0 scale bytes, groups that share a scale.

| format | codes | group | scale | smallest group maximum |
|---|---|---|---|---|
| `mxfp8` | e4m3, 1 byte | 32 | UE8M0 byte, 2^(byte - 127), rounded up | 1e-4 |
| `mxfp4` | e2m1, 2 per byte, even one low | 32 | UE8M0 byte, rounded up | 6 * 2^-126 |
| `nvfp4` | e2m1, 2 per byte, even one low | 16 | e4m3 of maximum / 6, to nearest | 6 * 2^-9 |

`nvfp4` here has no second scale for the whole tensor. Sources: DeepSeek-V4.1 reference
`inference/kernel.py` (activations, key-value and index-key caches), OCP Microscaling formats 1.0
(element and scale encodings; scale byte 255 is NaN). A group that holds a NaN or an infinity
decodes to NaN in every format.

Quantisation is piecewise constant: results carry no useful gradient.
"""

from __future__ import annotations

import functools
import math

import torch

from di_kernels.checks import check_dtype
from di_kernels.numerics import widen

MX_GROUP = 32
NVFP4_GROUP = 16
E4M3_MAX = 448.0
E2M1_MAX = 6.0
MXFP8_FLOOR = 1e-4
MXFP4_FLOOR = 6 * 2.0**-126
NVFP4_FLOOR = 6 * 2.0**-9

_UE8M0_BIAS = 127
_UE8M0_NAN = 255
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbouring magnitudes, and whether a tie goes up (to the even code).
_E2M1_MIDPOINTS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)


def ue8m0_decode(scale: torch.Tensor) -> torch.Tensor:
    """Powers of two of UE8M0 bytes, float32 (byte 0 is 2^-127, byte 255 is NaN).

    Args:
        scale: uint8 or float8_e8m0fnu, any shape.
    """
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    check_dtype("scale", scale, (torch.float8_e8m0fnu,))
    return scale.to(torch.float32)


def ue8m0_encode(largest: torch.Tensor, code_max: float) -> torch.Tensor:
    """Bytes of the smallest powers of two s with `largest <= code_max * s`, exactly.

    Args:
        largest: Group maxima, float32 or float64, any shape.
        code_max: Largest magnitude of the element format.

    Returns:
        Bytes as int32; 255 where `largest` is not finite.
    """
    code_mantissa, code_exponent = math.frexp(code_max)
    mantissa, exponent = torch.frexp(largest)
    byte = exponent + (mantissa > code_mantissa) + (_UE8M0_BIAS - code_exponent)
    return byte.clamp_(0, 2 * _UE8M0_BIAS).masked_fill_(~largest.isfinite(), _UE8M0_NAN)


def divide_by_power_of_two(
    groups: torch.Tensor, largest: torch.Tensor, code_max: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups divided by their scale and clamped to the codes' range, and the UE8M0 bytes.

    Args:
        groups: Shape (..., group), float32 or float64.
        largest: Group maxima, raised to the format's floor, shape (...).
        code_max: Largest magnitude of the element format.

    Returns:
        Scaled groups, shape (..., group), and bytes, shape (...), uint8.
    """
    byte = ue8m0_encode(largest, code_max)
    # 254 - byte is the byte of the inverse power; for NaN (255) it wraps around to 255 again.
    inverse = ue8m0_decode((2 * _UE8M0_BIAS - byte).to(torch.uint8))
    scaled = (groups * inverse.unsqueeze(-1)).clamp(-code_max, code_max)
    return scaled, byte.to(torch.uint8)


def e2m1_encode(scaled: torch.Tensor) -> torch.Tensor:
    """Packed e2m1 codes (round to nearest, ties to the even code; the sign of zero is kept).

    Args:
        scaled: Values in [-6, 6], shape (..., groups, group), float32 or float64.

    Returns:
        Shape (..., groups * group / 2), uint8.
    """
    boundaries = _e2m1_boundaries(scaled.dtype, scaled.device)
    magnitude = torch.bucketize(scaled.abs(), boundaries, out_int32=True)
    codes = (magnitude + 8 * scaled.signbit()).to(torch.uint8).flatten(-2)
    return codes[..., 0::2] | codes[..., 1::2] << 4


@functools.cache
def _e2m1_boundaries(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # `bucketize` counts boundaries strictly below a value; one step down makes a tie count too.
    midpoints = torch.tensor([middle for middle, _ in _E2M1_MIDPOINTS], dtype=dtype, device=device)
    ties_up = torch.tensor([up for _, up in _E2M1_MIDPOINTS], device=device)
    return torch.where(ties_up, torch.nextafter(midpoints, torch.zeros_like(midpoints)), midpoints)


@functools.cache
def _e2m1_byte_values(device: torch.device) -> torch.Tensor:
    """Both values of every byte, shape (256, 2), float32."""
    values = torch.tensor(_E2M1_VALUES + tuple(-value for value in _E2M1_VALUES), device=device)
    byte = torch.arange(256, device=device)
    return values[torch.stack((byte & 15, byte >> 4), dim=-1)]


def fp4_decode(
    packed: torch.Tensor, scale: torch.Tensor, group: int, dtype: torch.dtype
) -> torch.Tensor:
    """Values of packed e2m1 codes.

    Args:
        packed: Shape (..., size / 2), uint8 or int8.
        scale: Scale of each group, shape (..., size / group), float32.
        group: Elements per scale.
        dtype: Dtype of the result.

    Returns:
        Shape (..., size).
    """
    check_dtype("packed", packed, (torch.uint8, torch.int8))
    values = _e2m1_byte_values(packed.device)[packed.view(torch.uint8).to(torch.int64)]
    grouped = torch.unflatten(values.flatten(-2), -1, (-1, group)) * scale.unsqueeze(-1)
    return grouped.flatten(-2).to(dtype)


def mxfp8_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., size) float8_e4m3fn and scale bytes (..., size / 32) uint8."""
    groups = torch.unflatten(widen(x), -1, (-1, MX_GROUP))
    largest = groups.abs().amax(-1).clamp_min(MXFP8_FLOOR)
    scaled, scale = divide_by_power_of_two(groups, largest, E4M3_MAX)
    return scaled.flatten(-2).to(torch.float8_e4m3fn), scale


def mxfp8_decode(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the power of two of their group."""
    check_dtype("codes", codes, (torch.float8_e4m3fn,))
    groups = torch.unflatten(codes.to(torch.float32), -1, (-1, MX_GROUP))
    return (groups * ue8m0_decode(scale).unsqueeze(-1)).flatten(-2).to(dtype)


def mxfp4_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes (..., size / 2) uint8 and scale bytes (..., size / 32) uint8."""
    groups = torch.unflatten(widen(x), -1, (-1, MX_GROUP))
    largest = groups.abs().amax(-1).clamp_min(MXFP4_FLOOR)
    scaled, scale = divide_by_power_of_two(groups, largest, E2M1_MAX)
    return e2m1_encode(scaled), scale


def mxfp4_decode(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the power of two of their group."""
    return fp4_decode(packed, ue8m0_decode(scale), MX_GROUP, dtype)


def nvfp4_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes (..., size / 2) uint8 and scales (..., size / 16) float8_e4m3fn.

    The scale is rounded to nearest, not up, so that the largest value of a group may saturate.
    """
    groups = torch.unflatten(widen(x), -1, (-1, NVFP4_GROUP))
    largest = groups.abs().amax(-1).clamp_min(NVFP4_FLOOR)
    largest = largest.masked_fill(~largest.isfinite(), math.nan)
    scale = (largest / E2M1_MAX).clamp_max(E4M3_MAX).to(torch.float8_e4m3fn)
    scaled = groups / scale.to(groups.dtype).unsqueeze(-1)
    return e2m1_encode(scaled.clamp(-E2M1_MAX, E2M1_MAX)), scale


def nvfp4_decode(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the E4M3 scale of their group."""
    check_dtype("scale", scale, (torch.float8_e4m3fn,))
    return fp4_decode(packed, scale.to(torch.float32), NVFP4_GROUP, dtype)
