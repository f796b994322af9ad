"""Mask rows, and the masks of a whole batch keyed by request.

Layout (xgrammar's): int32 words, shape (rows, ceil(vocab_size / 32)); bit `v % 32` of word `v //
32` is set if token `v` is allowed. The slack bits from `vocab_size` on are 0 in every row written
here.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["MaskBatch", "allocate_masks", "free_row", "mask_width"]

POOL_PAYS_S = 0.005
"""Work of a step from which other threads repay waking them and handing over the interpreter."""


class FillsMasks(Protocol):
    """What a batch needs of a session."""

    @property
    def is_constrained(self) -> bool: ...

    def fill_masks(
        self, drafts: Sequence[int], out: npt.NDArray[np.int32], row: int = 0
    ) -> int: ...


def mask_width(vocab_size: int) -> int:
    """Returns the number of words of a row."""
    return -(-vocab_size // 32)


def free_row(vocab_size: int) -> npt.NDArray[np.int32]:
    """Returns a row that allows every token, shape (words,)."""
    row = np.full(mask_width(vocab_size), -1, np.int32)
    if used := vocab_size % 32:
        row[-1] = (1 << used) - 1
    return row


def allocate_masks(rows: int, vocab_size: int) -> npt.NDArray[np.int32]:
    """Returns rows that allow every token, shape (rows, words)."""
    return np.tile(free_row(vocab_size), (rows, 1))


class MaskBatch:
    """The masks of one step, filled by several threads and looked up by request id.

    Rows are laid out in the order of `fill`, `1 + len(drafts)` for each request; whoever consumes
    them asks by request id (`rows`, `gather`), because by then rows may be in another order and
    drafts may have been trimmed. The buffer is reused: it grows, and `fill` overwrites what an
    earlier step left. Rows of requests without grammar are written only if they held a mask before.

    Args:
        vocab_size: Width of the logits.
        threads: Threads that fill, the caller's among them, where a step has milliseconds of work
            for them. xgrammar releases the interpreter lock while it fills.
    """

    def __init__(self, vocab_size: int, *, threads: int = 1) -> None:
        """Allocates nothing yet."""
        if threads < 1:
            raise ValueError(f"`threads` must be at least 1, got {threads}")
        self.vocab_size = vocab_size
        self._free_row = free_row(vocab_size)
        self._buffer = allocate_masks(0, vocab_size)
        self._is_dirty = np.zeros(0, np.bool_)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "grammar-fill") if threads > 1 else None
        self._spans: dict[str, tuple[int, int]] = {}
        self._legal: dict[str, int] = {}
        self._num_rows = 0
        self._is_masked = np.zeros(0, np.bool_)
        self._row_s = 0.0  # what a row of the step before took

    def fill(self, requests: Iterable[tuple[str, FillsMasks | None, Sequence[int]]]) -> "MaskBatch":
        """Fills the rows of a step.

        Args:
            requests: Request id, its session or None, and its drafts, for every request of the
                step.

        Returns:
            Itself.

        Raises:
            ValueError: A request id is there twice.
        """
        spans: dict[str, tuple[int, int]] = {}
        legal: dict[str, int] = {}
        work: list[tuple[str, FillsMasks, Sequence[int], int]] = []
        end = 0
        for request_id, session, drafts in requests:
            if request_id in spans:
                raise ValueError(f"request `{request_id}` is in the batch twice")
            start, end = end, end + 1 + len(drafts)
            spans[request_id] = (start, end)
            if session is None:
                legal[request_id] = len(drafts)
            else:
                work.append((request_id, session, drafts, start))
        self._spans, self._legal, self._num_rows = spans, legal, end
        self._reserve(end)
        if len(work) == len(spans):
            self._is_masked = np.ones(end, np.bool_)
        else:
            self._is_masked = np.zeros(end, np.bool_)
            for _, _, drafts, start in work:
                self._is_masked[start : start + 1 + len(drafts)] = True
        self._clean_free_rows()
        self._fill_all(work)
        return self

    @property
    def bits(self) -> npt.NDArray[np.int32]:
        """All rows in the order of `fill`, shape (rows, words), int32.

        A view, which the next `fill` overwrites.
        """
        return self._buffer[: self._num_rows]

    @property
    def request_ids(self) -> list[str]:
        """The requests in the order of `fill`."""
        return list(self._spans)

    @property
    def row_offsets(self) -> npt.NDArray[np.int64]:
        """First row of each request, and at the end the number of rows; shape (requests + 1,)."""
        return np.array([0, *(end for _, end in self._spans.values())], np.int64)

    @property
    def constrained_rows(self) -> npt.NDArray[np.int64]:
        """Indices of the rows that a session wrote; the others allow everything."""
        return np.flatnonzero(self._is_masked)

    def num_legal(self, request_id: str) -> int:
        """Returns how many leading drafts of a request its grammar allows; without one, all."""
        return self._legal[request_id]

    def rows(self, request_id: str) -> npt.NDArray[np.int32]:
        """Returns the rows of a request, shape (1 + drafts, words).

        A view, which the next `fill` overwrites.
        """
        start, end = self._spans[request_id]
        return self._buffer[start:end]

    def gather(
        self, requests: Iterable[tuple[str, int]]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Returns the constrained rows in a consumer's order.

        Args:
            requests: Request id and the number of rows that the consumer computes for it, at most
                those filled.

        Returns:
            The masks of the constrained rows only, a copy of shape (n, words), and where they
            belong among the consumer's rows, shape (n,), int64.

        Raises:
            ValueError: A request has fewer rows than asked for, or was not in the batch.
        """
        sources: list[int] = []
        targets: list[int] = []
        position = 0
        for request_id, count in requests:
            if request_id not in self._spans:
                raise ValueError(f"request `{request_id}` was not in the batch")
            start, end = self._spans[request_id]
            if not 0 <= count <= end - start:
                raise ValueError(
                    f"request `{request_id}` has {end - start} mask rows, {count} were asked for"
                )
            if self._is_masked[start]:
                sources.extend(range(start, start + count))
                targets.extend(range(position, position + count))
            position += count
        return self._buffer[np.array(sources, np.int64)], np.array(targets, np.int64)

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _reserve(self, rows: int) -> None:
        if rows > len(self._buffer):
            grown = max(rows, 2 * len(self._buffer))
            self._buffer = allocate_masks(grown, self.vocab_size)
            self._is_dirty = np.zeros(grown, np.bool_)

    def _clean_free_rows(self) -> None:
        dirty = self._is_dirty[: self._num_rows]
        stale = np.flatnonzero(dirty & ~self._is_masked)
        if stale.size:
            self._buffer[stale] = self._free_row
        dirty[:] = self._is_masked

    def _fill_all(self, work: list[tuple[str, FillsMasks, Sequence[int], int]]) -> None:
        rows = int(self._is_masked.sum())
        if self._pool is None or len(work) < 2 or rows * self._row_s < POOL_PAYS_S:
            spent_s = self._fill_some(work)
        else:
            # Dealt like cards: neighbours often share a grammar, and so a price.
            shares = [work[i :: self._threads] for i in range(self._threads)]
            others = [self._pool.submit(self._fill_some, share) for share in shares[1:] if share]
            spent_s = self._fill_some(shares[0])
            for other in others:
                spent_s += other.result()
        self._row_s = spent_s / max(1, rows)

    def _fill_some(self, work: list[tuple[str, FillsMasks, Sequence[int], int]]) -> float:
        """Fills in the calling thread; returns the seconds of its processor time."""
        begin = time.thread_time()
        legal, buffer = self._legal, self._buffer
        for request_id, session, drafts, start in work:
            legal[request_id] = session.fill_masks(drafts, buffer, start)
        return time.thread_time() - begin
