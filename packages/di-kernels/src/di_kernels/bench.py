"""`bench`: time of every op beside the least time its bytes and operations need on this device.

The floor is the larger of bytes / copy rate and operations / product rate, both measured on the
device in the same run. The bytes of a case are those that must move at least once: what an op
copies on the way counts against it. Every case also indexes its rows, some microseconds each.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from di_kernels.cases import SIZES, Case, all_cases
from di_kernels.errors import KernelError
from di_kernels.registry import backends, use_backend

_MIN_SECONDS = 0.05
_MIN_REPEATS = 7
_MAX_REPEATS = 200


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reaches.

    Args:
        copy_bytes_per_s: Bytes read and written per second by a large copy.
        flops_per_s: Operations per second of a large float32 product.
    """

    copy_bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One case with one backend.

    Args:
        op: Name of the op.
        case: Sizes and dtype.
        backend: Name of the backend.
        median_us: Median time of a call, microseconds.
        spread_us: Distance between the 10th and the 90th percentile, microseconds.
        num_bytes: Bytes that must move.
        num_flops: Operations.
        floor_us: Least time for them at the measured ceilings, microseconds.
        ratio: Floor / median.
    """

    op: str
    case: str
    backend: str
    median_us: float
    spread_us: float
    num_bytes: int
    num_flops: int
    floor_us: float
    ratio: float


def environment(device: str | torch.device) -> dict[str, str | int]:
    """What a measurement depends on."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": f"{device} {name}".strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def measure_ceilings(device: str | torch.device) -> Ceilings:
    """Copies 64 MiB and multiplies 1024 x 1024 float32 matrices."""
    source = torch.zeros(1 << 24, device=device)
    target = torch.empty_like(source)
    matrix = torch.rand(1024, 1024, device=device)
    copy_s = min(_times(lambda: target.copy_(source), device))
    product_s = min(_times(lambda: torch.mm(matrix, matrix), device))
    return Ceilings(2 * source.nbytes / copy_s, 2 * 1024**3 / product_s)


def run_bench(
    device: str | torch.device = "cpu",
    *,
    op_filter: Sequence[str] = (),
    shapes: str = "small",
    ceilings: Ceilings,
) -> Iterator[BenchResult]:
    """Measures all ops, or those named, in float32 and bfloat16.

    Args:
        device: Where to run.
        op_filter: Names of ops; empty for all.
        shapes: `small` or `real`.
        ceilings: Result of `measure_ceilings`.
    """
    for case in all_cases(SIZES[shapes], device, dtypes=(torch.float32, torch.bfloat16)):
        if op_filter and case.op not in op_filter:
            continue
        for backend in backends(case.op):
            try:
                with use_backend(backend.name), torch.inference_mode():
                    yield _measure(case, backend.name, device, ceilings)
            except KernelError:
                continue


def as_record(result: BenchResult) -> dict[str, str | float | int]:
    """Plain data for JSON."""
    return asdict(result)


def _measure(
    case: Case, backend: str, device: str | torch.device, ceilings: Ceilings
) -> BenchResult:
    rows = case.all_rows
    times = sorted(seconds * 1e6 for seconds in _times(lambda: case.run(rows), device))
    median = statistics.median(times)
    spread = times[int(0.9 * (len(times) - 1))] - times[int(0.1 * (len(times) - 1))]
    floor_us = 1e6 * max(
        case.num_bytes / ceilings.copy_bytes_per_s, case.num_flops / ceilings.flops_per_s
    )
    return BenchResult(
        case.op,
        case.name,
        backend,
        median,
        spread,
        case.num_bytes,
        case.num_flops,
        floor_us,
        floor_us / median,
    )


def _times(call: Callable[[], object], device: str | torch.device) -> list[float]:
    """Seconds of repeated calls after two to warm up."""
    is_cuda = torch.device(device).type == "cuda"

    def timed() -> float:
        start = time.perf_counter()
        call()
        if is_cuda:
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    for _ in range(2):
        timed()
    times = [timed()]
    while len(times) < _MIN_REPEATS or (sum(times) < _MIN_SECONDS and len(times) < _MAX_REPEATS):
        times.append(timed())
    return times
