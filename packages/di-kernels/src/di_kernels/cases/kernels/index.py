"""Index scores against float64 on decoded keys: both page sizes, ragged requests, page edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.records import RecordPool

HEADS, DIM, CANDIDATE_BLOCK = 32, 128, 8
BLOCK_BYTES = 114_048
_PAGES = 40
_MOST_KEYS = 131_072
# Entries, rows of each request: none, one, as many as share keys, more, uneven.
_SHAPES = (
    (65, (0,)), (1, (1,)), (63, (1, 1)), (64, (2, 2)), (65, (4,)), (129, (1, 3, 0, 2)),
    (1000, (8, 8)), (4097, (17,)), (513, (1,) * 33), (131_071, (2, 1)),
)  # fmt: skip
_CANDIDATES = ((1000, (1, 2), 40), (4097, (1, 3, 0, 2), 256), (131_071, (2, 1), 2048))


def index_pool(source: Source, entries_per_page: int, num_pages: int) -> RecordPool:
    """Index keys in pages that hold other sections before and behind; large pools repeat theirs."""
    buffer = torch.zeros(num_pages, BLOCK_BYTES, dtype=torch.uint8, device=source.device)
    pool = RecordPool(buffer, "index_mxfp4", DIM, entries_per_page, 32 * entries_per_page)
    keys = source.normal(min(pool.num_slots, _MOST_KEYS), DIM, scale=2.0)
    for slots in torch.arange(pool.num_slots, device=source.device).split(len(keys)):
        ops.write_records(pool, slots, keys[: len(slots)])
    return pool


@dataclass(frozen=True)
class Scored:
    """Rows to score: arguments of `index_scores`."""

    q: torch.Tensor
    weights: torch.Tensor
    pool: RecordPool
    tables: torch.Tensor
    requests: torch.Tensor
    visible: torch.Tensor

    def rows(self, rows: torch.Tensor) -> Scored:
        """Arguments of some rows."""
        return Scored(
            self.q[rows], self.weights[rows], self.pool, self.tables, self.requests[rows],
            self.visible[rows],
        )  # fmt: skip

    def dense(self, max_entries: int, *, batch_invariant: bool = False) -> torch.Tensor:
        """By `index_scores`."""
        return ops.index_scores(
            self.q, self.weights, self.pool, self.tables, self.requests, self.visible,
            max_entries=max_entries, batch_invariant=batch_invariant,
        )  # fmt: skip

    def of_candidates(
        self, blocks: torch.Tensor, max_entries: int, *, batch_invariant: bool = False
    ) -> torch.Tensor:
        """By `candidate_scores`."""
        return ops.candidate_scores(
            self.q, self.weights, self.pool, self.tables, self.requests, self.visible, blocks,
            block_size=CANDIDATE_BLOCK, max_entries=max_entries, batch_invariant=batch_invariant,
        )  # fmt: skip

    def exact(self, max_entries: int) -> torch.Tensor:
        """Scores in float64."""
        num_rows = self.q.shape[0]
        scores = torch.full((num_rows, max_entries), -torch.inf, dtype=torch.float64)
        for row in range(num_rows):
            seen = int(self.visible[row])
            pages = self.tables[self.requests[row]].clamp_min(0)
            keys = self.pool.read_blocks(pages, torch.float64)[:seen]
            dots = (self.q[row].double() @ keys.T).relu()
            weights = self.weights[row].double() * (DIM * HEADS) ** -0.5
            scores[row, :seen] = weights @ dots
        return scores


def cases(source: Source) -> Iterator[Case]:
    """Dense scores, and those of candidate blocks."""
    for entries_per_page in (64, 128):
        pool = index_pool(source, entries_per_page, _PAGES)
        for entries, counts in _SHAPES:
            yield _dense(source, scored(source, pool, counts, entries), entries)
        for entries, counts, num_candidates in _CANDIDATES:
            work = scored(source, pool, counts, entries)
            yield _candidates(source, work, entries, num_candidates)


def scored(source: Source, pool: RecordPool, counts: tuple[int, ...], entries: int) -> Scored:
    """Random rows; the first sees every entry, the last of several none."""
    num_rows = sum(counts)
    q = source.normal(num_rows, HEADS, DIM)
    weights = source.wide(num_rows, HEADS)
    pages = -(-entries // pool.entries_per_block)
    tables = source.integers(0, pool.buffer.shape[0], len(counts), pages)
    requests = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(
        source.device
    )
    visible = source.integers(0, entries + 1, num_rows)
    visible[:1] = entries
    visible[1:][-1:] = 0
    if sum(counts) % 2:
        weights, tables, visible = weights.bfloat16(), tables.int(), visible.int()
    return Scored(q, weights, pool, tables, requests, visible)


def _dense(source: Source, work: Scored, entries: int) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        return (work.rows(rows).dense(entries, batch_invariant=source.batch_invariant),)

    def oracle() -> Outputs:
        return (work.exact(entries),)

    label = _label(work, entries)
    return Case("index_scores", label, work.q.dtype, work.q.shape[0], run, oracle)


def _candidates(source: Source, work: Scored, entries: int, num_candidates: int) -> Case:
    num_rows = work.q.shape[0]
    scores = source.wide(num_rows, entries)
    blocks = ops.select_candidate_blocks(
        scores, work.visible, block_size=CANDIDATE_BLOCK, num_blocks=num_candidates
    )

    def run(rows: torch.Tensor) -> Outputs:
        picked, invariant = work.rows(rows), source.batch_invariant
        return (picked.of_candidates(blocks[rows], entries, batch_invariant=invariant),)

    def oracle() -> Outputs:
        offsets = torch.arange(CANDIDATE_BLOCK)
        places = (blocks.cpu().unsqueeze(-1) * CANDIDATE_BLOCK + offsets).flatten(1)
        dense = torch.nn.functional.pad(work.exact(entries), (0, CANDIDATE_BLOCK), value=-torch.inf)
        return (dense.gather(1, places.clamp_min(0)).masked_fill(places < 0, -torch.inf),)

    label = f"{_label(work, entries)}, {num_candidates} blocks"
    return Case("candidate_scores", label, work.q.dtype, num_rows, run, oracle)


def _label(work: Scored, entries: int) -> str:
    requests = work.tables.shape[0]
    return (
        f"{work.q.shape[0]} rows of {requests} requests, {entries} entries in pages of "
        f"{work.pool.entries_per_block}"
    )
