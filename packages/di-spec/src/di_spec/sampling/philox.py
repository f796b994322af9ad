"""Random bits as a pure function: Philox4x32-10 over (seed, purpose, position, lane).

No generator object and no state between steps: preemption, batching order, recomputation and
retries cannot shift a stream, because there is none.

Layout of one Philox call (four 32-bit counter words, two key words):

    key      low word of the seed, high word of the seed
    word 0   lane // 4      the four output words serve four consecutive lanes (token ids)
    word 1   stream << 24 | offset      purpose of the draw and offset inside a draft block
    word 2,3 position, low and high word

The counter of stream `TARGET` at offset 0 and lanes 0..3 is the one of DeepInfer 0.1.0 for its
subsequence number `position` (cuRAND layout), so that published values of that generator check this
one. Purposes differ in a counter word instead of in the key: no two purposes share a Philox input
for any pair of seeds.

Source of the algorithm: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_OFFSET", "Stream", "counter_bits", "philox4x32", "row_bits", "uniform53"]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10
_OFFSET_BITS = 24
_CACHED_BLOCKS = 8192
"""Philox calls at a time, so that the words stay in the processor's cache."""

MAX_OFFSET = 2**_OFFSET_BITS - 1
"""Largest offset inside a draft block."""

Words = NDArray[np.uint64]


class Stream(IntEnum):
    """Purpose of a draw. Two draws of different purpose never share bits.

    `TARGET` is the draw of the model's own token; coupled drafters read it too, on purpose.
    `DRAFT`, `ACCEPT` and `RESIDUAL` serve the ratio test and block verification.
    """

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def philox4x32(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: tuple[ArrayLike, ArrayLike]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10.

    Args:
        counter: Four arrays of 32-bit words, any shapes that broadcast.
        key: Two arrays of 32-bit words, likewise.

    Returns:
        Four arrays of 32-bit words in uint64.
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, np.uint64) for word in key)
    for step in range(_ROUNDS):
        if step:
            k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c2 = (product_1 >> _SHIFT) ^ c1 ^ k0, (product_0 >> _SHIFT) ^ c3 ^ k1
        c1, c3 = product_1 & _LOW, product_0 & _LOW
    return c0, c1, c2, c3


def counter_bits(
    seed: ArrayLike, stream: Stream, position: ArrayLike, lane: ArrayLike, offset: ArrayLike = 0
) -> NDArray[np.uint32]:
    """32 random bits for each combination of the arguments, which broadcast.

    Args:
        seed: 64-bit seeds, uint64.
        stream: Purpose of the draw.
        position: Index of the token that is drawn, at least 0.
        lane: Token id, or number of the value at this position; below 2**34.
        offset: Offset of the position inside its draft block, 0 to `MAX_OFFSET`.

    Returns:
        uint32 array of the broadcast shape.
    """
    lane = np.asarray(lane, np.uint64)
    words = philox4x32(*_inputs(seed, stream, position, lane >> np.uint64(2), offset))
    chosen = np.choose((lane & np.uint64(3)).astype(np.intp), words)
    return np.asarray(chosen, np.uint32)


def row_bits(
    seed: NDArray[np.uint64],
    stream: Stream,
    position: NDArray[np.uint64],
    num_lanes: int,
    offset: ArrayLike = 0,
) -> NDArray[np.uint32]:
    """`counter_bits` of lanes 0 .. num_lanes - 1 for each row, with one Philox call for four lanes.

    Args:
        seed: Seeds, uint64 [rows].
        stream: Purpose of the draw.
        position: Positions, uint64 [rows].
        num_lanes: Number of lanes, for instance the size of the vocabulary.
        offset: Offsets inside the draft block, [rows] or one number.

    Returns:
        uint32 [rows, num_lanes].
    """
    num_blocks = (num_lanes + 3) // 4
    offset = np.asarray(offset, np.uint64)
    offset = offset[:, None] if offset.ndim else offset
    bits = np.empty((len(seed), num_blocks, 4), np.uint32)
    step = max(256, _CACHED_BLOCKS // max(1, len(seed)))
    for start in range(0, num_blocks, step):
        blocks = np.arange(start, min(start + step, num_blocks), dtype=np.uint64)
        inputs = _inputs(seed[:, None], stream, position[:, None], blocks, offset)
        for word, values in enumerate(philox4x32(*inputs)):
            bits[:, start : start + step, word] = values
    return bits.reshape(len(seed), -1)[:, :num_lanes]


def uniform53(
    seed: ArrayLike, stream: Stream, position: ArrayLike, offset: ArrayLike = 0
) -> NDArray[np.float64]:
    """A uniform number in [0, 1) with 53 random bits, from lanes 0 and 1.

    Args:
        seed: 64-bit seeds.
        stream: Purpose of the draw.
        position: Index of the token that is drawn.
        offset: Offset of the position inside its draft block.

    Returns:
        float64 array of the broadcast shape.
    """
    high, low, _, _ = philox4x32(*_inputs(seed, stream, position, np.uint64(0), offset))
    return ((high << np.uint64(21)) | (low >> np.uint64(11))).astype(np.float64) * 2.0**-53


def _inputs(
    seed: ArrayLike, stream: Stream, position: ArrayLike, block: ArrayLike, offset: ArrayLike
) -> tuple[tuple[Words, Words, Words, Words], tuple[Words, Words]]:
    seed, position = np.asarray(seed, np.uint64), np.asarray(position, np.uint64)
    block, offset = np.asarray(block, np.uint64), np.asarray(offset, np.uint64)
    purpose = np.uint64(int(stream) << _OFFSET_BITS) | offset
    return (
        (block, purpose, position & _LOW, position >> _SHIFT),
        (seed & _LOW, seed >> _SHIFT),
    )
