"""Goodness-of-fit tests without scipy."""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["chi_square_p_value", "total_variation"]


def chi_square_p_value(counts: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    """Probability of a chi-square statistic at least this large if the law is right.

    Cells expected fewer than five times are joined into one. A count in a cell of expectation zero
    gives 0.

    Args:
        counts: Observed counts, [cells].
        expected: Expected counts, [cells], same total up to rounding.
    """
    counts, expected = np.asarray(counts, float).ravel(), np.asarray(expected, float).ravel()
    if counts[expected == 0].any():
        return 0.0
    is_rare = expected < 5
    counts = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) < 2:
        return 1.0
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return _upper_gamma((len(counts) - 1) / 2, statistic / 2)


def total_variation(p: NDArray[np.floating], q: NDArray[np.floating]) -> float:
    """Half the sum of absolute differences of two distributions."""
    return float(np.abs(np.asarray(p) - np.asarray(q)).sum() / 2)


def _upper_gamma(a: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(a, x); series and continued fraction."""
    if x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > 1e-15 * abs(total):
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - total * scale)
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    value = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b or tiny)
        c = b + an / c or tiny
        value *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return scale * value
