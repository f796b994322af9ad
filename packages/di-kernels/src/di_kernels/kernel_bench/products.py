"""Experts and linears beside cuBLAS on dequantised weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import release as widths
from di_kernels.fragments import MXFP4FragmentWeight, MXFP8FragmentWeight, mxfp8_to_fragment_order
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.kernel_bench.torch_ways import compiled_way
from di_kernels.registry import get_op
from di_kernels.tile import experts as routed
from di_kernels.tile.catalogue.products import ROUTED_TILES
from di_kernels.tile.plan import TileList, new_handover

_EXPERTS = 48
_COMPILED_ROWS = 64
"""Rows of each expert at which `torch.compile` is measured too; it takes seconds."""


def experts(source: Source) -> Iterator[Workload]:
    """Equal rows and random routing."""
    w13, w2 = widths.expert_weights(source, _EXPERTS)
    dense = [weight.dequantize(torch.bfloat16) for weight in (w13, w2)]
    for rows in (1, 8, 16, 32, 64, 128):
        yield from _equal_rows(source, w13, w2, dense, rows)
    num_rows = 256
    indices = source.integers(0, _EXPERTS, num_rows, widths.ACTIVE).to(torch.int32)
    x = source.normal(num_rows, widths.HIDDEN, scale=0.02)
    weights = source.wide(num_rows, widths.ACTIVE).abs()
    call = on_tilelang(lambda: ops.moe_experts(x, indices, weights, w13, w2, limit=widths.LIMIT))
    pairs = indices.numel()
    yield Workload(
        "moe_experts", f"whole op, {num_rows} rows, {_EXPERTS} experts, random routing",
        {"tilelang": call}, w13.nbytes + w2.nbytes + 2 * x.nbytes,
        6 * pairs * widths.HIDDEN * widths.EXPERT_SIZE,
    )  # fmt: skip
    few = (
        MXFP4FragmentWeight(w13.codes[:8], w13.scales[:8], True),
        MXFP4FragmentWeight(w2.codes[:8], w2.scales[:8]),
    )
    for rows in (256, 1024, 4096):
        yield from _equal_rows(source, *few, [part[:8] for part in dense], rows)


def _equal_rows(
    source: Source,
    w13: MXFP4FragmentWeight,
    w2: MXFP4FragmentWeight,
    dense: list[torch.Tensor],
    rows: int,
) -> Iterator[Workload]:
    """The products alone and the whole op, every expert with as many rows."""
    experts, hidden, size = w2.codes.shape[0], widths.HIDDEN, widths.EXPERT_SIZE
    pairs, device = experts * rows, source.device
    x = source.normal(pairs, hidden, scale=0.02)
    row_weights = source.wide(pairs).abs()
    tile = next((size for size in ROUTED_TILES if rows <= size), max(ROUTED_TILES))
    starts = [
        [e, e * rows + i, (e + 1) * rows] for e in range(experts) for i in range(0, rows, tile)
    ]
    lists = (TileList(tile, torch.tensor(starts, dtype=torch.int32, device=device)),)
    handover = new_handover((tile,), fp8_input=False, device=device).cleared()

    def products() -> torch.Tensor:
        inner = routed.routed_product(x, w13, lists, handover, row_weights, widths.LIMIT)
        return routed.routed_product(inner, w2, lists, handover)

    ways = {"tilelang": products, **_on_dense(x, row_weights, dense)}
    moved = w13.nbytes + w2.nbytes + pairs * (2 * hidden + 2 * size) * 2
    flops = 6 * pairs * hidden * size
    yield Workload(
        "moe_experts", f"products, {rows} rows of each of {experts} experts",
        ways, moved, flops,
    )  # fmt: skip
    if pairs % widths.ACTIVE:
        return
    num_rows = pairs // widths.ACTIVE
    indices = (torch.arange(pairs, device=device) % experts).view(num_rows, -1).to(torch.int32)
    weights, rows_in = row_weights.view(num_rows, -1), x[:num_rows]
    yield Workload(
        "moe_experts", f"whole op, {rows} rows of each of {experts} experts",
        {
            "tilelang": on_tilelang(
                lambda: ops.moe_experts(rows_in, indices, weights, w13, w2, limit=widths.LIMIT)
            )
        },
        w13.nbytes + w2.nbytes + 2 * rows_in.nbytes, flops,
    )  # fmt: skip


def _on_dense(
    x: torch.Tensor, row_weights: torch.Tensor, dense: list[torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """Torch with dequantised weights, eager and for one number of rows compiled."""
    experts, rows = dense[0].shape[0], x.shape[0] // dense[0].shape[0]
    swiglu: Callable[..., Any] = get_op("swiglu").reference

    def eager() -> object:
        gate_up = torch.bmm(x.view(experts, rows, -1), dense[0].transpose(1, 2))
        activated = swiglu(gate_up.flatten(0, 1), widths.LIMIT, row_weights, x.dtype)
        return torch.bmm(activated.view(experts, rows, -1), dense[1].transpose(1, 2))

    ways: dict[str, Callable[[], object]] = {"torch bf16": eager}
    if rows == _COMPILED_ROWS:
        ways |= compiled_way("moe_experts", torch.compile(eager, dynamic=False))
    return ways


def linears(source: Source) -> Iterator[Workload]:
    """Every matrix of the release."""
    for name, (groups, rows, columns) in widths.LINEARS.items():
        weight = mxfp8_to_fragment_order(widths.random_mxfp8(source, groups * rows, columns))
        dense = weight.dequantize(torch.bfloat16).view(groups, rows, columns)
        op = "mxfp8_linear" if groups == 1 else "grouped_linear"
        for num_rows in (1, 8, 16, 32, 64, 128, 256, 2048):
            x = source.normal(num_rows, groups, columns)

            def ours(x: torch.Tensor = x, weight: MXFP8FragmentWeight = weight) -> torch.Tensor:
                if x.shape[1] == 1:
                    return ops.linear(x[:, 0], weight)
                return ops.grouped_linear(x, weight)

            def cublas(x: torch.Tensor = x, dense: torch.Tensor = dense) -> torch.Tensor:
                if x.shape[1] == 1:
                    return torch.nn.functional.linear(x[:, 0], dense[0])
                return torch.bmm(x.transpose(0, 1), dense.transpose(1, 2))

            moved = weight.nbytes + x.nbytes + 2 * num_rows * groups * rows
            yield Workload(
                op, f"{name}, {num_rows} rows",
                {"tilelang": on_tilelang(ours), "torch bf16": cublas}, moved,
                2 * num_rows * groups * rows * columns,
            )  # fmt: skip
