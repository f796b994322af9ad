"""Selections beside `torch.topk`, which sorts by value and promises nothing about ties."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.registry import REFERENCE, use_backend

_TOPK, _BLOCKS, _BLOCK_SIZE = 512, 2048, 8
_MOST_SORTED = 16 * 131_072
# Dtype, entries, rows.
_SHAPES = (
    (torch.float32, 16_384, (1, 16, 64)),
    (torch.float32, 131_072, (1, 4, 8, 16, 64)),
    (torch.float32, 1 << 20, (1, 16)),
    (torch.bfloat16, 131_072, (1, 16)),
)


def select_topk(source: Source) -> Iterator[Workload]:
    """512 of 16K, 128K and 1M scores."""
    for scores in _scores(source):

        def ours(scores: torch.Tensor = scores) -> torch.Tensor:
            return ops.select_topk(scores, _all_visible(scores), _TOPK)

        def topk(scores: torch.Tensor = scores) -> object:
            return torch.topk(scores, _TOPK, dim=1)

        yield _work("select_topk", scores, ours, topk, _TOPK)


def select_candidate_blocks(source: Source) -> Iterator[Workload]:
    """2,048 blocks of 8 of 128K and 1M scores."""
    for scores in _scores(source):
        if scores.shape[1] <= _BLOCKS * _BLOCK_SIZE:
            continue

        def ours(scores: torch.Tensor = scores) -> torch.Tensor:
            return ops.select_candidate_blocks(
                scores, _all_visible(scores), block_size=_BLOCK_SIZE, num_blocks=_BLOCKS
            )

        def topk(scores: torch.Tensor = scores) -> object:
            maxima = scores.view(scores.shape[0], -1, _BLOCK_SIZE).amax(2)
            return torch.topk(maxima, _BLOCKS, dim=1)

        yield _work("select_candidate_blocks", scores, ours, topk, _BLOCKS)


def _scores(source: Source) -> Iterator[torch.Tensor]:
    for dtype, entries, rows in _SHAPES:
        for num_rows in rows:
            yield source.wide(num_rows, entries).to(dtype)


@functools.cache
def _visible(num_rows: int, num_entries: int, device: torch.device) -> torch.Tensor:
    return torch.full((num_rows,), num_entries, dtype=torch.int32, device=device)


def _all_visible(scores: torch.Tensor) -> torch.Tensor:
    """Made once, before a graph is captured."""
    return _visible(*scores.shape, scores.device)


def _work(
    op: str,
    scores: torch.Tensor,
    ours: Callable[[], object],
    topk: Callable[[], object],
    chosen: int,
) -> Workload:
    num_rows, entries = scores.shape
    ways = {"tilelang": on_tilelang(ours), "torch.topk": topk}
    if num_rows * entries <= _MOST_SORTED:
        ways["torch reference"] = _by_reference(ours)
    label = f"{str(scores.dtype).removeprefix('torch.')}, {num_rows} rows of {entries}"
    return Workload(op, label, ways, scores.nbytes + 8 * num_rows * chosen, 0)


def _by_reference(call: Callable[[], object]) -> Callable[[], object]:
    def forced() -> object:
        with use_backend(REFERENCE):
            return call()

    return forced
