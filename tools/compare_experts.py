"""Times the expert products of di-kernels beside those of two public libraries on one GPU.

Needs a Hopper GPU, `di-kernels[tilelang]`, and for the other sides (each left out with a message
where it does not import) `humming-kernels` 0.1.20 (PyPI, Apache-2.0), which compiles with nvcc, and
OpenAI's `triton_kernels`, a folder that vLLM's wheel holds too (261 MB; MIT):

    pip install humming-kernels==0.1.20 tqdm tabulate
    pip download --no-deps vllm==0.22.1
    unzip vllm-0.22.1-*.whl 'vllm/third_party/triton_kernels/*'
    export PYTHONPATH=$PWD/vllm/third_party
    python tools/compare_experts.py --experts 48,96 --ragged 64,256,1024 --json

All sides get the same MXFP4 weights and the same rows, sorted by expert, every expert with as many
(`--ragged TOKENS`: what so many tokens with 6 of 384 experts each, at random, bring to these).
Activations are bfloat16, or e4m3 with one scale per row; `triton_kernels` multiplies MXFP4 with
bfloat16 alone on Hopper. Humming runs the schedules it chooses itself for its indexed and its
grouped product, and the one of `humming_schedules.json`, found by a search over 2,500 schedules
with equal rows on an H200. Our first matrix includes SwiGLU and the routing weight, theirs do not.
Times are medians of graph replays with the L2 cache filled with other data before every call;
errors are against float64 for the first and the last expert.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from di_kernels import mxfp4_to_e4m3_fragment_order, mxfp4_to_fragment_order
from di_kernels.bench import environment
from di_kernels.tile import experts, experts_e4m3
from di_kernels.tile.plan import TileList, make_plan, new_handover, tiles_for
from expert_problem import LIMIT, SHAPES, Problem, Result, timed
from humming_experts import Humming, candidates
from triton_experts import NUM_WARPS, TritonExperts, is_available

ACTIVATIONS = ("bfloat16", "fp8")
ALL_EXPERTS, ACTIVE = 384, 6

HummingJob = tuple[Humming, str, dict[str, Any], str, Future[Any]]
"""Layer, product, schedule, its label, and the compilation under way."""


def tile_lists(problem: Problem, rows: int, *, fp8_input: bool) -> tuple[TileList, ...]:
    """The plan of the op; for equal rows the tiles that fit them, without empty ones."""
    if not rows:
        return make_plan(problem.indices, problem.num_experts, fp8_input=fp8_input).lists
    sizes = tiles_for(fp8_input=fp8_input)
    size = next((size for size in sizes if rows <= size), max(sizes))
    tiles = [
        [expert, expert * rows + first, (expert + 1) * rows]
        for expert in range(problem.num_experts)
        for first in range(0, rows, size)
    ]
    return (TileList(size, torch.tensor(tiles, dtype=torch.int32, device="cuda")),)


def run_ours(problem: Problem, activation: str, weight: Any, rows: int) -> Result:
    """Ours, tiles from the plan of the op."""
    lists = tile_lists(problem, rows, fp8_input=activation == "fp8")
    sizes = tuple(tile_list.rows for tile_list in lists)
    handover = new_handover(sizes, fp8_input=activation == "fp8", device=problem.x.device).cleared()
    swiglu = problem.matrix == "w13"
    row_weights = problem.row_weights if swiglu else None

    def call() -> torch.Tensor:
        if activation == "fp8":
            return experts_e4m3.routed_product(
                problem.codes, problem.scales, weight, lists, handover, row_weights, LIMIT
            )
        return experts.routed_product(problem.x, weight, lists, handover, row_weights, LIMIT)

    error = problem.error(call(), activation, swiglu=swiglu)
    return Result(
        problem.matrix, problem.num_experts, rows, problem.pairs, activation, "di-kernels",
        f"tiles of {' and '.join(str(tiles.rows) for tiles in lists)}", *timed(call), error,
    )  # fmt: skip


def all_counts(args: argparse.Namespace, num_experts: int) -> Iterator[tuple[int, list[int]]]:
    """Rows of every expert: equal, then random (with 0 for the rows of each)."""
    for rows in args.rows:
        yield rows, [rows] * num_experts
    for tokens in args.ragged:
        generator = torch.Generator().manual_seed(tokens)
        chosen = torch.rand(tokens, ALL_EXPERTS, generator=generator).topk(ACTIVE, 1).indices
        yield 0, chosen.flatten().bincount(minlength=ALL_EXPERTS)[:num_experts].tolist()


def compare(args: argparse.Namespace, libraries: list[str]) -> Iterator[Result]:
    """Every product of every number of rows; Humming's kernels are compiled side by side."""
    pool = ThreadPoolExecutor(os.cpu_count())
    for num_experts in args.experts:
        routings = list(all_counts(args, num_experts))
        for matrix in SHAPES:
            problem = Problem(matrix, num_experts)
            jobs: list[list[HummingJob]] = [[] for _ in routings]
            for activation in ACTIVATIONS if "humming" in libraries else ():
                layer = Humming(problem, activation)
                for of_routing, (rows, counts) in zip(jobs, routings, strict=True):
                    of_routing += [
                        (layer, *candidate, pool.submit(layer.kernel, *candidate[:2]))
                        for candidate in candidates(layer, rows, sum(counts))
                    ]
            triton = triton_layers(problem) if "triton_kernels" in libraries else []
            yield from compare_matrix(problem, routings, jobs, triton)


def triton_layers(problem: Problem) -> list[TritonExperts]:
    """Its layouts; none where another version of the folder is imported."""
    layers = []
    for num_warps in NUM_WARPS:
        try:
            layers.append(TritonExperts(problem, num_warps))
        except (ImportError, TypeError, AttributeError) as error:
            report_failure(num_warps, error)
    return layers


def report_failure(num_warps: int, error: Exception) -> None:
    """The end of what it says."""
    text = f"{type(error).__name__}: {str(error).strip()[-300:]}"
    print(f"triton_kernels, {num_warps} warps: {text}", file=sys.stderr)


def compare_matrix(
    problem: Problem,
    routings: list[tuple[int, list[int]]],
    jobs: list[list[HummingJob]],
    triton: list[TritonExperts],
) -> Iterator[Result]:
    """One matrix, ours first."""
    interleaved = problem.matrix == "w13"
    ours = {
        "bfloat16": mxfp4_to_fragment_order(problem.weight, interleave_gate_up=interleaved),
        "fp8": mxfp4_to_e4m3_fragment_order(problem.weight, interleave_gate_up=interleaved),
    }
    for (rows, counts), of_routing in zip(routings, jobs, strict=True):
        problem.set_rows(counts)
        for activation, weight in ours.items():
            yield run_ours(problem, activation, weight, rows)
        for layer, gemm, tuning, label, compiled in of_routing:
            try:
                compiled.result()
                yield layer.run(gemm, tuning, label, rows)
            except (AssertionError, RuntimeError, ValueError) as error:
                print(f"humming, {label}: {str(error)[:200]}", file=sys.stderr)
        for one in triton:
            # Another compiler: it raises errors of many kinds.
            try:
                yield one.run(rows)
            except Exception as error:
                report_failure(one.num_warps, error)


def numbers(text: str) -> list[int]:
    """Comma separated."""
    return [int(part) for part in text.split(",") if part]


def main() -> int:
    """Prints one line per product, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--experts", type=numbers, default=[48])
    parser.add_argument("--rows", type=numbers, default=[1, 8, 16, 32, 64, 128])
    parser.add_argument("--ragged", type=numbers, default=[], help="tokens of random routing")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU of compute capability 9.0, there is none here", file=sys.stderr)
        return 3
    available = {
        "humming": importlib.util.find_spec("humming") is not None,
        "triton_kernels": is_available(),
    }
    for library in (name for name, found in available.items() if not found):
        print(f"`{library}` does not import: left out", file=sys.stderr)
    os.environ.setdefault("HUMMING_COMPILER", "nvcc")
    started, results = time.perf_counter(), []
    for result in compare(args, [name for name, found in available.items() if found]):
        results.append(asdict(result))
        if not args.json:
            print(
                f"{result.matrix:4} {result.experts:3} experts {result.rows or 'ragged':>6} rows  "
                f"{result.activation:8}  {result.library:14}  {result.median_us:8.1f} us  "
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
