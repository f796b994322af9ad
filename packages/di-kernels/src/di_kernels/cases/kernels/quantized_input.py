"""Products whose activations are quantised first, against float64 from the quantised values."""

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
    expert_weights,
    random_mxfp8,
)
from di_kernels.formats import mxfp8_round_trip
from di_kernels.fragments import mxfp8_to_fragment_order

_ROWS = (1, 64)
_EXPERTS = 8


def cases(source: Source) -> Iterator[Case]:
    """A linear, and experts, which quantise the input of both products."""
    for num_rows in _ROWS:
        yield _linear_case(source, num_rows)
        yield _experts_case(source, num_rows)


def _linear_case(source: Source, num_rows: int) -> Case:
    weight = mxfp8_to_fragment_order(random_mxfp8(source, HIDDEN, EXPERT_SIZE))
    x = source.normal(num_rows, EXPERT_SIZE)

    def run(rows: torch.Tensor) -> Outputs:
        invariant = source.batch_invariant
        return (ops.linear(x[rows], weight, quantize_input=True, batch_invariant=invariant),)

    def oracle() -> Outputs:
        return (mxfp8_round_trip(x).double() @ weight.dequantize(torch.float64).T,)

    label = f"shared w2 {num_rows}x{HIDDEN}x{EXPERT_SIZE}, quantised input"
    return Case("mxfp8_linear", label, source.dtype, num_rows, run, oracle)


def _experts_case(source: Source, num_rows: int) -> Case:
    w13, w2 = expert_weights(source, _EXPERTS)
    x = source.normal(num_rows, HIDDEN, scale=0.02)
    indices = source.integers(0, _EXPERTS, num_rows, ACTIVE)
    weights = source.wide(num_rows, ACTIVE).abs()

    def run(rows: torch.Tensor) -> Outputs:
        out = ops.moe_experts(
            x[rows], indices[rows], weights[rows], w13, w2, limit=LIMIT, quantize_input=True,
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    def oracle() -> Outputs:
        total, quantised = x.double() * 0, mxfp8_round_trip(x).double()
        for expert in range(_EXPERTS):
            up = w13[expert].dequantize(torch.float64)
            down = w2[expert].dequantize(torch.float64)
            gates = (quantised @ up.T).bfloat16().double()
            gate = gates[:, :EXPERT_SIZE].clamp_max(LIMIT)
            product = gates[:, EXPERT_SIZE:].clamp(-LIMIT, LIMIT) * gate / (1 + (-gate).exp())
            for place in range(ACTIVE):
                share = (weights.double() * (indices == expert))[:, place : place + 1]
                hidden = mxfp8_round_trip((product * share).bfloat16()).double()
                total = total + (hidden @ down.T).bfloat16().double()
        return (total,)

    label = f"{num_rows}x{HIDDEN}x{EXPERT_SIZE}, {ACTIVE} of {_EXPERTS}, quantised input"
    return Case("moe_experts", label, source.dtype, num_rows, run, oracle)
