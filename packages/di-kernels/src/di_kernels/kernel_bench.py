"""`bench --shapes kernels`: the release's widths on a GPU, beside what a user would take otherwise.

Times are those of CUDA graph replays, the L2 cache overwritten before every call (its time is
measured alone and taken off). Floors use what an H200 was measured to reach, 4.5 TB/s of reads and
798 TFLOP/s in bfloat16; other devices are measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from di_kernels import ops
from di_kernels.bench import BenchResult, Ceilings
from di_kernels.cases import kernels as widths
from di_kernels.cases.case import Source
from di_kernels.fragments import MXFP4FragmentWeight, MXFP8FragmentWeight, mxfp8_to_fragment_order
from di_kernels.records import RecordPool
from di_kernels.registry import use_backend
from di_kernels.tile import experts as routed

H200 = Ceilings(4.5e12, 798e12)
_FLUSH_BYTES = 256 << 20
_CALLS = 8
_REPLAYS = 9
_EXPERTS = 48


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to do, and the ways to do it.

    Args:
        op: Name of the op.
        label: Sizes in words.
        ways: Calls by name: `tilelang`, `torch bf16`, ...
        num_bytes: Bytes that must move.
        num_flops: Operations.
    """

    op: str
    label: str
    ways: dict[str, Callable[[], object]]
    num_bytes: int
    num_flops: int


def kernel_ceilings(device: str | torch.device) -> Ceilings:
    """The H200's, or the rates of a 4 GiB copy and an 8192^3 bfloat16 product."""
    if "H200" in torch.cuda.get_device_name(device):
        return H200
    source = torch.ones(1 << 29, device=device)
    target = torch.empty_like(source)
    matrix = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    copy_us = min(graph_times(lambda: target.copy_(source), device))
    product_us = min(graph_times(lambda: torch.mm(matrix, matrix), device))
    return Ceilings(2e6 * source.nbytes / copy_us, 2e6 * 8192**3 / product_us)


def run_kernel_bench(
    device: str | torch.device, *, op_filter: Sequence[str] = (), ceilings: Ceilings
) -> Iterator[BenchResult]:
    """Measures every way of every workload."""
    source = Source(torch.device(device), torch.bfloat16, False, torch.Generator().manual_seed(0))
    for makers, ops_of in (
        (_expert_workloads, ("moe_experts",)),
        (_linear_workloads, ("mxfp8_linear", "grouped_linear")),
        (_attention_workloads, ("sparse_attention",)),
    ):
        if op_filter and not set(op_filter) & set(ops_of):
            continue
        for work in makers(source):
            for name, call in work.ways.items():
                yield _measure(work, name, call, device, ceilings)


def graph_times(call: Callable[[], object], device: str | torch.device) -> list[float]:
    """Microseconds per call of several replays of a graph of calls, each after an L2 flush."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)

    def captured(with_call: bool) -> list[float]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_CALLS):
                flush.zero_()
                if with_call:
                    call()
        times = []
        for _ in range(_REPLAYS + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1e3 * start.elapsed_time(end) / _CALLS)
        return times[1:]

    for _ in range(2):
        call()
    torch.cuda.synchronize(device)
    empty = statistics.median(captured(with_call=False))
    return [time - empty for time in captured(with_call=True)]


def _measure(
    work: Workload,
    name: str,
    call: Callable[[], object],
    device: str | torch.device,
    ceilings: Ceilings,
) -> BenchResult:
    with torch.inference_mode():
        times = sorted(graph_times(call, device))
    median = statistics.median(times)
    floor_us = 1e6 * max(
        work.num_bytes / ceilings.copy_bytes_per_s, work.num_flops / ceilings.flops_per_s
    )
    return BenchResult(
        work.op, work.label, name, median, times[-2] - times[1], work.num_bytes, work.num_flops,
        floor_us, floor_us / median,
    )  # fmt: skip


def _on_tilelang(call: Callable[[], object]) -> Callable[[], object]:
    def forced() -> object:
        with use_backend("tilelang"):
            return call()

    return forced


def _expert_workloads(source: Source) -> Iterator[Workload]:
    w13, w2 = widths.expert_weights(source, _EXPERTS)
    dense = [weight.dequantize(torch.bfloat16) for weight in (w13, w2)]
    for rows in (1, 8, 16, 32, 64, 128):
        yield from _equal_rows(source, w13, w2, dense, rows)
    num_rows = 256
    indices = source.integers(0, _EXPERTS, num_rows, widths.ACTIVE).to(torch.int32)
    x = source.normal(num_rows, widths.HIDDEN, scale=0.02)
    weights = source.wide(num_rows, widths.ACTIVE).abs()
    call = _on_tilelang(lambda: ops.moe_experts(x, indices, weights, w13, w2, limit=widths.LIMIT))
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
    tile = routed.tile_rows(pairs, experts)
    starts = [
        [e, e * rows + i, (e + 1) * rows] for e in range(experts) for i in range(0, rows, tile)
    ]
    tiles = torch.tensor(starts, dtype=torch.int32, device=device)

    def products() -> torch.Tensor:
        inner = routed.routed_product(x, w13, tiles, tile, row_weights, widths.LIMIT)
        return routed.routed_product(inner, w2, tiles, tile)

    def cublas() -> torch.Tensor:
        gate_up = torch.bmm(x.view(experts, rows, hidden), dense[0].transpose(1, 2))
        activated = ops.swiglu(gate_up.view(pairs, -1), widths.LIMIT, row_weights=row_weights).view(
            experts, rows, size
        )
        return torch.bmm(activated, dense[1].transpose(1, 2))

    moved = w13.nbytes + w2.nbytes + pairs * (2 * hidden + 2 * size) * 2
    flops = 6 * pairs * hidden * size
    yield Workload(
        "moe_experts", f"products, {rows} rows of each of {experts} experts",
        {"tilelang": products, "torch bf16": cublas}, moved, flops,
    )  # fmt: skip
    if pairs % widths.ACTIVE:
        return
    num_rows = pairs // widths.ACTIVE
    indices = (torch.arange(pairs, device=device) % experts).view(num_rows, -1).to(torch.int32)
    weights, rows_in = row_weights.view(num_rows, -1), x[:num_rows]
    yield Workload(
        "moe_experts", f"whole op, {rows} rows of each of {experts} experts",
        {
            "tilelang": _on_tilelang(
                lambda: ops.moe_experts(rows_in, indices, weights, w13, w2, limit=widths.LIMIT)
            )
        },
        w13.nbytes + w2.nbytes + 2 * rows_in.nbytes, flops,
    )  # fmt: skip


def _linear_workloads(source: Source) -> Iterator[Workload]:
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
                {"tilelang": _on_tilelang(ours), "torch bf16": cublas}, moved,
                2 * num_rows * groups * rows * columns,
            )  # fmt: skip


def _attention_workloads(source: Source) -> Iterator[Workload]:
    window, sink = widths.window_pool(source, 40_000), source.wide(widths.HEADS)
    for name, selected, width in (
        ("nvfp4", widths.record_pool(source, "nvfp4", 128, 1000), 512),
        ("mxfp8", widths.record_pool(source, "mxfp8", 64, 1000), 512),
        ("window", None, 0),
    ):
        for num_rows in (1, 6, 16, 64, 256, 2048):
            q = source.normal(num_rows, widths.HEADS, widths.HEAD_DIM)
            slots = source.integers(0, window.num_slots, num_rows, 128).to(torch.int32)
            chosen = None
            moved = 2 * q.nbytes + slots.numel() * 528
            if selected is not None:
                chosen = source.integers(0, selected.num_slots, num_rows, width).to(torch.int32)
                moved += chosen.numel() * (288 if name == "nvfp4" else 528)

            def ours(
                q: torch.Tensor = q,
                slots: torch.Tensor = slots,
                chosen: torch.Tensor | None = chosen,
                selected: RecordPool | None = selected,
            ) -> torch.Tensor:
                return ops.sparse_attention(
                    q, window, slots, sink, selected=selected, selected_slots=chosen
                )

            ways = {"tilelang": _on_tilelang(ours)}
            if num_rows <= 256:
                ways["torch bf16"] = _gathered_attention(source, q, slots, chosen)
            flops = 4 * num_rows * widths.HEADS * widths.HEAD_DIM * (128 + width)
            yield Workload("sparse_attention", f"{name}, {num_rows} rows", ways, moved, flops)


def _gathered_attention(
    source: Source, q: torch.Tensor, slots: torch.Tensor, chosen: torch.Tensor | None
) -> Callable[[], object]:
    """Entries kept in bfloat16, gathered, then attended by torch; the sink is left out."""
    entries = source.normal(128_000, widths.HEAD_DIM)
    places = slots if chosen is None else torch.cat((slots, chosen), dim=1)
    flat = places.flatten().long() % entries.shape[0]

    def call() -> torch.Tensor:
        keys = entries[flat].view(q.shape[0], 1, -1, widths.HEAD_DIM)
        return torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1), keys, keys)

    return call
