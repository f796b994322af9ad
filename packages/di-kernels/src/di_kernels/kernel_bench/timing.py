"""Times of CUDA graph replays, the L2 cache filled with other data before every call.

It is filled by reading: what a write left there would have to be written back while the call runs.
The time of reading alone is measured beside every replay and taken off, for clocks drift.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from di_kernels.bench import BenchResult, Ceilings
from di_kernels.registry import use_backend

H200 = Ceilings(4.5e12, 798e12)
_FLUSH_BYTES = 256 << 20
_CALLS = 8
_REPLAYS = 9


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


def graph_times(call: Callable[[], object], device: str | torch.device) -> list[float]:
    """Microseconds per call of several replays of a graph of calls, each after an L2 flush."""
    others = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.float32, device=device)

    def captured(with_call: bool) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_CALLS):
                others.sum()
                if with_call:
                    call()
        return graph

    for _ in range(2):
        call()
    torch.cuda.synchronize(device)
    reading, both = captured(with_call=False), captured(with_call=True)
    times = [_replay_us(both) - _replay_us(reading) for _ in range(_REPLAYS + 1)]
    return [time / _CALLS for time in times[1:]]


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return 1e3 * milliseconds


def measure(
    work: Workload,
    name: str,
    call: Callable[[], object],
    device: str | torch.device,
    ceilings: Ceilings,
) -> BenchResult:
    """One way of a workload."""
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


def on_tilelang(call: Callable[[], object]) -> Callable[[], object]:
    """The call, refused where a TileLang kernel does not serve it."""

    def forced() -> object:
        with use_backend("tilelang"):
            return call()

    return forced
