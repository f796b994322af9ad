"""Products whose activations are quantised first, against float64 from the quantised values.

Weights are as the device's backends take them: in fragment order, on SM100 with packed scales.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import (
    ACTIVE,
    EXPERT_SIZE,
    HIDDEN,
    LIMIT,
    expert_weights,
    random_mxfp4,
    random_mxfp8,
)
from di_kernels.formats import mxfp8_round_trip
from di_kernels.fragments import (
    MXFP4FragmentWeight,
    MXFP8FragmentWeight,
    mxfp8_to_fragment_order,
)
from di_kernels.packed import (
    MXFP4PackedWeight,
    MXFP8PackedWeight,
    mxfp4_to_packed_scales,
    mxfp8_to_packed_scales,
)
from di_kernels.registry import compute_capability_of
from di_kernels.sm100.libraries import BLACKWELL

_ROWS = (1, 64)
_EXPERTS = 8

Matrix = MXFP8FragmentWeight | MXFP8PackedWeight
Experts = (
    tuple[MXFP4FragmentWeight, MXFP4FragmentWeight] | tuple[MXFP4PackedWeight, MXFP4PackedWeight]
)


def cases(source: Source) -> Iterator[Case]:
    """A linear, and experts, which quantise the input of both products."""
    # Weights take seconds to draw, so only a run of these cases draws them, out of turn.
    generator = torch.Generator(source.generator.device).manual_seed(1)
    own = dataclasses.replace(source, generator=generator)
    matrix = functools.cache(lambda: _matrix(own))
    experts = functools.cache(lambda: _experts(own))
    for num_rows in _ROWS:
        yield _linear_case(source, num_rows, matrix)
        yield _experts_case(source, num_rows, experts)


def _matrix(source: Source) -> Matrix:
    weight = random_mxfp8(source, HIDDEN, EXPERT_SIZE)
    if compute_capability_of(source.device) in BLACKWELL:
        return mxfp8_to_packed_scales(weight)
    return mxfp8_to_fragment_order(weight)


def _experts(source: Source) -> Experts:
    if compute_capability_of(source.device) not in BLACKWELL:
        return expert_weights(source, _EXPERTS)
    w13 = random_mxfp4(source, _EXPERTS, 2 * EXPERT_SIZE, HIDDEN)
    w2 = random_mxfp4(source, _EXPERTS, HIDDEN, EXPERT_SIZE)
    return mxfp4_to_packed_scales(w13), mxfp4_to_packed_scales(w2)


def _linear_case(source: Source, num_rows: int, matrix: Callable[[], Matrix]) -> Case:
    x = source.normal(num_rows, EXPERT_SIZE)

    def run(rows: torch.Tensor) -> Outputs:
        invariant = source.batch_invariant
        return (ops.linear(x[rows], matrix(), quantize_input=True, batch_invariant=invariant),)

    def oracle() -> Outputs:
        return (mxfp8_round_trip(x).double() @ matrix().dequantize(torch.float64).T,)

    label = f"shared w2 {num_rows}x{HIDDEN}x{EXPERT_SIZE}, quantised input"
    return Case("mxfp8_linear", label, source.dtype, num_rows, run, oracle)


def _experts_case(source: Source, num_rows: int, experts: Callable[[], Experts]) -> Case:
    x = source.normal(num_rows, HIDDEN, scale=0.02)
    indices = source.integers(0, _EXPERTS, num_rows, ACTIVE)
    weights = source.wide(num_rows, ACTIVE).abs()

    def run(rows: torch.Tensor) -> Outputs:
        out = ops.moe_experts(
            x[rows], indices[rows], weights[rows], *experts(), limit=LIMIT, quantize_input=True,
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    def oracle() -> Outputs:
        w13, w2 = experts()
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
