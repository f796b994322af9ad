"""Index scores beside products of queries with keys kept in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels.cases.case import Source
from di_kernels.cases.kernels.index import CANDIDATE_BLOCK, DIM, HEADS, Scored, index_pool
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.kernel_bench.torch_ways import compiled_way
from di_kernels.records import RecordPool, record_bytes

_ENTRIES = 131_072
_CANDIDATES = 2048
# Requests, rows of each.
_COMPILED_SHAPE = (4, 4)
_SHAPES = ((1, 1), (1, 4), (1, 256), (4, 1), (4, 4), (16, 1), (16, 2), (16, 4), (16, 6))


def index_scores(source: Source) -> Iterator[Workload]:
    """Every entry of contexts of 131,072."""
    for entries_per_page in (128, 64):
        pool = index_pool(source, entries_per_page, 16 * _ENTRIES // entries_per_page)
        for requests, rows in _SHAPES:
            if entries_per_page == 64 and (requests, rows) not in ((1, 1), (16, 1), (16, 4)):
                continue
            work = _work(source, pool, requests, rows)

            def ours(work: Scored = work) -> torch.Tensor:
                return work.dense(_ENTRIES)

            num_rows = requests * rows
            moved = requests * _ENTRIES * record_bytes("index_mxfp4", DIM) + 4 * num_rows * _ENTRIES
            flops = 2 * num_rows * HEADS * DIM * _ENTRIES
            ways: dict[str, Callable[[], object]] = {"tilelang": on_tilelang(ours)}
            if entries_per_page == 128 and rows < 256:
                on_dense = _products(source, work, requests)
                ways["torch bf16"] = on_dense
                if (requests, rows) == _COMPILED_SHAPE:
                    ways |= compiled_way("index_scores", torch.compile(on_dense, dynamic=False))
            label = f"{requests} requests of {rows} rows, pages of {entries_per_page}"
            yield Workload("index_scores", label, ways, moved, flops)


def candidate_scores(source: Source) -> Iterator[Workload]:
    """2,048 blocks of 8 of contexts of 131,072."""
    pool = index_pool(source, 128, 16 * _ENTRIES // 128)
    places = _CANDIDATES * CANDIDATE_BLOCK
    for requests, rows in ((1, 1), (1, 4), (4, 1), (16, 1), (16, 4)):
        work = _work(source, pool, requests, rows)
        num_rows = requests * rows
        order = [torch.randperm(_ENTRIES // CANDIDATE_BLOCK) for _ in range(num_rows)]
        blocks = torch.stack([o[:_CANDIDATES].sort().values for o in order]).to(source.device)

        def ours(work: Scored = work, blocks: torch.Tensor = blocks) -> torch.Tensor:
            return work.of_candidates(blocks, _ENTRIES)

        moved = num_rows * places * (record_bytes("index_mxfp4", DIM) + 4)
        flops = 2 * num_rows * HEADS * DIM * places
        label = f"{requests} requests of {rows} rows"
        ways: dict[str, Callable[[], object]] = {"tilelang": on_tilelang(ours)}
        yield Workload("candidate_scores", label, ways, moved, flops)


def _work(source: Source, pool: RecordPool, requests: int, rows: int) -> Scored:
    """Rows of requests whose pages lie anywhere."""
    pages = _ENTRIES // pool.entries_per_block
    num_rows = requests * rows
    tables = source.permutation(16 * pages)[: requests * pages]
    return Scored(
        source.normal(num_rows, HEADS, DIM),
        source.normal(num_rows, HEADS),
        pool,
        tables.view(requests, pages).to(source.device, torch.int32),
        torch.arange(requests, device=source.device).repeat_interleave(rows),
        torch.full((num_rows,), _ENTRIES, dtype=torch.int32, device=source.device),
    )


def _products(source: Source, work: Scored, requests: int) -> Callable[[], object]:
    """The same from keys in bfloat16, nearly four times the bytes: cuBLAS, ReLU, weighted sum."""
    keys = source.normal(_ENTRIES, DIM).repeat(requests, 1, 1)
    queries = work.q.view(requests, -1, DIM)
    weights = work.weights.view(requests, -1, 1, HEADS)

    def call() -> torch.Tensor:
        dots = torch.bmm(queries, keys.transpose(1, 2)).relu_()
        return torch.matmul(weights, dots.view(requests, -1, HEADS, _ENTRIES))

    return call
