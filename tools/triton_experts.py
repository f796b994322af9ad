"""The expert products of OpenAI's `triton_kernels`, for `compare_experts.py`.

The folder `python/triton_kernels` of the Triton repository (MIT), in the version of Triton 3.5.1,
which vLLM 0.22.1 ships for Triton 3.6. It is no package of its own: the index's `triton-kernels`
is another project.
"""

from __future__ import annotations

import importlib.util

import torch

from expert_problem import Problem, Result, timed

NUM_WARPS = (4, 8)
"""Warps of a program, with tiles of 128 and of 256 weight rows; the scales' layout depends on it.
Everything else is its own choice."""


def is_available() -> bool:
    """Whether the folder is importable, in a version with this interface."""
    if importlib.util.find_spec("triton_kernels") is None:
        return False
    names = ("triton_kernels.matmul_ogs", "triton_kernels.routing")
    return all(importlib.util.find_spec(name) is not None for name in names)


class TritonExperts:
    """One matrix in the layout it makes for Hopper, bfloat16 activations."""

    def __init__(self, problem: Problem, num_warps: int) -> None:
        from triton_kernels.matmul_ogs import PrecisionConfig
        from triton_kernels.matmul_ogs_details.opt_flags import update_opt_flags_constraints
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        # As vLLM does on Hopper.
        update_opt_flags_constraints({"split_k": 1})
        self.problem, self.num_warps = problem, num_warps
        # Columns of the weight are its dimension 1.
        values = wrap_torch_tensor(problem.weight.data.transpose(1, 2), dtype=FP4)
        scale = wrap_torch_tensor(problem.weight.scale.transpose(1, 2))
        of_values, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        of_scale, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(
            mx_axis=1, num_warps=num_warps
        )
        self.weight = convert_layout(values, of_values, **value_options)
        self.precision = PrecisionConfig(
            weight_scale=convert_layout(scale, of_scale, **scale_options),
            out_dtype=torch.bfloat16,
        )

    def run(self, rows: int) -> Result:
        """Rows sorted by expert; what it derives from their numbers is made once."""
        from triton_kernels.matmul_ogs import matmul_ogs
        from triton_kernels.routing import RoutingData, compute_expt_data

        problem = self.problem
        counts = torch.tensor(problem.counts, dtype=torch.int32, device="cuda")
        tiles = compute_expt_data(counts, problem.num_experts, problem.pairs)
        routing = RoutingData(None, counts, problem.num_experts, 1, tiles)

        def call() -> torch.Tensor:
            y: torch.Tensor = matmul_ogs(
                problem.x, self.weight, None, routing, precision_config=self.precision
            )
            return y

        error = problem.error(call(), "bfloat16", swiglu=False)
        return Result(
            problem.matrix, problem.num_experts, rows, problem.pairs, "bfloat16", "triton_kernels",
            f"own choice, {self.num_warps} warps", *timed(call), error,
        )  # fmt: skip
