"""Times the expert products of di-kernels beside those of the public `humming-kernels` on one GPU.

Needs a Hopper GPU, `di-kernels[tilelang]`, and for the other side `humming-kernels` 0.1.20 (PyPI,
Apache-2.0; left out with a message where it does not import). It compiles with nvcc:

    pip install humming-kernels==0.1.20 tqdm tabulate
    python tools/compare_experts.py --experts 48 --rows 1,8,16,32,64,128 --json

Both sides get the same MXFP4 weights and the same rows, sorted by expert, every expert with as many
(`--ragged ROWS`: as random routing of so many rows to 6 experts gives them). Activations are
bfloat16, or e4m3 with one scale per row. Humming runs the schedules it chooses itself for its
indexed and its grouped product, and the one of `humming_schedules.json`, found by a search over
2,500 schedules on an H200. Our first matrix includes SwiGLU and the routing weight, Humming's does
not: it has another kernel for that. Times are medians of graph replays with the L2 cache
filled with other data before every call; errors are against float64 for the first and the last
expert.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from di_kernels import mxfp4_to_e4m3_fragment_order, mxfp4_to_fragment_order, ops
from di_kernels.bench import environment
from di_kernels.kernel_bench.timing import graph_times
from di_kernels.tile import experts, experts_e4m3
from di_kernels.tile.catalogue.products import ROUTED_TILES
from di_kernels.tile.plan import TileList, make_plan
from di_kernels.weights import MXFP4Weight

SHAPES = {"w13": (4608, 5120), "w2": (5120, 2304)}
"""Output rows and columns of one expert."""
LIMIT = 10.0
ACTIVATIONS = ("bfloat16", "fp8")
SCHEDULES = Path(__file__).with_name("humming_schedules.json")


@dataclass(frozen=True)
class Result:
    """One product by one library.

    Args:
        matrix: `w13` or `w2`.
        experts: Number of experts.
        rows: Rows of each; 0 for random routing.
        pairs: Rows together.
        activation: `bfloat16` or `fp8`.
        library: `di-kernels` or `humming`.
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


def tile_lists(problem: Problem, rows: int) -> tuple[TileList, ...]:
    """The plan of the op; for equal rows the tiles that fit them, without empty ones."""
    if not rows:
        return make_plan(problem.indices, problem.num_experts).lists
    size = next((size for size in ROUTED_TILES if rows <= size), max(ROUTED_TILES))
    tiles = [
        [expert, expert * rows + first, (expert + 1) * rows]
        for expert in range(problem.num_experts)
        for first in range(0, rows, size)
    ]
    return (TileList(size, torch.tensor(tiles, dtype=torch.int32, device="cuda")),)


def run_ours(problem: Problem, activation: str, weight: Any, rows: int) -> Result:
    """Ours, tiles from the plan of the op."""
    lists = tile_lists(problem, rows)
    swiglu = problem.matrix == "w13"
    row_weights = problem.row_weights if swiglu else None

    def call() -> torch.Tensor:
        if activation == "fp8":
            return experts_e4m3.routed_product(
                problem.codes, problem.scales, weight, lists, row_weights, LIMIT
            )
        return experts.routed_product(problem.x, weight, lists, row_weights, LIMIT)

    error = problem.error(call(), activation, swiglu=swiglu)
    return Result(
        problem.matrix, problem.num_experts, rows, problem.pairs, activation, "di-kernels",
        f"tiles of {' and '.join(str(tiles.rows) for tiles in lists)}", *timed(call), error,
    )  # fmt: skip


class Humming:
    """One matrix in Humming's layout, and its launches."""

    def __init__(self, problem: Problem, activation: str) -> None:
        from humming import schema, transform

        a_dtype = "float8e4m3" if activation == "fp8" else "bfloat16"
        tensors = {
            "weight": problem.weight.data.view(torch.int32),
            "weight_scale": problem.weight.scale.view(torch.float8_e8m0fnu),
        }
        self.problem, self.activation = problem, activation
        self.config = transform.prepare_layer_config(
            shape_n=problem.size, shape_k=problem.columns, num_experts=problem.num_experts,
            weight_schema=schema.HummingWeightSchema(
                b_dtype="float4e2m1", bs_dtype="float8e8m0", weight_scale_group_size=32
            ),
            input_schema=schema.HummingInputSchema(a_dtype=a_dtype, input_scale_group_size=0),
            torch_dtype=torch.bfloat16, device=0, tensors=tensors,
        )  # fmt: skip
        self.tensors = transform.transform_humming_tensors(self.config, tensors)
        self.locks = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")

    def own_choice(self, gemm: str, pairs: int) -> dict[str, Any]:
        """Schedule of its heuristics."""
        from humming.tune import get_heuristics_config

        chosen = get_heuristics_config(self.config, shape_m=pairs, gemm_type=gemm)
        return as_tuning(chosen)

    def kernel(self, gemm: str, tuning: dict[str, Any]) -> Any:
        """Compiles, or takes from its cache on disk."""
        from humming.kernel.humming import HummingKernel

        return HummingKernel.prepare_kernels(self.config.to_str(), {"gemm_type": gemm}, tuning)

    def run(self, gemm: str, tuning: dict[str, Any], label: str, rows: int) -> Result:
        """One schedule."""
        from humming import ops as humming_ops

        problem, kernel = self.problem, self.kernel(gemm, tuning)
        is_fp8 = self.activation == "fp8"
        y = torch.full((problem.pairs, problem.size), torch.nan, device="cuda").bfloat16()
        if gemm == "indexed":
            routing = indexed_routing(problem.counts, tuning["block_shape"][0], problem.pairs)
        else:
            routing = {"expert_layout": problem.offsets}

        def call() -> torch.Tensor:
            humming_ops.launch_kernel(
                configs=kernel, inputs=problem.codes if is_fp8 else problem.x, outputs=y,
                input_scale=problem.scales.view(-1, 1) if is_fp8 else None, locks=self.locks,
                **self.tensors, **routing,
            )  # fmt: skip
            return y

        error = problem.error(call(), self.activation, swiglu=False)
        return Result(
            problem.matrix, problem.num_experts, rows, problem.pairs, self.activation, "humming",
            label, *timed(call), error,
        )  # fmt: skip


def as_tuning(chosen: dict[str, Any]) -> dict[str, Any]:
    """A schedule as its kernels take it."""
    tuning: dict[str, Any] = {"num_ctas_per_sm": 1, "num_stages": 2}
    tuning |= {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in chosen.items()
        if key not in ("num_sms", "use_f16_accum") and value is not None
    }
    return tuning


def indexed_routing(counts: list[int], block: int, padding: int) -> dict[str, Any]:
    """Rows of each expert padded to whole blocks, as the indexed product reads them."""
    ids: list[int] = []
    owners: list[int] = []
    first = 0
    for expert, count in enumerate(counts):
        blocks = -(-count // block)
        ids += [*range(first, first + count), *[padding] * (blocks * block - count)]
        owners += [expert] * blocks
        first += count

    def on_device(values: list[int] | int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    return {
        "sorted_ids": on_device(ids),
        "expert_ids": on_device(owners),
        "num_tokens_padded": on_device(len(ids)),
        "top_k": 1,
    }


def candidates(layer: Humming, rows: int, pairs: int) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Product, schedule and label of everything to time; random routing takes what is near."""
    problem = layer.problem
    for gemm in ("indexed", "grouped_contiguous"):
        yield gemm, layer.own_choice(gemm, pairs), f"own choice, {gemm}"
    average = pairs / problem.num_experts
    for entry in json.loads(SCHEDULES.read_text()):
        fits = entry["rows"] == rows if rows else average / 2 <= entry["rows"] <= 2 * average
        key = (entry["activation"], entry["matrix"], entry["experts"])
        if fits and key == (layer.activation, problem.matrix, problem.num_experts):
            label = f"tuned for {entry['rows']} rows, {entry['gemm']}"
            yield entry["gemm"], as_tuning(entry["schedule"]), label


def all_counts(args: argparse.Namespace, num_experts: int) -> Iterator[tuple[int, list[int]]]:
    """Rows of every expert: equal, then random."""
    for rows in args.rows:
        yield rows, [rows] * num_experts
    for num_rows in args.ragged:
        generator = torch.Generator().manual_seed(num_rows)
        chosen = torch.rand(num_rows, num_experts, generator=generator).topk(6, 1).indices
        yield 0, chosen.flatten().bincount(minlength=num_experts).tolist()


def compare(args: argparse.Namespace, *, with_humming: bool) -> Iterator[Result]:
    """Every product of every number of rows; Humming's kernels are compiled side by side."""
    pool = ThreadPoolExecutor(os.cpu_count())
    for num_experts in args.experts:
        routings = list(all_counts(args, num_experts))
        jobs = []
        for matrix in SHAPES:
            problem = Problem(matrix, num_experts)
            for activation in ACTIVATIONS if with_humming else ():
                layer = Humming(problem, activation)
                jobs += [
                    (layer, rows, gemm, tuning, label, pool.submit(layer.kernel, gemm, tuning))
                    for rows, counts in routings
                    for gemm, tuning, label in candidates(layer, rows, sum(counts))
                ]
            yield from compare_matrix(problem, routings, jobs)
            jobs.clear()


def compare_matrix(
    problem: Problem, routings: list[tuple[int, list[int]]], jobs: list[tuple[Any, ...]]
) -> Iterator[Result]:
    """One matrix, ours first."""
    interleaved = problem.matrix == "w13"
    ours = {
        "bfloat16": mxfp4_to_fragment_order(problem.weight, interleave_gate_up=interleaved),
        "fp8": mxfp4_to_e4m3_fragment_order(problem.weight, interleave_gate_up=interleaved),
    }
    for rows, counts in routings:
        problem.set_rows(counts)
        for activation, weight in ours.items():
            yield run_ours(problem, activation, weight, rows)
        for layer, of_rows, gemm, tuning, label, compiled in jobs:
            if of_rows != rows:
                continue
            try:
                compiled.result()
                yield layer.run(gemm, tuning, label, rows)
            except (AssertionError, RuntimeError, ValueError) as error:
                print(f"humming, {label}: {str(error)[:200]}", file=sys.stderr)


def numbers(text: str) -> list[int]:
    """Comma separated."""
    return [int(part) for part in text.split(",") if part]


def main() -> int:
    """Prints one line per product, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--experts", type=numbers, default=[48])
    parser.add_argument("--rows", type=numbers, default=[1, 8, 16, 32, 64, 128])
    parser.add_argument("--ragged", type=numbers, default=[], help="rows of random routing")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU of compute capability 9.0, there is none here", file=sys.stderr)
        return 3
    with_humming = importlib.util.find_spec("humming") is not None
    if not with_humming:
        print("`humming-kernels` is not installed: ours alone", file=sys.stderr)
    os.environ.setdefault("HUMMING_COMPILER", "nvcc")
    started, results = time.perf_counter(), []
    for result in compare(args, with_humming=with_humming):
        results.append(asdict(result))
        if not args.json:
            print(
                f"{result.matrix:4} {result.experts:3} experts {result.rows or 'ragged':>6} rows  "
                f"{result.activation:8}  {result.library:10}  {result.median_us:8.1f} us  "
                f"error {result.error:.1e}  {result.schedule}",
                flush=True,
            )
    if args.json:
        seconds = time.perf_counter() - started
        record = {"environment": environment("cuda"), "seconds": seconds, "results": results}
        print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
