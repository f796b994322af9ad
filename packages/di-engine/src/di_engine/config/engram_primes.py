"""The prime table sizes of Engram's hash columns.

Every column of an Engram layer (one n-gram order, one hash head) has a table of its own, whose row
count is a prime. One ascending search serves all layers: layers in configuration order, orders
2 to `max_ngram_size`, heads 0 to `n_heads` - 1, each taking the smallest prime that is at least the
start value and not taken before. Source: DeepSeek-V4.1 reference `inference/engram.py`; the
release sizes 384006168 and 384016682 follow from start 16000000, 4-grams and 8 heads.
"""

from __future__ import annotations

from math import isqrt

__all__ = ["engram_primes"]

# Deterministic Miller-Rabin: these bases decide every integer below 3.3e24.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_TRIAL_LIMIT = 10_000


def _is_prime(number: int) -> bool:
    if number < _TRIAL_LIMIT:
        return number > 1 and all(number % d for d in range(2, isqrt(number) + 1))
    if any(number % witness == 0 for witness in _WITNESSES):
        return False
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, witness, odd, twos) for witness in _WITNESSES)


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def engram_primes(
    num_layers: int, max_ngram_size: int, start: int, n_heads: int
) -> tuple[tuple[int, ...], ...]:
    """Returns the table size of every hash column of every Engram layer.

    Args:
        num_layers: Number of Engram layers.
        max_ngram_size: Largest n-gram order; orders run from 2.
        start: Smallest table size (`engram_vocab_size` of the configuration).
        n_heads: Hash heads per order.

    Returns:
        One tuple per layer with `(max_ngram_size - 1) * n_heads` primes, order-major. Their sum is
        the layer's entry of `engram_num_embeddings`; the row offset of a column is the sum of the
        primes before it.
    """
    columns = (max_ngram_size - 1) * n_heads
    candidate = start - 1
    layers = []
    for _ in range(num_layers):
        primes: list[int] = []
        while len(primes) < columns:
            candidate += 1
            if _is_prime(candidate):
                primes.append(candidate)
        layers.append(tuple(primes))
    return tuple(layers)
