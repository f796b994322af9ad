"""From random bits to a token: Gumbel-max, and the inverse of the cumulative distribution.

Gumbel-max draws `argmax_v (log w_v + g_v)` with `g_v = -ln(-ln(1 - u_v))`; its law is `w / sum(w)`.
Every token has its own noise, so there is no prefix sum, a part of the vocabulary can be drawn from
alone, and a drafter that reads the same noise agrees with the target as often as the two
distributions allow. Equal scores go to the lower token id.

`u = (bits + 1/2) 2**-32`: small `-ln(1 - u)`, which wins, keeps its full relative precision.

The two logarithms are evaluated by a polynomial in plain IEEE float64 additions, multiplications
and divisions. Math libraries differ in the last bit of `log`; this one cannot, so that numpy,
torch on the CPU and torch on a GPU give the same noise and, for equal log-weights, the same token.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from di_spec.sampling.philox import Stream, counter_bits, philox4x32, row_bits

__all__ = ["draw", "gumbel", "gumbel_of_bits", "inverse_cdf", "portable_log"]

LN2_HIGH = float.fromhex("0x1.62E42FEE00000p-1")
LN2_LOW = float.fromhex("0x1.A39EF35793C76p-33")
"""ln 2 in two parts; the product of the first with an exponent is exact."""

SQRT2 = 1.4142135623730951
ATANH_COEFFICIENTS = tuple(1.0 / (2 * n + 1) for n in range(10, 0, -1))
"""Coefficients of `atanh(s) / s - 1` in `s**2`, highest first; |s| <= 0.172 needs ten."""

MANTISSA_MASK = (1 << 52) - 1
ONE_BITS = 1023 << 52


def portable_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive normal float64, the same bits on every IEEE machine.

    Error below 4e-16 relative to max(1, |ln x|).
    """
    bits = x.view(np.int64)
    exponent = ((bits >> 52) - 1023).astype(np.float64)
    mantissa = ((bits & MANTISSA_MASK) | ONE_BITS).view(np.float64)
    is_large = mantissa > SQRT2
    mantissa = np.where(is_large, mantissa * 0.5, mantissa)
    exponent = exponent + is_large
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = np.full_like(z, ATANH_COEFFICIENTS[0])
    for coefficient in ATANH_COEFFICIENTS[1:]:
        series = series * z + coefficient
    twice = s + s
    low = twice * (series * z) + exponent * LN2_LOW
    return exponent * LN2_HIGH + (twice + low)


def gumbel_of_bits(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Standard Gumbel noise of 32-bit words, float64 of the same shape, between -3.2 and 22.9."""
    complement = 1.0 - (bits.astype(np.float64) + 0.5) * 2.0**-32  # exact: 33 bits
    return -portable_log(-portable_log(complement))


def gumbel(
    seed: ArrayLike, stream: Stream, position: ArrayLike, token_id: ArrayLike, offset: ArrayLike = 0
) -> NDArray[np.float64]:
    """Gumbel noise of tokens at positions; arguments broadcast as in `counter_bits`."""
    return gumbel_of_bits(counter_bits(seed, stream, position, token_id, offset))


def draw(
    log_weights: NDArray[np.float64],
    seed: NDArray[np.uint64],
    position: NDArray[np.uint64],
    *,
    stream: Stream = Stream.TARGET,
    offset: ArrayLike = 0,
) -> NDArray[np.int64]:
    """Draws one token per row by Gumbel-max.

    Args:
        log_weights: Logarithms of unnormalised probabilities, [rows, V]; -inf is never drawn from a
            row with any finite entry.
        seed: Seeds, uint64 [rows].
        position: Index of the drawn token, uint64 [rows].
        stream: Purpose of the draw.
        offset: Offset inside the draft block, [rows] or one number.

    Returns:
        Token ids, int64 [rows].
    """
    noise = gumbel_of_bits(row_bits(seed, stream, position, log_weights.shape[1], offset))
    return np.asarray(np.argmax(log_weights + noise, axis=1), np.int64)


def inverse_cdf(
    probabilities: NDArray[np.floating[Any]],
    seed: NDArray[np.uint64],
    position: NDArray[np.uint64],
    *,
    stream: Stream = Stream.TARGET,
) -> NDArray[np.int64]:
    """Draws one token per row by an integer inverse of the cumulative distribution.

    The alternative to `draw`, for engines that need one random word per row and never verify by
    coupling: the two give different tokens for one seed and the same law. Weights are
    `floor(p 2**31)`, summed in plain column order; 32-bit words are rejected above the largest
    multiple of the total, so that the remainder has no bias (method of the CUDA sampler of
    DeepInfer 0.1.0, which visits the columns in another order).

    Args:
        probabilities: [rows, V], each in [0, 1], row sums at most 1 up to rounding.
        seed: Seeds, uint64 [rows].
        position: Index of the drawn token, uint64 [rows].
        stream: Purpose of the draw.

    Returns:
        Token ids, int64 [rows]; the most likely token where every weight rounds to zero.
    """
    weights = np.floor(probabilities.astype(np.float64) * 2.0**31).astype(np.int64)
    cumulative = np.cumsum(weights, axis=1)
    token_ids: NDArray[np.int64] = np.argmax(probabilities, axis=1).astype(np.int64)
    for row, total in enumerate(cumulative[:, -1].tolist()):
        if total > 0:
            number = _below(total, int(seed[row]), stream, int(position[row]))
            token_ids[row] = np.searchsorted(cumulative[row], number, side="right")
    return token_ids


def _below(total: int, seed: int, stream: Stream, position: int) -> int:
    """Uniform integer in [0, total), from as many Philox words as it takes."""
    limit = (2**32 - 1) // total * total
    block = 0
    while True:
        counter = (block, int(stream) << 24, position & 0xFFFFFFFF, position >> 32)
        for word in philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32)):
            if int(word) < limit:
                return int(word) % total
        block += 1
