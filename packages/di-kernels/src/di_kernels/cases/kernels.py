"""Cases for the accelerated backends: the release's widths, awkward numbers of rows, a GPU.

References in float64 from dequantised inputs, computed on the device. Weights are in fragment
order, records in blocks that hold other layers' sections too, as the engine keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.fragments import (
    MXFP4FragmentWeight,
    MXFP8FragmentWeight,
    mxfp4_to_fragment_order,
    mxfp8_to_fragment_order,
)
from di_kernels.records import RecordFormat, RecordPool, record_bytes
from di_kernels.weights import MXFP4Weight, MXFP8Weight

ROWS = (0, 1, 2, 8, 63, 64, 65, 257)
HIDDEN, EXPERT_SIZE, ACTIVE, LIMIT = 5120, 2304, 6, 10.0
HEADS, HEAD_DIM = 64, 512
LINEARS = {
    "wq_b": (1, 32768, 1280),
    "wo_a": (8, 1024, 4096),
    "wo_b": (1, 5120, 8192),
    "wq_a + wkv": (1, 1792, 5120),
    "shared w1 + w3": (1, 4608, 5120),
    "shared w2": (1, 5120, 2304),
}
"""Groups, rows and columns of the release's MXFP8 matrices."""

_BLOCK_BYTES = 114_048
_CHECKED_EXPERTS = 8


def kernel_cases(source: Source) -> Iterator[Case]:
    """Every op with an accelerated GPU backend; bfloat16, on the source's device."""
    yield from _expert_cases(source)
    yield from _linear_cases(source)
    yield from _attention_cases(source)


def random_mxfp4(source: Source, *shape: int) -> MXFP4Weight:
    """Random codes, scales of five octaves."""
    data = source.integers(0, 256, *shape[:-1], shape[-1] // 2).to(torch.uint8)
    return MXFP4Weight(data, source.integers(117, 122, *shape[:-1], shape[-1] // 32).byte())


def random_mxfp8(source: Source, rows: int, columns: int) -> MXFP8Weight:
    """Random codes without NaN, scales of five octaves."""
    data = source.integers(0, 256, rows, columns).byte()
    data = torch.where((data & 127) == 127, data - 1, data)
    scale = source.integers(105, 110, rows // 32, columns // 32).byte()
    return MXFP8Weight(data.view(torch.float8_e4m3fn), scale)


def expert_weights(source: Source, experts: int) -> tuple[MXFP4FragmentWeight, MXFP4FragmentWeight]:
    """Both matrices of so many experts."""
    w13 = random_mxfp4(source, experts, 2 * EXPERT_SIZE, HIDDEN)
    w2 = random_mxfp4(source, experts, HIDDEN, EXPERT_SIZE)
    return mxfp4_to_fragment_order(w13, interleave_gate_up=True), mxfp4_to_fragment_order(w2)


def record_pool(
    source: Source, record_format: RecordFormat, entries: int, num_blocks: int
) -> RecordPool:
    """A pool of random entries in blocks that hold other sections before and behind."""
    offset = 2 * record_bytes(record_format, HEAD_DIM)
    buffer = torch.zeros(num_blocks, _BLOCK_BYTES, dtype=torch.uint8, device=source.device)
    pool = RecordPool(buffer, record_format, HEAD_DIM, entries, offset)
    slots = torch.arange(pool.num_slots, device=source.device)
    ops.write_records(pool, slots, source.normal(pool.num_slots, HEAD_DIM))
    return pool


def window_pool(source: Source, num_slots: int) -> RecordPool:
    """A ring of random window entries."""
    buffer = torch.zeros(num_slots, record_bytes("mxfp8", HEAD_DIM), dtype=torch.uint8)
    pool = RecordPool(buffer.to(source.device), "mxfp8", HEAD_DIM)
    slots = torch.arange(num_slots, device=source.device)
    ops.write_records(pool, slots, source.normal(num_slots, HEAD_DIM))
    return pool


def _expert_cases(source: Source) -> Iterator[Case]:
    w13, w2 = expert_weights(source, _CHECKED_EXPERTS)
    for num_rows in ROWS:
        x = source.normal(num_rows, HIDDEN, scale=0.02)
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
        for num_rows in ROWS:
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


def _attention_cases(source: Source) -> Iterator[Case]:
    window, sink = window_pool(source, 3000), source.wide(HEADS)
    pools = {
        "nvfp4": record_pool(source, "nvfp4", 128, 40),
        "mxfp8": record_pool(source, "mxfp8", 64, 40),
        "window only": None,
    }
    for name, selected in pools.items():
        widths = ((128, 512), (133, 65), (1, 63)) if selected else ((128, 0), (133, 0), (1, 0))
        for window_width, width in widths:
            for num_rows in ROWS:
                q = source.normal(num_rows, HEADS, HEAD_DIM)
                slots = source.integers(-1, window.num_slots, num_rows, window_width)
                chosen = None
                if selected is not None:
                    chosen = source.integers(-1, selected.num_slots, num_rows, width)
                    chosen[-1:] = -1
                slots[-1:] = -1  # a row without any key
                label = f"{name} {num_rows}x{HEADS}x{HEAD_DIM}, {window_width}+{width} keys"
                yield _attention_case(source, label, q, window, slots, selected, chosen, sink)


def _attention_case(
    source: Source,
    label: str,
    q: torch.Tensor,
    window: RecordPool,
    slots: torch.Tensor,
    selected: RecordPool | None,
    chosen: torch.Tensor | None,
    sink: torch.Tensor,
) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        out = ops.sparse_attention(
            q[rows], window, slots[rows], sink, selected=selected,
            selected_slots=None if chosen is None else chosen[rows],
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    def oracle() -> Outputs:
        keys, valid = window.read(slots, torch.float64), slots >= 0
        if selected is not None and chosen is not None:
            keys = torch.cat((keys, selected.read(chosen, torch.float64)), dim=1)
            valid = torch.cat((valid, chosen >= 0), dim=1)
        scores = torch.einsum("thd,tkd->thk", q.double(), keys) * HEAD_DIM**-0.5
        powers = scores.exp() * valid.unsqueeze(1)
        total = powers.sum(-1) + sink.double().exp()
        return (torch.einsum("thk,tkd->thd", powers, keys) / total.unsqueeze(-1),)

    return Case("sparse_attention", label, q.dtype, q.shape[0], run, oracle)
