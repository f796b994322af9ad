"""Quantisation that lets gradients through: the value is rounded, the gradient is not.

The rounding is that of `di_kernels.formats`, so that what training sees is what the exported file
and the engine's packed caches hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from di_kernels.formats import (
    E4M3_MAX,
    MXFP8_FLOOR,
    mxfp4_round_trip,
    mxfp8_round_trip,
    nvfp4_round_trip,
    power_of_two_scale,
)

_TILE = 32


Rounding = Callable[[Tensor], Tensor]


def pass_gradient(rounding: Rounding, x: Tensor) -> Tensor:
    """`rounding(x)` forwards, the identity backwards."""
    with torch.no_grad():
        rounded = rounding(x.detach())
    return x + (rounded - x.detach())


def mxfp8_tiles(weight: Tensor) -> Tensor:
    """Rounds a matrix whose sizes are multiples of 32 to e4m3 with one scale per 32 x 32 tile."""
    rows, columns = weight.shape
    tiles = weight.view(rows // _TILE, _TILE, columns // _TILE, _TILE)
    largest = tiles.abs().amax((1, 3), keepdim=True).clamp_min(MXFP8_FLOOR)
    scale = power_of_two_scale(largest, E4M3_MAX)
    codes = (tiles / scale).to(torch.float8_e4m3fn)
    return (codes.to(weight.dtype) * scale).view(rows, columns)


def weight_mxfp8(weight: Tensor) -> Tensor:
    """Linear weight in MXFP8."""
    return pass_gradient(mxfp8_tiles, weight)


def weight_mxfp4(weight: Tensor) -> Tensor:
    """Expert weights in MXFP4: groups of 32 along the last dimension."""
    return pass_gradient(mxfp4_round_trip, weight)


def rows_mxfp8(x: Tensor) -> Tensor:
    """Activations, window keys and Engram rows in MXFP8."""
    return pass_gradient(mxfp8_round_trip, x)


def entries_nvfp4(x: Tensor) -> Tensor:
    """Compressed entries as the packed cache keeps them."""
    return pass_gradient(nvfp4_round_trip, x)


def index_mxfp4(x: Tensor) -> Tensor:
    """Index queries and keys as the packed cache keeps them."""
    return pass_gradient(mxfp4_round_trip, x)
