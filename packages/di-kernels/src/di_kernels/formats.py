"""Encodings of the block formats: e2m1 codes, UE8M0 scale bytes, groups that share a scale.

| format | codes | group | scale | smallest group maximum |
|---|---|---|---|---|
| `mxfp8` | e4m3, 1 byte | 32 | UE8M0 byte, 2^(byte - 127), rounded up | 1e-4 |
| `mxfp4` | e2m1, 2 per byte, even one low | 32 | UE8M0 byte, rounded up | 6 * 2^-126 |
| `fp8` | e4m3, 1 byte | row | maximum / 448, float32 | 2^-100 |
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
from di_kernels.numerics import cast, widen

MX_GROUP = 32
NVFP4_GROUP = 16
E4M3_MAX = 448.0
E2M1_MAX = 6.0
MXFP8_FLOOR = 1e-4
FP8_FLOOR = 2.0**-100
MXFP4_FLOOR = 6 * 2.0**-126
NVFP4_FLOOR = 6 * 2.0**-9

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


def power_of_two_scale(largest: torch.Tensor, code_max: float) -> torch.Tensor:
    """Smallest powers of two s with `largest <= code_max * s`, without a rounding step.

    With largest = m * 2^e and code_max = c * 2^f, m and c in [1, 2), that is 2^(e - f), doubled
    where m > c. Adding the difference between the largest mantissa and that of c carries into the
    exponent exactly there.

    Args:
        largest: Group maxima, positive normal numbers, float32 or float64, any shape.
        code_max: Largest magnitude of the element format.

    Returns:
        Shape and dtype of `largest`; NaN where it is not finite.
    """
    is_single = largest.dtype is torch.float32
    mantissa_bits = 23 if is_single else 52
    one = 1 << mantissa_bits
    half_mantissa, exponent = math.frexp(code_max)
    carry = one - 1 - int((2 * half_mantissa - 1) * one)
    bits = largest.view(torch.int32 if is_single else torch.int64)
    raised = (bits + carry).bitwise_and_(-one).sub_((exponent - 1) << mantissa_bits)
    return raised.view(largest.dtype) + (largest - largest)


def ue8m0_encode(scale: torch.Tensor) -> torch.Tensor:
    """Bytes of powers of two, uint8; 255 for NaN.

    Args:
        scale: Result of `power_of_two_scale`, any shape.
    """
    return (cast(scale, torch.float32).view(torch.int32) >> 23).to(torch.uint8)


def e2m1_encode(scaled: torch.Tensor) -> torch.Tensor:
    """Packed e2m1 codes: nearest, ties to the even code, saturating; the sign of zero is kept.

    Args:
        scaled: Shape (..., groups, group), float32 or float64.

    Returns:
        Shape (..., groups * group / 2), uint8.
    """
    codes = (_e2m1_magnitude(scaled) + 8 * scaled.signbit()).to(torch.uint8).flatten(-2)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _e2m1_magnitude(scaled: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 7 of magnitudes, int32."""
    boundaries = _e2m1_boundaries(scaled.dtype, scaled.device)
    return torch.bucketize(scaled.abs(), boundaries, out_int32=True)


def _e2m1_round(scaled: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 values."""
    magnitudes = _e2m1_magnitudes(scaled.dtype, scaled.device)
    return torch.copysign(magnitudes[_e2m1_magnitude(scaled)], scaled)


@functools.cache
def _e2m1_magnitudes(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(_E2M1_VALUES, dtype=dtype, device=device)


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
    return cast(grouped.flatten(-2), dtype)


def _groups_and_scale(
    x: torch.Tensor, code_max: float, floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of 32, shape (..., groups, 32), and their powers of two, shape (..., groups, 1)."""
    groups = torch.unflatten(widen(x), -1, (-1, MX_GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min_(floor)
    return groups, power_of_two_scale(largest, code_max)


def fp8_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., size) float8_e4m3fn and one scale per row (...), float32 or float64."""
    wide = widen(x)
    largest = wide.abs().amax(-1, keepdim=True).clamp_min_(FP8_FLOOR)
    # Products alone: torch divides by a number in another way on a GPU than on a CPU.
    codes = (wide * (largest.reciprocal() * E4M3_MAX)).to(torch.float8_e4m3fn)
    scale = largest * (1 / E4M3_MAX) + (largest - largest)
    return codes, scale.squeeze(-1)


def mxfp8_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., size) float8_e4m3fn and scale bytes (..., size / 32) uint8."""
    groups, scale = _groups_and_scale(x, E4M3_MAX, MXFP8_FLOOR)
    codes = (groups / scale).to(torch.float8_e4m3fn)
    return codes.flatten(-2), ue8m0_encode(scale.squeeze(-1))


def mxfp8_decode(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the power of two of their group."""
    check_dtype("codes", codes, (torch.float8_e4m3fn,))
    groups = torch.unflatten(codes.to(torch.float32), -1, (-1, MX_GROUP))
    return cast((groups * ue8m0_decode(scale).unsqueeze(-1)).flatten(-2), dtype)


def mxfp8_round_trip(x: torch.Tensor) -> torch.Tensor:
    """`mxfp8_decode(*mxfp8_encode(x), x.dtype)` without the scale bytes."""
    groups, scale = _groups_and_scale(x, E4M3_MAX, MXFP8_FLOOR)
    codes = (groups / scale).to(torch.float8_e4m3fn)
    return cast(cast(codes, scale.dtype).mul_(scale).flatten(-2), x.dtype)


def mxfp4_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes (..., size / 2) uint8 and scale bytes (..., size / 32) uint8."""
    groups, scale = _groups_and_scale(x, E2M1_MAX, MXFP4_FLOOR)
    return e2m1_encode(groups / scale), ue8m0_encode(scale.squeeze(-1))


def mxfp4_decode(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the power of two of their group."""
    return fp4_decode(packed, ue8m0_decode(scale), MX_GROUP, dtype)


def mxfp4_round_trip(x: torch.Tensor) -> torch.Tensor:
    """`mxfp4_decode(*mxfp4_encode(x), x.dtype)` without packing."""
    groups, scale = _groups_and_scale(x, E2M1_MAX, MXFP4_FLOOR)
    return cast((_e2m1_round(groups / scale) * scale).flatten(-2), x.dtype)


def _nvfp4_groups_and_scale(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of 16, shape (..., groups, 16), and E4M3 scales, shape (..., groups, 1).

    The scale is rounded to nearest, not up, so that the largest value of a group may saturate.
    """
    groups = torch.unflatten(widen(x), -1, (-1, NVFP4_GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min_(NVFP4_FLOOR)
    scale = (largest / E2M1_MAX).clamp_max_(E4M3_MAX) + (largest - largest)
    return groups, scale.to(torch.float8_e4m3fn)


def nvfp4_encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes (..., size / 2) uint8 and scales (..., size / 16) float8_e4m3fn."""
    groups, scale = _nvfp4_groups_and_scale(x)
    return e2m1_encode(groups / scale.to(groups.dtype)), scale.squeeze(-1)


def nvfp4_decode(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes times the E4M3 scale of their group."""
    check_dtype("scale", scale, (torch.float8_e4m3fn,))
    return fp4_decode(packed, scale.to(torch.float32), NVFP4_GROUP, dtype)


def nvfp4_round_trip(x: torch.Tensor) -> torch.Tensor:
    """`nvfp4_decode(*nvfp4_encode(x), x.dtype)` without packing."""
    groups, scale = _nvfp4_groups_and_scale(x)
    wide = scale.to(groups.dtype)
    return cast((_e2m1_round(groups / wide) * wide).flatten(-2), x.dtype)
