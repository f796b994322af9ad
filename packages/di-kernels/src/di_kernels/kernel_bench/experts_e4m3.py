"""Experts with FP8 activations: the products, the quantisers and the whole op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import release as widths
from di_kernels.formats import fp8_encode
from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.tile import experts_e4m3 as routed
from di_kernels.tile.catalogue.experts_e4m3 import E4M3_TILES
from di_kernels.tile.plan import TileList, new_handover

_EXPERTS = 48


def experts(source: Source) -> Iterator[Workload]:
    """Equal rows and random routing."""
    w13, w2 = widths.e4m3_expert_weights(source, _EXPERTS)
    for rows in (1, 8, 16, 32, 64, 128):
        yield from _equal_rows(source, w13, w2, rows)
    for num_rows in (64, 256):
        indices = source.integers(0, _EXPERTS, num_rows, widths.ACTIVE).to(torch.int32)
        x = source.normal(num_rows, widths.HIDDEN)
        weights = source.wide(num_rows, widths.ACTIVE).abs()
        label = f"FP8 rows, whole op, {num_rows} rows, {_EXPERTS} experts, random routing"
        yield _whole(label, x, indices, weights, w13, w2)
    few = _first(w13, 8), _first(w2, 8)
    for rows in (256, 1024, 4096):
        yield from _equal_rows(source, *few, rows)


def quantisers(source: Source) -> Iterator[Workload]:
    """Rows before the first product and before the second."""
    for num_rows in (1, 16, 64, 384, 3072):
        for size in (widths.HIDDEN, widths.EXPERT_SIZE):
            x = source.normal(num_rows, size)

            ways: dict[str, Callable[[], object]] = {
                "tilelang": on_tilelang(functools.partial(ops.fp8_quantize, x)),
                "torch": functools.partial(fp8_encode, x),
            }
            moved = 3 * x.numel() + 4 * num_rows
            yield Workload("fp8_quantize", f"{num_rows}x{size}", ways, moved, 0)


def _equal_rows(
    source: Source, w13: MXFP4E4M3FragmentWeight, w2: MXFP4E4M3FragmentWeight, rows: int
) -> Iterator[Workload]:
    experts, hidden, size = w2.codes.shape[0], widths.HIDDEN, widths.EXPERT_SIZE
    pairs, device = experts * rows, source.device
    x = source.normal(pairs, hidden)
    row_weights = source.wide(pairs).abs()
    tile = next((size for size in E4M3_TILES if rows <= size), max(E4M3_TILES))
    starts = [
        [e, e * rows + i, (e + 1) * rows] for e in range(experts) for i in range(0, rows, tile)
    ]
    tiles = torch.tensor(starts, dtype=torch.int32, device=device)
    lists = (TileList(tile, tiles),)
    handover = new_handover((tile,), fp8_input=True, device=device).cleared()
    codes, scales = routed.fp8_quantize(x)
    activated = routed.routed_product(
        codes, scales, w13, lists, handover, row_weights, widths.LIMIT
    )
    inner = routed.fp8_quantize(activated)

    def products() -> torch.Tensor:
        activated = routed.routed_product(
            codes, scales, w13, lists, handover, row_weights, widths.LIMIT
        )
        return routed.routed_product(*routed.fp8_quantize(activated), w2, lists, handover)

    flops = 2 * pairs * hidden * size
    both = w13.nbytes + w2.nbytes + pairs * (3 * hidden + 4 * size)
    where = f"{rows} rows of each of {experts} experts"
    for label, call, moved, factor in (
        ("products and quantiser", products, both, 3),
        (
            "w13 with SwiGLU",
            lambda: routed.routed_product(
                codes, scales, w13, lists, handover, row_weights, widths.LIMIT
            ),
            w13.nbytes + pairs * (hidden + 2 * size),
            2,
        ),
        (
            "w2",
            lambda: routed.routed_product(*inner, w2, lists, handover),
            w2.nbytes + pairs * (size + 2 * hidden),
            1,
        ),
        ("quantiser of w2's rows", lambda: routed.fp8_quantize(activated), 3 * pairs * size, 0),
    ):
        # e4m3 products take half the time of bfloat16's.
        yield Workload(
            "moe_experts", f"FP8 rows, {label}, {where}", {"tilelang": call}, moved,
            factor * flops // 2,
        )  # fmt: skip
    if pairs % widths.ACTIVE:
        return
    num_rows = pairs // widths.ACTIVE
    indices = (torch.arange(pairs, device=device) % experts).view(num_rows, -1).to(torch.int32)
    weights = row_weights.view(num_rows, -1)
    yield _whole(f"FP8 rows, whole op, {where}", x[:num_rows], indices, weights, w13, w2)


def _whole(
    label: str,
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: MXFP4E4M3FragmentWeight,
    w2: MXFP4E4M3FragmentWeight,
) -> Workload:
    def call() -> torch.Tensor:
        return ops.moe_experts(x, indices, weights, w13, w2, limit=widths.LIMIT, fp8_input=True)

    return Workload(
        "moe_experts", label, {"tilelang": on_tilelang(call)},
        w13.nbytes + w2.nbytes + 2 * x.nbytes,
        3 * indices.numel() * widths.HIDDEN * widths.EXPERT_SIZE,
    )  # fmt: skip


def _first(weight: MXFP4E4M3FragmentWeight, count: int) -> MXFP4E4M3FragmentWeight:
    return MXFP4E4M3FragmentWeight(
        weight.codes[:count], weight.scales[:count], weight.row_factors[:count],
        weight.is_interleaved,
    )  # fmt: skip
