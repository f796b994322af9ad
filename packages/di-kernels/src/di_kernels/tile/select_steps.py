# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Steps of the radix selection: scores from memory, counts of a row added up, the bin of a rank."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

THREADS = 512
WARPS = THREADS // 32
LOOK = 128
"""Candidates that a warp looks at together in step 1, four a lane."""

PACKED = 128
"""Keys of a warp that may be packed behind them."""

BINS = 2048
BINS_PER_THREAD = BINS // THREADS
BINS_PER_WARP = BINS // WARPS
ROUNDS = 4
"""Counts of bins after that of the first step."""


@dataclass(frozen=True)
class Selection:
    """One kernel of the family.

    Args:
        score_bits: 32 for float32 scores, 16 for bfloat16.
        blocks: Thread blocks per row: 1, or a cluster of up to 8.
        block_size: Entries a candidate stands for: 1, or 8 with the newest block forced in.
        is_kept: Whether a row's candidates fit the shared memory of its blocks; else scores are
            read again where a warp has not packed its keys.
        counts_fours: Whether step 1 counts the best of every four candidates, not of all that a
            thread looks at.
        keys: Candidates of a warp in shared memory, a multiple of `LOOK`.
    """

    score_bits: int
    blocks: int
    block_size: int
    is_kept: bool
    counts_fours: bool
    keys: int

    @property
    def levels(self) -> int:
        """Counts of bins kept apart: a cluster's blocks may still read those of a round before."""
        return 1 + ROUNDS if self.blocks > 1 else 1

    @property
    def looks(self) -> int:
        """Looks of a warp at its candidates in shared memory."""
        return self.keys // LOOK

    @property
    def owned(self) -> int:
        """Most bins whose counts a block adds up: those of whole warps."""
        return -(-WARPS // self.blocks) * BINS_PER_WARP

    def owner(self, bin_: int) -> int:
        """The block that adds up a bin."""
        if WARPS % self.blocks == 0:
            return bin_ // self.owned
        return bin_ // BINS_PER_WARP * self.blocks // WARPS

    def place(self, bin_: int) -> int:
        """Where its owner keeps a bin."""
        if WARPS % self.blocks == 0:
            return bin_ % self.owned
        return bin_ - self.first_owned(self.owner(bin_)) * BINS_PER_WARP

    def first_owned(self, block: int) -> int:
        """The first warp whose bins a block adds up."""
        return (block * WARPS + self.blocks - 1) // self.blocks


def loading(shape: Selection) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros that load a part of a warp's run: (row, first candidate, one behind, the row's)."""
    load = "di_start_loads" if shape.block_size == 1 else "di_load_blocks"

    @T.macro
    def start_loads(scores, values, run, part, count):
        """Starts loading scores, as many as there is room for; their number."""
        warp = T.get_thread_binding() // 32
        start = run[1] + part * shape.keys
        if not shape.is_kept:
            # Other lanes may still read the part before.
            T.call_extern("handle", "__syncwarp")
        count[0] = T.max(0, T.min(shape.keys, T.min(run[2], run[3]) - start))
        T.call_extern(
            "handle",
            load,
            T.address_of(scores[run[0], start * shape.block_size]),
            count[0],
            T.address_of(values[warp, 0]),
            run[3] - 1 - start,
        )

    @T.macro
    def finish_loads(values, count):
        warp = T.get_thread_binding() // 32
        T.call_extern("handle", "di_finish_loads", count[0], T.address_of(values[warp, 0]))

    return start_loads, finish_loads


def counting(shape: Selection) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros that add up the counts of a row's blocks and find the bin of a rank."""
    is_cluster = shape.blocks > 1

    @T.macro
    def add_up(counts, totals, mailboxes, level):
        """Adds the block's counts to the row's, of which every block holds a part; clears them."""
        tx = T.get_thread_binding()
        own = T.alloc_local((BINS_PER_THREAD,), "uint32")
        words = T.alloc_local((1,), "uint32")
        T.sync_threads()
        for i in T.vectorized(BINS_PER_THREAD):
            own[i] = counts[tx * BINS_PER_THREAD + i]
        for i in T.vectorized(BINS_PER_THREAD):
            counts[tx * BINS_PER_THREAD + i] = T.uint32(0)
        if is_cluster:
            owner = shape.owner(tx * BINS_PER_THREAD)
            words[0] = T.uint32(0)
            for i in T.unroll(BINS_PER_THREAD):
                if own[i] != 0:
                    words[0] += T.uint32(1)
                    T.call_extern(
                        "handle",
                        "di_mail_addition",
                        T.address_of(totals[level, shape.place(tx * BINS_PER_THREAD) + i]),
                        T.address_of(mailboxes[level]),
                        owner,
                        own[i],
                    )
            words[0] = T.call_extern("uint32", "di_sum_before", words[0], 32)
            if tx % 32 == 0:
                T.call_extern(
                    "handle", "di_announce", T.address_of(mailboxes[level]), owner, words[0]
                )
            T.call_extern("handle", "di_await_mail", T.address_of(mailboxes[level]))
            T.call_extern("handle", "di_meet_cluster")
        else:
            for i in T.vectorized(BINS_PER_THREAD):
                totals[0, tx * BINS_PER_THREAD + i] = own[i]
            T.sync_threads()

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
                T.address_of(totals[level, shape.place(lowest)]),
                shape.owner(lowest),
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
        # Warps without one of the two bins have nothing to find.
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

    return add_up, find_bin
