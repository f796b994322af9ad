"""Router and Engram beside the torch references, as they are and compiled by torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source, nbytes
from di_kernels.cases.kernels.release import (
    ACTIVE,
    COMPRESSED_VOCABULARY,
    COPIES,
    ENGRAM_COLUMNS,
    ENGRAM_SIZE,
    EXPERTS,
    HIDDEN,
    engram_tables,
    random_engram_table,
)
from di_kernels.kernel_bench.timing import Workload
from di_kernels.kernel_bench.torch_ways import ways_of
from di_kernels.pinned import cuda_view

_ROWS = (1, 16, 64, 256, 2048)
_COMPILED_ROWS = 64
_TABLE_ROWS, _RANDOM_ROWS = 2_000_000, 20_000


def router(source: Source) -> Iterator[Workload]:
    """The release's backbone router, logits given."""
    bias = source.wide(EXPERTS)
    for num_rows in _ROWS:
        logits = source.wide(num_rows, EXPERTS)
        ways = ways_of(
            "router_topk", logits, bias, ACTIVE, 1.5, None, compiles=num_rows == _COMPILED_ROWS
        )
        moved = nbytes(logits, bias) + num_rows * ACTIVE * 12
        yield Workload("router_topk", f"{num_rows} rows", ways, moved, 0)


def engram(source: Source) -> Iterator[Workload]:
    """Hash of a step, lookup from both memories, gate."""
    tables = engram_tables().to(source.device)
    few = random_engram_table(source, _RANDOM_ROWS)
    repeats = (_TABLE_ROWS // _RANDOM_ROWS, 1)
    data = few.data.view(torch.uint8).repeat(repeats).view(torch.float8_e4m3fn)
    table = ops.EngramTable(data, few.scale.repeat(repeats))
    pinned = [part.cpu().pin_memory() for part in (table.data, table.scale)]
    views = ops.EngramTable(*(cuda_view(part, source.device) for part in pinned))
    weight = source.wide(COPIES, HIDDEN)
    for num_rows in _ROWS:
        compiles = num_rows == _COMPILED_ROWS
        context = source.integers(0, COMPRESSED_VOCABULARY, num_rows, 4)
        ways = ways_of("engram_hash", context, 2, tables, compiles=compiles)
        moved = context.nbytes + num_rows * 2 * ENGRAM_COLUMNS * 8
        yield Workload("engram_hash", f"{num_rows} rows, two layers", ways, moved, 0)

        chosen = source.integers(0, _TABLE_ROWS, num_rows, ENGRAM_COLUMNS)
        moved = chosen.numel() * (8 + ENGRAM_SIZE * 33 // 32 + 2 * ENGRAM_SIZE)
        for place, rows_of in (("device", table), ("pinned host", views)):
            ways = ways_of(
                "engram_lookup", rows_of, chosen, torch.bfloat16,
                compiles=compiles and place == "device",
            )  # fmt: skip
            yield Workload("engram_lookup", f"{num_rows} rows, {place} memory", ways, moved, 0)

        x = source.normal(num_rows, COPIES, HIDDEN)
        projected = source.normal(num_rows, (COPIES + 1) * HIDDEN)
        keys, value = projected.split([COPIES * HIDDEN, HIDDEN], dim=1)
        keys = keys.unflatten(1, (COPIES, HIDDEN))
        ways = ways_of("engram_gate", x, keys, value, weight, 1e-20, None, compiles=compiles)
        moved = 2 * x.nbytes + projected.nbytes + weight.nbytes
        yield Workload("engram_gate", f"{num_rows} rows", ways, moved, 0)
