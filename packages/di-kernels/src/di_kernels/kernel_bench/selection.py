"""Selections beside `torch.topk`, which sorts by value and promises nothing about ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.registry import REFERENCE, use_backend

_ROWS = (1, 4, 8, 16, 64)
_ENTRIES = (16_384, 131_072, 1 << 20)
_TOPK, _BLOCKS, _BLOCK_SIZE = 512, 2048, 8


def select_topk(source: Source) -> Iterator[Workload]:
    """512 of 16K, 128K and 1M scores; of 128K in bfloat16 too."""
    for dtype in (torch.float32, torch.bfloat16):
        for entries in _ENTRIES if dtype == torch.float32 else _ENTRIES[1:2]:
            for num_rows in _ROWS:
                scores = source.wide(num_rows, entries).to(dtype)
                visible = torch.full((num_rows,), entries, dtype=torch.int32, device=source.device)

                def ours(
                    scores: torch.Tensor = scores, visible: torch.Tensor = visible
                ) -> torch.Tensor:
                    return ops.select_topk(scores, visible, _TOPK)

                def topk(scores: torch.Tensor = scores) -> object:
                    return torch.topk(scores, _TOPK, dim=1)

                ways = _ways(ours) | {"torch.topk": topk}
                moved = scores.nbytes + 8 * num_rows * _TOPK
                label = f"{_short(dtype)}, {num_rows} rows of {entries}"
                yield Workload("select_topk", label, ways, moved, 0)


def select_candidate_blocks(source: Source) -> Iterator[Workload]:
    """2,048 blocks of 8 of 128K and 1M scores; of 128K in bfloat16 too."""
    for dtype in (torch.float32, torch.bfloat16):
        for entries in _ENTRIES[1:] if dtype == torch.float32 else _ENTRIES[1:2]:
            for num_rows in _ROWS:
                scores = source.wide(num_rows, entries).to(dtype)
                visible = torch.full((num_rows,), entries, dtype=torch.int32, device=source.device)

                def ours(
                    scores: torch.Tensor = scores, visible: torch.Tensor = visible
                ) -> torch.Tensor:
                    return ops.select_candidate_blocks(
                        scores, visible, block_size=_BLOCK_SIZE, num_blocks=_BLOCKS
                    )

                def topk(scores: torch.Tensor = scores) -> object:
                    maxima = scores.view(scores.shape[0], -1, _BLOCK_SIZE).amax(2)
                    return torch.topk(maxima, _BLOCKS, dim=1)

                ways = _ways(ours) | {"torch.topk": topk}
                moved = scores.nbytes + 8 * num_rows * _BLOCKS
                label = f"{_short(dtype)}, {num_rows} rows of {entries}"
                yield Workload("select_candidate_blocks", label, ways, moved, 0)


def _ways(call: Callable[[], object]) -> dict[str, Callable[[], object]]:
    def reference() -> object:
        with use_backend(REFERENCE):
            return call()

    return {"tilelang": on_tilelang(call), "torch reference": reference}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
