"""Experts and linears against float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import (
    ACTIVE,
    EXPERT_SIZE,
    HIDDEN,
    LIMIT,
    LINEARS,
    ROWS,
    expert_weights,
    random_mxfp8,
)
from di_kernels.fragments import (
    MXFP8FragmentWeight,
    mxfp8_to_fragment_order,
)

_CHECKED_EXPERTS = 8
_ROWS_OF_LINEARS = (9, 16, 17, 32)
"""Edges of their small tiles, beside `ROWS`."""


def cases(source: Source) -> Iterator[Case]:
    """Every matrix of the release, ragged routing."""
    yield from _expert_cases(source)
    yield from _linear_cases(source)


def _expert_cases(source: Source) -> Iterator[Case]:
    w13, w2 = expert_weights(source, _CHECKED_EXPERTS)
    for num_rows in ROWS:
        # Large enough that the experts weigh as much as the shared rows, and some values clamp.
        x = source.normal(num_rows, HIDDEN, scale=2)
        # Ragged: the first expert is everybody's, the last nobody's; some places are empty.
        indices = source.integers(-1, _CHECKED_EXPERTS - 1, num_rows, ACTIVE)
        indices[:, 0] = 0
        weights, shared = source.wide(num_rows, ACTIVE).abs(), source.normal(num_rows, HIDDEN)

        def run(
            rows: torch.Tensor,
            x: torch.Tensor = x,
            indices: torch.Tensor = indices,
            weights: torch.Tensor = weights,
            shared: torch.Tensor = shared,
        ) -> Outputs:
            out = ops.moe_experts(
                x[rows], indices[rows], weights[rows], w13, w2, limit=LIMIT, shared=shared[rows],
                batch_invariant=source.batch_invariant,
            )  # fmt: skip
            return (out,)

        def oracle(
            x: torch.Tensor = x,
            indices: torch.Tensor = indices,
            weights: torch.Tensor = weights,
            shared: torch.Tensor = shared,
        ) -> Outputs:
            total = shared.double()
            for expert in range(_CHECKED_EXPERTS):
                share = (weights.double() * (indices == expert)).sum(1, keepdim=True)
                up, down = w13[expert].dequantize(torch.float64), w2[expert].dequantize()
                gates = (x.double() @ up.T).bfloat16().double()
                gate = gates[:, :EXPERT_SIZE].clamp_max(LIMIT)
                product = gates[:, EXPERT_SIZE:].clamp(-LIMIT, LIMIT) * gate / (1 + (-gate).exp())
                hidden = (product * share).bfloat16().double()
                total = total + (hidden @ down.double().T).bfloat16().double()
            return (total,)

        label = f"{num_rows}x{HIDDEN}x{EXPERT_SIZE}, {ACTIVE} of {_CHECKED_EXPERTS}, ragged"
        yield Case("moe_experts", label, source.dtype, num_rows, run, oracle)


def _linear_cases(source: Source) -> Iterator[Case]:
    for name, (groups, rows_per_group, columns) in LINEARS.items():
        weight = mxfp8_to_fragment_order(random_mxfp8(source, groups * rows_per_group, columns))
        dense = weight.dequantize(torch.float64).view(groups, rows_per_group, columns)
        for num_rows in (*ROWS, *_ROWS_OF_LINEARS):
            x = source.normal(num_rows, groups, columns)

            def run(
                rows: torch.Tensor, x: torch.Tensor = x, weight: MXFP8FragmentWeight = weight
            ) -> Outputs:
                if x.shape[1] == 1:
                    flat = x[rows].flatten(1)
                    out = ops.linear(flat, weight, batch_invariant=source.batch_invariant)
                    return (out,)
                invariant = source.batch_invariant
                return (ops.grouped_linear(x[rows], weight, batch_invariant=invariant),)

            def oracle(x: torch.Tensor = x, dense: torch.Tensor = dense) -> Outputs:
                out = torch.einsum("tgk,gmk->tgm", x.double(), dense)
                return (out.flatten(1) if x.shape[1] == 1 else out,)

            op = "mxfp8_linear" if groups == 1 else "grouped_linear"
            label = f"{name} {num_rows}x{groups}x{rows_per_group}x{columns}"
            yield Case(op, label, source.dtype, num_rows, run, oracle)
