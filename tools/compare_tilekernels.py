"""Times small ops of di-kernels beside those of the public TileKernels on one GPU.

Needs a Hopper GPU, `di-kernels[tilelang]`, and for the other side `tile-kernels` 2.1.0 (PyPI, MIT;
left out with a message where it does not import). Its metadata asks for torch 2.13, nvcc 13.1 and
Python 3.12; `--no-deps` takes it beside others:

    pip install --no-deps tile-kernels==2.1.0
    python tools/compare_tilekernels.py --rows 1,64,2048 --json

Both sides get the same inputs at the release's widths, and every result is compared: norm of the
difference over the norm, or for integers the share that differs. Where the ops differ:

- Its product of the mixes is in another library, DeepGEMM. `product by torch` is one in float32 and
  a sum of squares, `product given` leaves both out.
- Its fused `mhc_pre_big_fuse_fwd` collapses with the weights it has just computed, a sub-layer of
  DeepSeek-V4.1 with those of the sub-layer before: it stands beside `hc_mixes` and
  `hc_collapse_norm` in turn. The norm behind it is a kernel of its own.
- Its hash has no padding, int32 ids and rows, and our ids and rows are int64.
- It has no lookup of Engram rows and no e4m3 scale per row.

Times are medians of graph replays with the L2 cache filled with other data before every call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from di_kernels.bench import environment
from di_kernels.cases.case import Source
from di_kernels.kernel_bench.timing import graph_times
from di_kernels.registry import use_backend
from di_kernels.tile.toolchain import TILELANG
from tilekernels_ops import FAMILIES, Comparison, Results

TOLERANCE = 4e-3
"""Largest difference that passes: both sides round to bfloat16 once or twice, and a value near the
middle of two codes may take either."""


@dataclass(frozen=True)
class Result:
    """One way to do one op.

    Args:
        op: Name of our op, or of several in turn.
        rows: Number of rows.
        library: `di-kernels`, or the other one and what it leaves out.
        median_us: Median time; None where it fails.
        spread_us: Of the replays without the fastest and the slowest.
        difference: From our result; 0 for ours.
        failure: What it raised.
    """

    op: str
    rows: int
    library: str
    median_us: float | None
    spread_us: float | None
    difference: float | None
    failure: str | None = None


def difference(ours: Results, theirs: Results) -> float:
    """The largest of all results."""
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one.dtype.is_floating_point and one.dtype.itemsize > 1:
            gap = (one.double() - other.double()).norm() / one.double().norm()
        else:
            one, other = (part.view(torch.uint8) if part.dtype.itemsize == 1 else part
                          for part in (one, other))  # fmt: skip
            gap = (one != other).double().mean()
        largest = max(largest, float(gap))
    return largest


def compare(work: Comparison, num_rows: int, *, with_peer: bool) -> Iterator[Result]:
    """Ours, then every way of the other library."""
    with use_backend(TILELANG):
        want = tuple(part.clone() for part in work.ours())
        times = sorted(graph_times(work.ours, "cuda"))
    yield Result(
        work.op, num_rows, "di-kernels", statistics.median(times), times[-2] - times[1], 0.0
    )
    for name, call in work.peers.items() if with_peer else ():
        try:
            gap = difference(want, call())
            times = sorted(graph_times(call, "cuda"))
        # Another compiler: it raises errors of many kinds.
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip()[:300]}"
            print(f"{work.op}, {num_rows} rows, {name}: {text}", file=sys.stderr)
            yield Result(work.op, num_rows, name, None, None, None, text)
        else:
            median, spread = statistics.median(times), times[-2] - times[1]
            yield Result(work.op, num_rows, name, median, spread, gap)


def main() -> int:
    """Prints one line per call, or JSON; 1 where results differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="all by default")
    parser.add_argument(
        "--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 64, 2048]
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU of compute capability 9.0, there is none here", file=sys.stderr)
        return 3
    with_peer = importlib.util.find_spec("tile_kernels") is not None
    if not with_peer:
        print("`tile-kernels` is not installed: ours alone", file=sys.stderr)
    results: list[Result] = []
    started = time.perf_counter()
    generator = torch.Generator("cuda").manual_seed(0)
    source = Source(torch.device("cuda"), torch.bfloat16, False, generator)
    for family in args.family or FAMILIES:
        for num_rows in args.rows:
            for work in FAMILIES[family](source, num_rows):
                results += compare(work, num_rows, with_peer=with_peer)
    if args.json:
        seconds = time.perf_counter() - started
        record = {"environment": environment("cuda"), "seconds": seconds}
        print(json.dumps(record | {"results": [asdict(one) for one in results]}, indent=1))
    else:
        for one in results:
            took = "failed" if one.median_us is None else f"{one.median_us:8.1f} us"
            print(f"{one.op:30} {one.rows:5} rows  {one.library:36} {took}  {one.difference}")
    return int(any((one.difference or 0) > TOLERANCE for one in results))


if __name__ == "__main__":
    sys.exit(main())
