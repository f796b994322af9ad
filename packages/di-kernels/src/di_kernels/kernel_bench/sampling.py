"""The draw of tokens beside what torch offers: the reference, and a race of exponentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels.cases.case import Source
from di_kernels.cases.kernels.release import VOCABULARY
from di_kernels.kernel_bench.timing import Workload
from di_kernels.kernel_bench.torch_ways import ways_of

# The reference's noise in float64 takes milliseconds for more rows.
_REFERENCE_ROWS = 16


def draw(source: Source) -> Iterator[Workload]:
    """The release's vocabulary: drawn rows with and without a mask, greedy rows."""
    for num_rows in (1, 16, 64, 256):
        logits = source.wide(num_rows, VOCABULARY, scale=3)
        seed, position = source.integers(0, 2**62, 2, num_rows).unbind()
        mask = source.integers(-(2**31), 2**31, num_rows, VOCABULARY // 32).to(torch.int32)
        likely = torch.zeros_like(mask).scatter(
            1, logits.topk(50).indices // 32, -1
        )  # what filters leave: few tokens
        for kind, degrees, bits in (
            ("drawn", 0.7, None), ("drawn, masked", 0.7, mask),
            ("drawn, few tokens left", 0.7, likely), ("greedy", 0.0, None),
        ):  # fmt: skip
            temperature = torch.full(
                (num_rows,), degrees, dtype=torch.float64, device=source.device
            )
            ways = ways_of(
                "draw_tokens", logits, temperature, seed, position, bits, 0, compiles=False
            )
            if num_rows > _REFERENCE_ROWS:
                del ways["torch"]
            if degrees == 0:
                ways["torch argmax"] = _argmax(logits)
            elif bits is None:
                ways["torch exponential race"] = _exponential_race(logits, temperature)
            moved = logits.nbytes + (0 if bits is None else bits.nbytes)
            yield Workload("draw_tokens", f"{num_rows} rows, {kind}", ways, moved, 0)


def _argmax(logits: torch.Tensor) -> Callable[[], object]:
    return lambda: logits.argmax(1)


def _exponential_race(logits: torch.Tensor, temperature: torch.Tensor) -> Callable[[], object]:
    """Softmax divided by exponential noise of a stateful generator, then the maximum."""

    def call() -> torch.Tensor:
        weights = torch.softmax(logits / temperature.float().unsqueeze(1), dim=1)
        return weights.div_(torch.empty_like(weights).exponential_()).argmax(1)

    return call
