"""Hyper-connections against float64, streams of several magnitudes, zero rows included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import COPIES, HIDDEN, ROWS, SINKHORN_ITERATIONS
from di_kernels.ops import HyperMixes

_MIXES = (2 + COPIES) * COPIES
_EPS = 1e-6
_WIDE_HIDDEN, _FEW_ROWS = 8184, (1, 65)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a sub-layer leaves and what the next one needs."""

    y: torch.Tensor
    x: torch.Tensor
    mixes: HyperMixes
    pre: torch.Tensor
    norm_weight: torch.Tensor
    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor


def cases(source: Source) -> Iterator[Case]:
    """The release's width, one that fills no part of the columns, and one of many parts."""
    for hidden, rows in ((HIDDEN, ROWS), (32, ROWS), (_WIDE_HIDDEN, _FEW_ROWS)):
        for num_rows in rows:
            inputs = _inputs(source, num_rows, hidden)
            label = f"{num_rows}x{COPIES}x{hidden}"
            yield _mixes_case(source, label, inputs)
            yield _transition_case(source, label, inputs)
            yield _expand_case(source, label, inputs)
            yield _collapse_case(source, label, inputs)


def _inputs(source: Source, num_rows: int, hidden: int) -> _Inputs:
    magnitudes = torch.exp2(source.integers(-12, 12, num_rows, 1, 1)).to(source.dtype)
    x = source.normal(num_rows, COPIES, hidden) * magnitudes
    x[1:2] = 0
    y = source.normal(num_rows, hidden) * magnitudes[:, 0]
    mixes = HyperMixes(
        source.wide(num_rows, COPIES).sigmoid(),
        2 * source.wide(num_rows, COPIES).sigmoid(),
        source.wide(num_rows, COPIES, COPIES).softmax(2),
    )
    factors = source.wide(_MIXES, COPIES * hidden, scale=(COPIES * hidden) ** -0.5)
    return _Inputs(
        y, x, mixes, source.wide(num_rows, COPIES).sigmoid(), source.normal(hidden).float(),
        factors, 1 + source.wide(3).abs(), source.wide(_MIXES),
    )  # fmt: skip


def _mixes_case(source: Source, label: str, inputs: _Inputs) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        return ops.hc_mixes(
            inputs.x[rows], inputs.fn, inputs.scale, inputs.base, iterations=SINKHORN_ITERATIONS,
            batch_invariant=source.batch_invariant,
        )  # fmt: skip

    return Case(
        "hc_mixes", label, inputs.x.dtype, len(inputs.x), run,
        lambda: _double_mixes(inputs.x, inputs),
    )  # fmt: skip


def _transition_case(source: Source, label: str, inputs: _Inputs) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        streams, normed, mixes = ops.hc_transition(
            inputs.y[rows], inputs.x[rows], inputs.mixes.post[rows], inputs.mixes.residual[rows],
            inputs.pre[rows], inputs.norm_weight, inputs.fn, inputs.scale, inputs.base,
            iterations=SINKHORN_ITERATIONS, batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (streams, normed, *mixes)

    def oracle() -> Outputs:
        # What follows reads the streams as rounded; a float64 sum would round a few the other way.
        streams = _ordered_expand(inputs)
        normed = _double_collapse_norm(streams, inputs)
        return (streams, normed, *_double_mixes(streams, inputs))

    return Case("hc_transition", label, inputs.x.dtype, len(inputs.x), run, oracle)


def _expand_case(source: Source, label: str, inputs: _Inputs) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        out = ops.hc_expand(
            inputs.y[rows], inputs.x[rows], inputs.mixes.post[rows], inputs.mixes.residual[rows],
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    return Case(
        "hc_expand", label, inputs.x.dtype, len(inputs.x), run, lambda: (_double_expand(inputs),)
    )


def _collapse_case(source: Source, label: str, inputs: _Inputs) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        out = ops.hc_collapse_norm(
            inputs.x[rows], inputs.pre[rows], inputs.norm_weight,
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    return Case(
        "hc_collapse_norm", label, inputs.x.dtype, len(inputs.x), run,
        lambda: (_double_collapse_norm(inputs.x, inputs),),
    )  # fmt: skip


# --- Float64 ---


def _double_mixes(x: torch.Tensor, inputs: _Inputs) -> Outputs:
    flat = x.double().flatten(1)
    m = flat @ inputs.fn.double().T / (flat.square().mean(1, keepdim=True) + 1e-20).sqrt()
    parts = torch.tensor([COPIES, COPIES, COPIES * COPIES], device=x.device)
    m = m * inputs.scale.double().repeat_interleave(parts) + inputs.base.double()
    gates = torch.sigmoid(m[:, : 2 * COPIES])
    mix = m[:, 2 * COPIES :].unflatten(1, (COPIES, COPIES)).softmax(2) + _EPS
    for step in range(2 * SINKHORN_ITERATIONS - 1):
        mix = mix / (mix.sum(2 if step % 2 else 1, keepdim=True) + _EPS)
    return gates[:, :COPIES] + _EPS, 2 * gates[:, COPIES:], mix


def _double_expand(inputs: _Inputs) -> torch.Tensor:
    spread = inputs.mixes.post.double()[:, :, None] * inputs.y.double()[:, None]
    mixed = torch.einsum("tij,tih->tjh", inputs.mixes.residual.double(), inputs.x.double())
    return spread + mixed


def _ordered_expand(inputs: _Inputs) -> torch.Tensor:
    """Float32 sums rounded after every step, in the order the op promises, then to bfloat16."""
    residual = inputs.mixes.residual
    total = inputs.mixes.post[:, :, None] * inputs.y.float()[:, None]
    for copy in range(COPIES):
        total = total + residual[:, copy, :, None] * inputs.x.float()[:, copy, None]
    return total.to(inputs.x.dtype)


def _double_collapse_norm(x: torch.Tensor, inputs: _Inputs) -> torch.Tensor:
    collapsed = torch.einsum("tc,tch->th", inputs.pre.double(), x.double()).to(x.dtype).double()
    rms = (collapsed.square().mean(1, keepdim=True) + 1e-20).sqrt()
    return collapsed / rms * inputs.norm_weight.double()
