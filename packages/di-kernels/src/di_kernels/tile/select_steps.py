# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Steps of the radix selection: keys from memory, counts of a row added up, the bin of a rank."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

THREADS = 512
KEYS = 32
"""Keys a thread keeps in registers."""

BINS = 2048
WARPS = THREADS // 32
BINS_PER_THREAD = BINS // THREADS
ROUNDS = 4


@dataclass(frozen=True)
class Selection:
    """One kernel of the family.

    Args:
        key_bits: 32 for float32 scores, 16 for bfloat16.
        blocks: Thread blocks per row: 1, or a cluster of 8.
        block_size: Entries a candidate stands for: 1, or 8 with the newest block forced in.
        is_kept: Whether a row's candidates fit the registers of its blocks; else scores are read
            again where a warp has not packed its keys.
        best_of: Keys of a thread that step 1 counts the best of; all of them where not kept.
    """

    key_bits: int
    blocks: int
    block_size: int
    is_kept: bool
    best_of: int

    @property
    def blocks_per_sm(self) -> int:
        """Thread blocks meant to share a multiprocessor: two where 64 registers are enough."""
        return 2 if self.is_kept and self.block_size == 1 else 1

    @property
    def levels(self) -> int:
        """Counts of bins kept apart: a cluster's blocks may still read those of a round before."""
        return 1 + ROUNDS if self.blocks > 1 else 1


def loading(shape: Selection) -> Callable[..., None]:
    """The macro that loads keys."""
    newest_key = 0xFF800000 >> (32 - shape.key_bits)

    @T.macro
    def load_keys(scores, keys, numbers, row, first, step, steps, num_candidates):
        """Keys of the thread's next candidates; 0 where there is none.

        Loads stand together and none depends on a condition of its own, so all are under way at
        once.
        """
        lane = T.get_thread_binding() % 32
        if shape.block_size == 1:
            for group in T.unroll(KEYS // 8):
                if step + group * 8 < steps:
                    for s in T.unroll(8):
                        candidate = first + (step + group * 8 + s) * 32 + lane
                        keys[group * 8 + s] = T.cast(
                            scores[row, T.min(candidate, num_candidates - 1)], "uint32"
                        )
            for s in T.unroll(KEYS):
                candidate = first + (step + s) * 32 + lane
                keys[s] = T.call_extern(
                    "uint32",
                    f"di_key_if<{shape.key_bits}>",
                    keys[s],
                    step + s < steps and candidate < num_candidates,
                )
        else:
            for group in T.unroll(KEYS // 4):
                for s in T.unroll(4):
                    keys[group * 4 + s] = T.uint32(0)
                if step + group * 4 < steps:
                    for s in T.unroll(4):
                        # The newest block may end behind the row; its scores do not matter.
                        numbers[s] = T.min(
                            first + (step + group * 4 + s) * 32 + lane, num_candidates - 2
                        )
                    T.call_extern(
                        "handle",
                        "di_best_keys",
                        T.address_of(scores[row, 0]),
                        T.access_ptr(numbers, "r"),
                        T.access_ptr(keys[group * 4], "w", 4),
                    )
                    for s in T.unroll(4):
                        candidate = first + (step + group * 4 + s) * 32 + lane
                        if step + group * 4 + s >= steps or candidate >= num_candidates:
                            keys[group * 4 + s] = T.uint32(0)
                        elif candidate == num_candidates - 1:
                            keys[group * 4 + s] = T.uint32(newest_key)

    return load_keys


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
        count = T.alloc_local((1,), "uint32")
        T.sync_threads()
        for i in T.unroll(BINS_PER_THREAD):
            bin_ = i * THREADS + tx
            count[0] = counts[bin_]
            counts[bin_] = T.uint32(0)
            if is_cluster:
                if count[0] != 0:
                    T.call_extern(
                        "handle",
                        "di_peer_add",
                        T.address_of(totals[level, bin_ % owned]),
                        bin_ // owned,
                        count[0],
                    )
            else:
                totals[0, bin_] = count[0]
        sync_row()

    @T.macro
    def find_bin(totals, sums, found, wanted, level):
        """found: the bin of the `wanted`-th from above, its rank there, its count; the top bin."""
        tx = T.get_thread_binding()
        own = T.alloc_local((BINS_PER_THREAD,), "uint32")
        above = T.alloc_local((2,), "uint32")
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
        above[1] = T.uint32(0)
        for i in T.unroll(BINS_PER_THREAD):
            above[1] += own[i]
        above[0] = T.call_extern("uint32", "di_scan_block", above[1], T.address_of(sums[level, 0]))
        for i in T.unroll(BINS_PER_THREAD):
            count = own[BINS_PER_THREAD - 1 - i]
            bin_ = T.cast(lowest + BINS_PER_THREAD - 1 - i, "uint32")
            if count != 0:
                if above[0] == 0:
                    found[level, 3] = bin_
                if above[0] < wanted and wanted <= above[0] + count:
                    found[level, 0] = bin_
                    found[level, 1] = wanted - above[0]
                    found[level, 2] = count
            above[0] += count
        T.sync_threads()

    return sync_row, add_up, find_bin
