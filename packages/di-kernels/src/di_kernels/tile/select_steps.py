# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Steps of the radix selection: scores from memory, counts of a row added up, the bin of a rank."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

THREADS = 512
WARPS = THREADS // 32
KEYS = 1024
"""Candidates of a warp in shared memory."""

PACKED = 128
"""Keys of a warp that may be packed behind them."""

BINS = 2048
BINS_PER_THREAD = BINS // THREADS
ROUNDS = 4


@dataclass(frozen=True)
class Selection:
    """One kernel of the family.

    Args:
        score_bits: 32 for float32 scores, 16 for bfloat16.
        blocks: Thread blocks per row: 1, or a cluster of 8.
        block_size: Entries a candidate stands for: 1, or 8 with the newest block forced in.
        is_kept: Whether a row's candidates fit the shared memory of its blocks; else scores are
            read again where a warp has not packed its keys.
        counts_fours: Whether step 1 counts the best of every four candidates, not of all that a
            thread looks at.
    """

    score_bits: int
    blocks: int
    block_size: int
    is_kept: bool
    counts_fours: bool

    @property
    def levels(self) -> int:
        """Counts of bins kept apart: a cluster's blocks may still read those of a round before."""
        return 1 + ROUNDS if self.blocks > 1 else 1


def loading(shape: Selection) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros that load a part of a warp's candidates, and that make keys of them."""
    load = "di_start_loads" if shape.block_size == 1 else "di_load_blocks"

    @T.macro
    def start_loads(scores, values, row, start, end, num_candidates, count):
        """Scores of the candidates from `start` to before `end`, at most `KEYS`; their number."""
        warp = T.get_thread_binding() // 32
        count[0] = T.max(0, T.min(KEYS, T.min(end, num_candidates) - start))
        T.call_extern(
            "handle",
            load,
            T.address_of(scores[row, start * shape.block_size]),
            count[0],
            T.address_of(values[warp, 0]),
            num_candidates - 1 - start,
        )

    @T.macro
    def finish_loads(values, count):
        warp = T.get_thread_binding() // 32
        T.call_extern("handle", "di_finish_loads", count[0], T.address_of(values[warp, 0]))

    return start_loads, finish_loads


def counting(shape: Selection) -> tuple[Callable[..., None], ...]:
    """Macros that meet a row's blocks, add their counts up and find the bin of a rank."""
    is_cluster, owned = shape.blocks > 1, BINS // shape.blocks

    @T.macro
    def sync_row():
        if is_cluster:
            T.call_extern("handle", "di_sync_cluster")
        else:
            T.sync_threads()

    @T.macro
    def add_up(counts, totals, level):
        """Adds the block's counts to the row's, of which every block holds a part; clears them."""
        tx = T.get_thread_binding()
        own = T.alloc_local((BINS_PER_THREAD,), "uint32")
        T.sync_threads()
        for i in T.vectorized(BINS_PER_THREAD):
            own[i] = counts[tx * BINS_PER_THREAD + i]
        for i in T.vectorized(BINS_PER_THREAD):
            counts[tx * BINS_PER_THREAD + i] = T.uint32(0)
        if is_cluster:
            for i in T.unroll(BINS_PER_THREAD):
                if own[i] != 0:
                    T.call_extern(
                        "handle",
                        "di_peer_add",
                        T.address_of(totals[level, tx * BINS_PER_THREAD % owned + i]),
                        tx * BINS_PER_THREAD // owned,
                        own[i],
                    )
        else:
            for i in T.vectorized(BINS_PER_THREAD):
                totals[0, tx * BINS_PER_THREAD + i] = own[i]
        sync_row()

    @T.macro
    def find_bin(totals, sums, found, wanted, level):
        """found: the bin of the `wanted`-th from above, its rank there, its count; the top bin."""
        tx = T.get_thread_binding()
        own = T.alloc_local((BINS_PER_THREAD,), "uint32")
        # Keys of the thread, of the warp, above the warp, above the thread.
        number = T.alloc_local((4,), "uint32")
        lowest = BINS - BINS_PER_THREAD * (tx + 1)
        if is_cluster:
            T.call_extern(
                "handle",
                "di_peer_load4",
                T.address_of(totals[level, lowest % owned]),
                lowest // owned,
                T.access_ptr(own, "w"),
            )
        else:
            for i in T.vectorized(BINS_PER_THREAD):
                own[i] = totals[0, lowest + i]
        number[0] = T.uint32(0)
        for i in T.unroll(BINS_PER_THREAD):
            number[0] += own[i]
        number[1] = T.call_extern("uint32", "di_sum_before", number[0], 32)
        if tx % 32 == 0:
            sums[level, tx // 32] = number[1]
        T.sync_threads()
        number[2] = T.call_extern("uint32", "di_sum_before", sums[level, tx % WARPS], tx // 32)
        # Only the warps of the two bins look for them.
        if number[1] > 0 and number[2] < wanted:
            number[3] = number[2] + T.call_extern("uint32", "di_scan_warp", number[0]) - number[0]
            for i in T.unroll(BINS_PER_THREAD):
                count = own[BINS_PER_THREAD - 1 - i]
                bin_ = T.cast(lowest + BINS_PER_THREAD - 1 - i, "uint32")
                if count != 0:
                    if number[3] == 0:
                        found[level, 3] = bin_
                    if number[3] < wanted and wanted <= number[3] + count:
                        found[level, 0] = bin_
                        found[level, 1] = wanted - number[3]
                        found[level, 2] = count
                number[3] += count
        T.sync_threads()

    return sync_row, add_up, find_bin
