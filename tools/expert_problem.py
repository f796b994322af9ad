"""What `compare_experts.py` measures: MXFP4 weights, rows of every expert, errors and times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from di_kernels import ops
from di_kernels.kernel_bench.timing import graph_times
from di_kernels.weights import MXFP4Weight

SHAPES = {"w13": (4608, 5120), "w2": (5120, 2304)}
"""Output rows and columns of one expert."""
LIMIT = 10.0


@dataclass(frozen=True)
class Result:
    """One product by one library.

    Args:
        matrix: `w13` or `w2`.
        experts: Number of experts.
        rows: Rows of each; 0 for random routing.
        pairs: Rows together.
        activation: `bfloat16` or `fp8`.
        library: `di-kernels`, `humming` or `triton_kernels`.
        schedule: What was chosen, in words.
        median_us: Median time.
        spread_us: Of the replays without the fastest and the slowest.
        error: Norm of the difference from float64 over the norm.
    """

    matrix: str
    experts: int
    rows: int
    pairs: int
    activation: str
    library: str
    schedule: str
    median_us: float
    spread_us: float
    error: float


class Problem:
    """Weights of all experts and rows sorted by expert."""

    def __init__(self, matrix: str, num_experts: int) -> None:
        torch.manual_seed(num_experts)
        self.matrix, self.num_experts = matrix, num_experts
        self.size, self.columns = SHAPES[matrix]
        shape = (num_experts, self.size, self.columns)
        data = torch.randint(0, 256, (*shape[:2], shape[2] // 2), dtype=torch.uint8, device="cuda")
        scale = torch.randint(
            115, 124, (*shape[:2], shape[2] // 32), dtype=torch.uint8, device="cuda"
        )
        self.weight = MXFP4Weight(data, scale)

    def set_rows(self, counts: list[int]) -> None:
        """Takes so many rows for every expert."""
        self.counts, self.pairs = counts, sum(counts)
        of_pair = torch.tensor([e for e, count in enumerate(counts) for _ in range(count)])
        self.indices = of_pair.to("cuda", torch.int32).view(-1, 1)
        ends = torch.tensor([0, *counts]).cumsum(0)
        self.offsets = ends.to("cuda", torch.int64)
        self.x = torch.randn(self.pairs, self.columns, device="cuda").bfloat16()
        self.codes, self.scales = ops.fp8_quantize(self.x)
        self.row_weights = torch.rand(self.pairs, device="cuda")

    def error(self, y: torch.Tensor, activation: str, *, swiglu: bool) -> float:
        """Of the rows of the first and of the last expert that has some."""
        used = [expert for expert, count in enumerate(self.counts) if count]
        difference = norm = 0.0
        for expert in {used[0], used[-1]}:
            rows = slice(int(self.offsets[expert]), int(self.offsets[expert + 1]))
            x = self.x[rows].double()
            if activation == "fp8":
                x = self.codes[rows].double() * self.scales[rows].double().unsqueeze(1)
            want = x @ self.weight[expert].dequantize(torch.float64).T
            if swiglu:
                want = ops.swiglu(
                    want.bfloat16().double(), LIMIT, row_weights=self.row_weights[rows]
                )
            difference += float((y[rows].double() - want).square().sum())
            norm += float(want.square().sum())
        return math.sqrt(difference / norm)


def timed(call: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Median and spread in microseconds."""
    times = sorted(graph_times(call, "cuda"))
    return statistics.median(times), times[-2] - times[1]
