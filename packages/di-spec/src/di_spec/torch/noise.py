"""The counter-based noise of `di_spec.sampling` on tensors of any device: the same bits.

torch has no unsigned 32-bit arithmetic on every device, so words live in int64: a product of two
32-bit words wraps modulo 2**64, and its high word survives a masked arithmetic shift. On the CPU
the numpy code makes the bits, which takes a quarter of the time of the tensor code at 4,096 lanes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_spec.sampling import philox
from di_spec.sampling.gumbel import (
    ATANH_COEFFICIENTS,
    LN2_HIGH,
    LN2_LOW,
    MANTISSA_MASK,
    ONE_BITS,
    SQRT2,
)
from di_spec.sampling.gumbel import gumbel as numpy_gumbel
from di_spec.sampling.philox import Stream
from di_spec.torch.filters import to_device

__all__ = ["counter_bits", "gumbel", "gumbel_of_bits", "row_bits"]

_LOW = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10 on int64 tensors that hold 32-bit words; shapes broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for step in range(10):
        if step:
            k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c2 = (
            ((product_1 >> 32) & _LOW) ^ c1 ^ k0,
            ((product_0 >> 32) & _LOW) ^ c3 ^ k1,
        )
        c1, c3 = product_1 & _LOW, product_0 & _LOW
    return c0, c1, c2, c3


def counter_bits(
    seed: NDArray[np.uint64],
    stream: Stream,
    position: NDArray[np.uint64],
    lane: Tensor,
    offset: NDArray[np.int64] | int = 0,
) -> Tensor:
    """32 random bits for tokens of rows.

    Args:
        seed: Seeds, uint64 [rows].
        stream: Purpose of the draw.
        position: Positions, uint64 [rows].
        lane: Token ids, int64 [rows, n], any device.
        offset: Offset inside the draft block, [rows] or one number.

    Returns:
        int64 [rows, n] on the device of `lane`, values below 2**32.
    """
    if lane.device.type == "cpu":
        of_rows = np.asarray(offset)[..., None] if np.ndim(offset) else offset
        bits = philox.counter_bits(seed[:, None], stream, position[:, None], lane.numpy(), of_rows)
        return torch.from_numpy(bits.astype(np.int64))
    words = philox4x32(*_inputs(seed, stream, position, lane >> 2, offset))
    stacked = _stack(words)
    return stacked.gather(-1, (lane & 3).unsqueeze(-1)).squeeze(-1)


def row_bits(
    seed: NDArray[np.uint64],
    stream: Stream,
    position: NDArray[np.uint64] | Tensor,
    num_lanes: int,
    device: torch.device,
    offset: NDArray[np.int64] | Tensor | int = 0,
) -> Tensor:
    """`counter_bits` of lanes 0 .. num_lanes - 1, one Philox call for four lanes.

    Positions and offsets may be int64 tensors on `device`, which is then not waited for.

    Returns:
        int64 [rows, num_lanes] (uint32 on the CPU) on `device`.
    """
    if device.type == "cpu":
        if isinstance(position, Tensor):
            position = position.numpy().view(np.uint64)
        if isinstance(offset, Tensor):
            offset = offset.numpy()
        bits = philox.row_bits(seed, stream, position, num_lanes, np.asarray(offset))
        return torch.from_numpy(bits)
    blocks = torch.arange((num_lanes + 3) // 4, device=device).unsqueeze(0)
    words = philox4x32(*_inputs(seed, stream, position, blocks, offset))
    stacked = _stack(words)
    return stacked.reshape(len(seed), -1)[:, :num_lanes]


def gumbel(
    seed: NDArray[np.uint64],
    stream: Stream,
    position: NDArray[np.uint64],
    lane: Tensor,
    offset: NDArray[np.int64] | int = 0,
) -> Tensor:
    """Gumbel noise of tokens of rows, float64 [rows, n]; arguments as in `counter_bits`."""
    if lane.device.type == "cpu":
        of_rows = np.asarray(offset)[..., None] if np.ndim(offset) else offset
        return torch.from_numpy(
            numpy_gumbel(seed[:, None], stream, position[:, None], lane.numpy(), of_rows)
        )
    return gumbel_of_bits(counter_bits(seed, stream, position, lane, offset))


def gumbel_of_bits(bits: Tensor) -> Tensor:
    """Gumbel noise of 32-bit words, float64; the bits of `di_spec.sampling.gumbel`."""
    complement = 1.0 - (bits.to(torch.float64) + 0.5) * 2.0**-32
    return -_portable_log(-_portable_log(complement))


def _portable_log(x: Tensor) -> Tensor:
    """The operations of `di_spec.sampling.gumbel.portable_log`, in its order."""
    bits = x.view(torch.int64)
    exponent = ((bits >> 52) - 1023).to(torch.float64)
    mantissa = ((bits & MANTISSA_MASK) | ONE_BITS).view(torch.float64)
    is_large = mantissa > SQRT2
    mantissa = torch.where(is_large, mantissa * 0.5, mantissa)
    exponent = exponent + is_large
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = torch.full_like(z, ATANH_COEFFICIENTS[0])
    for coefficient in ATANH_COEFFICIENTS[1:]:
        series = series * z + coefficient
    twice = s + s
    low = twice * (series * z) + exponent * LN2_LOW
    return exponent * LN2_HIGH + (twice + low)


def _stack(words: Words) -> Tensor:
    """The four words of each call side by side, in one more dimension."""
    like = words[0] + words[1]  # each word depends on the block, or on the row alone
    return torch.stack([word.expand_as(like) for word in words], dim=-1)


def _inputs(
    seed: NDArray[np.uint64],
    stream: Stream,
    position: NDArray[np.uint64] | Tensor,
    block: Tensor,
    offset: NDArray[np.int64] | Tensor | int,
) -> tuple[Words, tuple[Tensor, Tensor]]:
    def column(values: NDArray[np.uint64]) -> Tensor:
        return to_device(values.view(np.int64).copy(), block.device).unsqueeze(1)

    seeds = column(seed)
    positions = position.unsqueeze(1) if isinstance(position, Tensor) else column(position)
    if isinstance(offset, Tensor):
        purpose = offset.unsqueeze(1) | (int(stream) << 24)
    else:
        rows = np.broadcast_to(np.asarray(offset, np.uint64), seed.shape)
        purpose = column(rows | np.uint64(int(stream) << 24))
    counter = (block, purpose, positions & _LOW, (positions >> 32) & _LOW)
    return counter, (seeds & _LOW, (seeds >> 32) & _LOW)
