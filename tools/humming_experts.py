"""The expert products of the public `humming-kernels` 0.1.20, for `compare_experts.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from expert_problem import Problem, Result, timed

SCHEDULES = Path(__file__).with_name("humming_schedules.json")


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
    """Product, schedule and label.

    For random routing and numbers of rows that were not searched, schedules of 1 to 2 times the
    average.
    """
    problem = layer.problem
    for gemm in ("indexed", "grouped_contiguous"):
        yield gemm, layer.own_choice(gemm, pairs), f"own choice, {gemm}"
    average, entries = pairs / problem.num_experts, json.loads(SCHEDULES.read_text())
    was_searched = rows in {entry["rows"] for entry in entries}
    for entry in entries:
        fits = entry["rows"] == rows if was_searched else average <= entry["rows"] <= 2 * average
        key = (entry["activation"], entry["matrix"], entry["experts"])
        if fits and key == (layer.activation, problem.matrix, problem.num_experts):
            label = f"tuned for {entry['rows']} rows, {entry['gemm']}"
            yield entry["gemm"], as_tuning(entry["schedule"]), label
