"""Hashes of n-grams, and the first occurrence of every n-gram of a text.

A text is int64 with `MAX_N` times `HEAD` before it. No token equals `HEAD`, so that n-grams that
reach over the beginning of the text need no special case: they occur nowhere else.

The hash of an n-gram is the sum of its tokens, each times a constant of its distance from the end,
modulo 2**64: one running sum gives the hashes of all lengths. Equal hashes are not taken for equal
n-grams anywhere.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["HEAD", "MAX_N", "MULTIPLIERS", "first_occurrences"]

MAX_N = 16
"""Longest n-gram."""

HEAD = -1
"""Stands before a text, `MAX_N` times, and after it."""

MULTIPLIERS = np.random.default_rng(20260211).integers(2**60, 2**63, MAX_N) | 1
"""Factor of the token at each distance from the end of an n-gram, odd int64 [MAX_N]."""


def first_occurrences(
    text: NDArray[np.int64], min_n: int, max_n: int
) -> Iterator[tuple[int, NDArray[np.int64], int]]:
    """The n-grams of a text that begin after its head, shortest first.

    n-grams are numbered exactly, those of each length by the numbers of the length before.

    Args:
        text: With its head.
        min_n: Length of the shortest n-gram.
        max_n: Length of the longest n-gram.

    Yields:
        Length; the places after the first occurrences of the n-grams of this length; and which of
        these places is that of the n-gram at the end of the text. Places count from the head's
        first token.
    """
    tokens = text[MAX_N:]
    numbers = tokens
    for n in range(1, min(max_n, len(tokens)) + 1):
        if n > 1:
            numbers = (numbers[:-1] << 32) | tokens[n - 1 :]
        if n == 1 < min_n:
            continue
        _, firsts, numbers = np.unique(numbers, return_index=True, return_inverse=True)
        if n >= min_n:
            yield n, firsts + (MAX_N + n), int(firsts[numbers[-1]]) + MAX_N + n
