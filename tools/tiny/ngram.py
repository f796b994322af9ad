"""An interpolated n-gram model over the same tokens: what counting alone predicts.

Witten-Bell smoothing: p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h)), with t(h) the number of
different tokens seen after h and h' the history without its oldest token. Below one token of
history stands the uniform distribution.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tiny.measure import scored_bytes
from tiny.prepare import TokenStream

_BITS = 12  # per token; five of them fit into an int64


class NgramModel:
    """Counts of all n-grams up to an order.

    Args:
        stream: Training tokens; n-grams cross documents, whose edges are tokens of their own.
        order: Longest n-gram, at most 5.
        vocab_size: Tokens, at most 4096.

    Raises:
        ValueError: The order or the vocabulary is too large to pack.
    """

    def __init__(self, stream: TokenStream, order: int, vocab_size: int) -> None:
        if not 1 <= order <= 5 or vocab_size > 1 << _BITS:
            raise ValueError(f"order 1 to 5 and at most 4096 tokens: {order}, {vocab_size}")
        self.order, self.vocab_size = order, vocab_size
        tokens = stream.tokens.astype(np.int64)
        self.counts = [_count(_packed(tokens, length)) for length in range(1, order + 1)]
        # History of length n - 1: how often it was continued, and by how many different tokens.
        self.continued = []
        for keys, counts in self.counts:
            histories, first = np.unique(keys >> _BITS, return_index=True)
            total = np.add.reduceat(counts, first)
            kinds = np.diff(np.append(first, len(keys)))
            self.continued.append((histories, total, kinds))

    def probabilities(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probability of every token but the first, given those before it."""
        made = np.full(len(tokens) - 1, 1 / self.vocab_size)
        for length in range(1, self.order + 1):
            packed = _packed(tokens, length)
            if length == 1:
                packed = packed[1:]
            start = len(made) - len(packed)  # the first tokens have less history
            if len(packed) == 0:
                break
            seen = _look_up(*self.counts[length - 1], packed)
            histories, total, kinds = self.continued[length - 1]
            before = packed >> _BITS
            history = _look_up(histories, total, before)
            different = _look_up(histories, kinds, before)
            lower = made[start:]
            denominator = np.maximum(history + different, 1)
            made[start:] = np.where(history > 0, (seen + different * lower) / denominator, lower)
        return made

    def bits_per_byte(self, stream: TokenStream) -> dict[str, float]:
        """Bits per byte by source and over all of held-out documents, each on its own."""
        bits = np.zeros(len(stream.names))
        ends = np.append(stream.starts[1:], len(stream.tokens))
        for begin, end, source in zip(stream.starts, ends, stream.sources, strict=True):
            made = self.probabilities(stream.tokens[begin:end].astype(np.int64))
            bits[source] -= np.log(made).sum() / math.log(2)
        sizes = scored_bytes(stream)
        names = enumerate(stream.names)
        found = {name: float(bits[i] / sizes[i]) for i, name in names if sizes[i]}
        found["all"] = float(bits.sum() / sizes.sum())
        return found


def _packed(tokens: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """N-grams as single numbers, the newest token in the lowest bits."""
    count = max(len(tokens) - length + 1, 0)
    packed = np.zeros(count, dtype=np.int64)
    for offset in range(length):
        packed = packed << _BITS | tokens[offset : offset + count]
    return packed


def _count(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    keys, counts = np.unique(packed, return_counts=True)
    return keys, counts.astype(np.int64)


def _look_up(
    keys: NDArray[np.int64], values: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Values of the wanted keys, 0 for those that are absent."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
