"""Router and Engram against float64 and integers: ties, NaN, masks, tables in host memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import (
    ACTIVE,
    COMPRESSED_VOCABULARY,
    COPIES,
    ENGRAM_COLUMNS,
    ENGRAM_SIZE,
    EXPERTS,
    HIDDEN,
    ROWS,
    engram_tables,
    random_engram_table,
)
from di_kernels.cases.layers import python_hash
from di_kernels.pinned import cuda_view

_FACTOR = 1.5
_PAD_ID = 2
_WIDE_HIDDEN = 8192
"""Wider rows than the release's have a kernel of their own."""


def cases(source: Source) -> Iterator[Case]:
    """Every op, awkward numbers of rows."""
    for num_rows in ROWS:
        for experts, k, bias_dims in ((EXPERTS, ACTIVE, 1), (128, 3, 2), (500, 32, 0), (7, 7, 1)):
            yield _router_case(source, num_rows, experts, k, bias_dims)
    yield from _hash_cases(source)
    yield from _lookup_cases(source)
    for num_rows in ROWS:
        for hidden in (HIDDEN, 40, _WIDE_HIDDEN):
            yield _gate_case(source, num_rows, hidden)


def _router_case(source: Source, num_rows: int, experts: int, k: int, bias_dims: int) -> Case:
    logits = source.wide(num_rows, experts, scale=3)
    # Rows of ties, of NaN and of infinities.
    logits[1::5] = logits[1::5].round()
    logits[2::7, experts // 2] = torch.nan
    logits[3::7] = -torch.inf
    logits[4::7, -1] = torch.inf
    bias = None if bias_dims == 0 else source.wide(*(num_rows, experts)[-bias_dims:]).round()
    mask = None if bias_dims == 1 else source.integers(0, 2, num_rows).bool()

    def run(rows: torch.Tensor) -> Outputs:
        return ops.router_topk(
            logits[rows], bias[rows] if bias is not None and bias_dims == 2 else bias, k,
            scaling_factor=_FACTOR, row_mask=None if mask is None else mask[rows],
        )  # fmt: skip

    def oracle() -> Outputs:
        scores = torch.logaddexp(logits.double(), torch.zeros_like(logits).double()).sqrt()
        ranked = scores if bias is None else scores + bias.double()
        indices = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :k]
        chosen = scores.gather(1, indices)
        weights = _FACTOR * chosen / (chosen.sum(1, keepdim=True) + 1e-20)
        if mask is not None:
            indices = torch.where(mask[:, None], indices, -1)
            weights = torch.where(mask[:, None], weights, 0)
        return indices, weights

    label = f"{num_rows}x{experts}, k={k}, bias of {bias_dims} dims"
    return Case("router_topk", label, logits.dtype, num_rows, run, oracle)


def _hash_cases(source: Source) -> Iterator[Case]:
    tables = engram_tables()
    on_device = tables.to(source.device)
    for num_rows in ROWS:
        context = source.integers(-1, COMPRESSED_VOCABULARY, num_rows, 4)
        context[1::3] = COMPRESSED_VOCABULARY - 1

        def run(rows: torch.Tensor, context: torch.Tensor = context) -> Outputs:
            return (ops.engram_hash(context[rows], _PAD_ID, on_device),)

        def oracle(context: torch.Tensor = context) -> Outputs:
            result = torch.full((len(context), len(tables.num_rows), ENGRAM_COLUMNS), -1)
            for row, ids in enumerate(context.tolist()):
                alive = [min(ids[: back + 1]) >= 0 for back in range(4)]
                tokens = [
                    t if is_alive else _PAD_ID for t, is_alive in zip(ids, alive, strict=True)
                ]
                for layer in range(len(tables.num_rows) if alive[0] else 0):
                    result[row, layer] = torch.tensor(python_hash(tokens, layer, tables))
            return (result,)

        label = f"{num_rows}x{len(tables.num_rows)}x{ENGRAM_COLUMNS}"
        yield Case("engram_hash", label, torch.int64, num_rows, run, oracle, is_exact=True)


def _lookup_cases(source: Source) -> Iterator[Case]:
    for place in ("device", "pinned"):
        table = random_engram_table(source, 5000)
        on_host = ops.EngramTable(table.data.cpu(), table.scale.cpu())
        if place == "pinned":
            pinned = on_host.data.pin_memory(), on_host.scale.pin_memory()
            table = ops.EngramTable(*(cuda_view(part, source.device) for part in pinned))
        for num_rows in ROWS:
            chosen = source.integers(-1, 5000, num_rows, ENGRAM_COLUMNS)

            def run(
                rows: torch.Tensor, table: ops.EngramTable = table, chosen: torch.Tensor = chosen
            ) -> Outputs:
                return (ops.engram_lookup(table, chosen[rows], torch.bfloat16),)

            def oracle(table: ops.EngramTable = on_host, chosen: torch.Tensor = chosen) -> Outputs:
                powers = torch.exp2(table.scale.double() - 127).repeat_interleave(32, 1)
                values = table.data.float().double() * powers
                picked = values[chosen.cpu().clamp_min(0)]
                return (picked.masked_fill((chosen.cpu() < 0).unsqueeze(-1), 0).flatten(1),)

            label = f"{num_rows}x{ENGRAM_COLUMNS}x{ENGRAM_SIZE}, {place} memory"
            dtype = torch.float8_e4m3fn
            yield Case("engram_lookup", label, dtype, num_rows, run, oracle, is_exact=True)


def _gate_case(source: Source, num_rows: int, hidden: int) -> Case:
    x, weight = source.normal(num_rows, COPIES, hidden), source.wide(COPIES, hidden)
    x[1:2] = 0
    projected = source.normal(num_rows, (COPIES + 1) * hidden, scale=3)
    mask = None if hidden == HIDDEN else source.integers(0, 2, num_rows).bool()

    def parts(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, value = projected[rows].split([COPIES * hidden, hidden], dim=1)
        return keys.unflatten(1, (COPIES, hidden)), value

    def run(rows: torch.Tensor) -> Outputs:
        chosen = None if mask is None else mask[rows]
        return (ops.engram_gate(x[rows], *parts(rows), weight, row_mask=chosen),)

    def oracle() -> Outputs:
        keys, value = (part.double() for part in parts(torch.arange(num_rows)))
        q = x.double()
        norms = (q.square().mean(-1) + 1e-20).sqrt() * (keys.square().mean(-1) + 1e-20).sqrt()
        dot = (q * weight.double() * keys).sum(-1) / norms * hidden**-0.5
        root = dot.abs().clamp_min(1e-6).sqrt() * torch.where(dot.signbit(), -1.0, 1.0)
        added = q + torch.sigmoid(root).unsqueeze(-1) * value.unsqueeze(1)
        return (added if mask is None else torch.where(mask[:, None, None], added, q),)

    label = f"{num_rows}x{COPIES}x{hidden}{'' if mask is None else ', masked'}"
    return Case("engram_gate", label, x.dtype, num_rows, run, oracle)
