"""Rotary embedding of the last channels, interleaved pairs, plain and YaRN frequencies.

Pair i of the rotary part (channels 2i and 2i + 1) at position t is rotated by the angle t * f_i.
The order of evaluation is that of DeepSeek-V4.1 reference `inference/model.py`, everything in
float32, so that tables are equal bit for bit: at positions near 10^6 the rounding of t * f_i alone
moves the angle by some hundredths.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from di_kernels.checks import check_multiple, check_shape
from di_kernels.numerics import cast, widen
from di_kernels.registry import Op


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Frequencies interpolated for a longer context (YaRN, without its magnitude factor).

    Args:
        factor: Divisor of the low frequencies.
        original_max_position_embeddings: Context the frequencies were trained for, in tokens.
        beta_fast: Rotations within that context above which a frequency is kept.
        beta_slow: Rotations below which it is divided.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32
    beta_slow: float = 1


class RopeRotation(NamedTuple):
    """Rotations of a step's rows, laid out for `x * cos + swapped(x) * sin`.

    Args:
        cos: Shape (num_rows, rotary_dim), each value twice.
        sin: Shape (num_rows, rotary_dim), each value twice, the first of a pair negated.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def inverse(self) -> RopeRotation:
        """The rotations back."""
        return RopeRotation(self.cos, -self.sin)


def rope_frequencies(
    rotary_dim: int, theta: float, *, yarn: YarnScaling | None = None
) -> torch.Tensor:
    """Angle per position of every pair.

    Args:
        rotary_dim: Channels that rotate, even.
        theta: Base.
        yarn: Interpolation for long contexts; None for plain frequencies.

    Returns:
        Shape (rotary_dim / 2,), float32, on the CPU.

    Raises:
        ValueError: `rotary_dim` is odd.
    """
    check_multiple("rotary_dim", rotary_dim, 2)
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    base = 1.0 / theta**exponent
    if yarn is None:
        return base

    def pair_with(rotations: float) -> float:
        """Index of the pair that makes so many rotations in the original context."""
        wavelengths = yarn.original_max_position_embeddings / (2 * math.pi * rotations)
        return rotary_dim * math.log(wavelengths) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), rotary_dim - 1)
    width = high - low or 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    kept = 1 - ramp
    return base / yarn.factor * (1 - kept) + base * kept


def rope_cos_sin(
    positions: torch.Tensor, frequencies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine tables.

    Args:
        positions: Token positions, shape (num_rows,), integer.
        frequencies: Result of `rope_frequencies`, on the same device.

    Returns:
        Two tensors of shape (num_rows, rotary_dim / 2), float32.
    """
    check_shape("positions", positions, (None,))
    return _ROPE_COS_SIN.select(frequencies)(positions, frequencies)


def rope_rotation(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype = torch.float32
) -> RopeRotation:
    """Rotations of a step's rows, computed once and used by every layer with these frequencies.

    Args:
        positions: Token positions, shape (num_rows,), integer.
        frequencies: Result of `rope_frequencies`, on the same device.
        dtype: float32, or float64 for float64 arithmetic (the tables are float32 values in both).
    """
    cos, sin = rope_cos_sin(positions, frequencies)
    sin_pairs = torch.stack((-sin, sin), dim=-1).flatten(-2)
    return RopeRotation(cos.repeat_interleave(2, dim=-1).to(dtype), sin_pairs.to(dtype))


def apply_rope(x: torch.Tensor, rotation: RopeRotation) -> torch.Tensor:
    """Rotates the last `rotary_dim` channels; the others pass.

    Args:
        x: Shape (num_rows, size) or (num_rows, heads, size), float32, float64 or bfloat16.
        rotation: Rotations of the same rows.

    Returns:
        Shape and dtype of `x`.

    Raises:
        ValueError: The rows do not match, or `size` is smaller than the rotary part.
    """
    rows, rotary_dim = rotation.cos.shape
    if x.dim() not in (2, 3) or x.shape[0] != rows or x.shape[-1] < rotary_dim:
        raise ValueError(
            f"invalid shape of `x`: expected ({rows}, size) or ({rows}, heads, size) "
            f"with size >= {rotary_dim}, got: {tuple(x.shape)}"
        )
    return _APPLY_ROPE.select(x, size=x.shape[-1], rotary_dim=rotary_dim)(x, rotation)


def _rope_cos_sin(
    positions: torch.Tensor, frequencies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 angles through `torch.polar`, whose bits the reference's tables have."""
    angles = torch.outer(positions.to(torch.float32), frequencies)
    unit = torch.view_as_real(torch.polar(torch.ones_like(angles), angles))
    return unit[..., 0], unit[..., 1]


def _apply_rope(x: torch.Tensor, rotation: RopeRotation) -> torch.Tensor:
    """`x * cos + swapped(x) * sin` in float32 (float64), one rounding at the end."""
    cos, sin = rotation
    rotary_dim = cos.shape[-1]
    passed, rotated = x.split_with_sizes((x.shape[-1] - rotary_dim, rotary_dim), dim=-1)
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    pairs = widen(rotated)
    swapped = pairs.index_select(-1, _pair_swap(rotary_dim, x.device))
    return torch.cat((passed, cast(pairs * cos + swapped * sin, x.dtype)), dim=-1)


@functools.cache
def _pair_swap(rotary_dim: int, device: torch.device) -> torch.Tensor:
    """Channel numbers with every pair exchanged."""
    return torch.arange(rotary_dim, device=device) ^ 1


_ROPE_COS_SIN = Op("rope_cos_sin", _rope_cos_sin, dtypes=(torch.float32,), is_differentiable=False)
_APPLY_ROPE = Op("apply_rope", _apply_rope)
