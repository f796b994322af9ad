"""Hyper-connections beside the torch references, as they are and compiled by torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from di_kernels.cases.case import Source, nbytes
from di_kernels.cases.kernels.release import COPIES, HIDDEN, SINKHORN_ITERATIONS
from di_kernels.kernel_bench.timing import Workload
from di_kernels.kernel_bench.torch_ways import ways_of

_MIXES = (2 + COPIES) * COPIES
_COMPILED_ROWS = 64


def hyper_connections(source: Source) -> Iterator[Workload]:
    """The three ops between two sub-layers, and all of them as one."""
    fn = source.wide(_MIXES, COPIES * HIDDEN, scale=(COPIES * HIDDEN) ** -0.5)
    scale, base, norm = source.wide(3), source.wide(_MIXES), source.wide(HIDDEN)
    coefficients = (fn, scale, base, SINKHORN_ITERATIONS, 1e-6, 1e-20, False)
    for num_rows in (1, 16, 64, 256, 2048):
        x, y = source.normal(num_rows, COPIES, HIDDEN), source.normal(num_rows, HIDDEN)
        pre, post = source.wide(2, num_rows, COPIES).sigmoid().unbind()
        residual = source.wide(num_rows, COPIES, COPIES).softmax(2)
        product = 2 * num_rows * fn.numel()
        parts = (
            ("hc_expand", (y, x, post, residual, False), 2 * x.nbytes + y.nbytes, 0),
            ("hc_mixes", (x, *coefficients), nbytes(x, fn), product),
            ("hc_collapse_norm", (x, pre, norm, 1e-20, False), nbytes(x, y), 0),
        )
        in_turn: list[Callable[[], object]] = []
        for op, args, moved, flops in parts:
            ways = ways_of(op, *args, compiles=num_rows == _COMPILED_ROWS)
            in_turn.append(ways["tilelang"])
            yield Workload(op, f"{num_rows} rows", ways, moved, flops)
        ways = ways_of(
            "hc_transition", y, x, post, residual, pre, norm, *coefficients,
            compiles=num_rows == _COMPILED_ROWS,
        )  # fmt: skip
        ways["tilelang, three ops"] = _all_of(in_turn)
        moved = 2 * x.nbytes + 2 * y.nbytes + fn.nbytes
        yield Workload("hc_transition", f"{num_rows} rows", ways, moved, product)


def _all_of(calls: list[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [call() for call in calls]
