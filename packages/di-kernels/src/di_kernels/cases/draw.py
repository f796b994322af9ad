"""Cases of the draw behind the last layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Sizes, Source

WORD = 0xFFFFFFFF


def cases(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    """Tokens of drawn and greedy rows."""
    yield _draw(sizes, source, num_rows)


def _draw(sizes: Sizes, source: Source, num_rows: int) -> Case:
    logits = source.wide(num_rows, sizes.entries)
    temperature = torch.tensor([0.7, 0.0, 2.0], dtype=torch.float64, device=source.device)
    temperature = temperature.repeat(num_rows)[:num_rows]
    seed, position = source.integers(0, 2**62, 2, num_rows).unbind()

    def run(rows: torch.Tensor) -> Outputs:
        return ops.draw_tokens(logits[rows], temperature[rows], seed[rows], position[rows])

    def oracle() -> Outputs:
        parts = (part.tolist() for part in (logits, temperature, seed, position))
        tokens = [_drawn(*row) for row in zip(*parts, strict=True)]
        return torch.tensor(tokens), torch.zeros(num_rows, dtype=torch.uint8)

    label = f"{num_rows}x{sizes.entries}"
    return Case("draw_tokens", label, logits.dtype, num_rows, run, oracle, True, logits.nbytes)


def _drawn(logits: list[float], temperature: float, seed: int, position: int) -> int:
    """The token of a row by Python integers and the library's logarithm."""
    scores = logits
    if temperature:
        words = [word for block in range(-(-len(logits) // 4)) for word in
                 philox([block, 0, position & WORD, position >> 32], seed)]  # fmt: skip
        scores = [
            logit / temperature - math.log(-math.log1p(-(word + 0.5) * 2.0**-32))
            for logit, word in zip(logits, words, strict=False)
        ]
    return scores.index(max(scores))


def philox(counter: list[int], seed: int) -> list[int]:
    """Four words of Philox4x32-10 by Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & WORD, seed >> 32 & WORD
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = second >> 32 ^ c1 ^ k0, first >> 32 ^ c3 ^ k1
        c1, c3 = second & WORD, first & WORD
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return [c0, c1, c2, c3]
