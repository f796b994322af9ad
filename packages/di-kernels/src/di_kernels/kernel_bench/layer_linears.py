"""The linears of one layer in a row, their launches overlapping or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import release as widths
from di_kernels.fragments import MXFP8FragmentWeight, mxfp8_to_fragment_order
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.tile import linears
from di_kernels.tile.catalogue.few_rows import build_few_rows, few_rows_options
from di_kernels.tile.toolchain import architecture_of, compile_kernel

_ORDER = ("wq_a + wkv", "wq_b", "wo_a", "wo_b", "shared w1 + w3", "shared w2")


def one_layer(source: Source) -> Iterator[Workload]:
    """Every product with an input of its own; what lies between them in a layer is left out."""
    weights = {}
    for name in _ORDER:
        groups, rows, columns = widths.LINEARS[name]
        matrix = widths.random_mxfp8(source, groups * rows, columns)
        weights[name] = groups, mxfp8_to_fragment_order(matrix)
    dense = [
        weight.dequantize(torch.bfloat16).view(groups, -1, weight.shape[1])
        for groups, weight in weights.values()
    ]
    for num_rows in (1, 8, 16, 32):
        products = [
            (source.normal(num_rows, groups, weight.shape[1]), weight)
            for groups, weight in weights.values()
        ]
        inputs = [x for x, _ in products]
        outputs = sum(num_rows * weight.shape[0] for _, weight in products)
        moved = sum(weight.nbytes + x.nbytes for x, weight in products) + 2 * outputs
        flops = sum(2 * num_rows * weight.shape[0] * weight.shape[1] for _, weight in products)
        ways: dict[str, Callable[[], object]] = {
            "tilelang": on_tilelang(functools.partial(_overlapping, products)),
            "tilelang, one after another": functools.partial(_in_turn, products),
            "torch bf16": functools.partial(_cublas, inputs, dense),
        }
        yield Workload("mxfp8_linear", f"linears of one layer, {num_rows} rows", ways, moved, flops)


_Products = list[tuple[torch.Tensor, MXFP8FragmentWeight]]


def _overlapping(products: _Products) -> None:
    for x, weight in products:
        if x.shape[1] == 1:
            ops.linear(x[:, 0], weight)
        else:
            ops.grouped_linear(x, weight)


def _in_turn(products: _Products) -> None:
    """The same kernels, those for few rows built without dependent launches."""
    for x, weight in products:
        out = x.new_empty(*x.shape[:2], weight.shape[0] // x.shape[1])
        multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
        row_blocks, size = weight.codes.shape[0], weight.shape[1]
        plan = linears.few_rows_plan(x.shape[0], row_blocks, size, multiprocessors, False)
        if plan is None:
            linears.launch_tiles(x, weight, out, multiprocessors, batch_invariant=False)
        else:
            kernel = _without_overlap(plan.tokens, plan.sums, x.device)
            linears.launch_few_rows(plan, kernel, x, weight, out)


@functools.cache
def _without_overlap(tokens: int, sums: str, device: torch.device) -> Callable[..., None]:
    architecture = architecture_of(device)
    kernel = build_few_rows(architecture, tokens=tokens, sums=sums, overlaps_launch=False)
    return compile_kernel(kernel, architecture, few_rows_options(tokens))


def _cublas(inputs: list[torch.Tensor], dense: list[torch.Tensor]) -> None:
    for x, weight in zip(inputs, dense, strict=True):
        if x.shape[1] == 1:
            torch.nn.functional.linear(x[:, 0], weight[0])
        else:
            torch.bmm(x.transpose(0, 1), weight.transpose(1, 2))
