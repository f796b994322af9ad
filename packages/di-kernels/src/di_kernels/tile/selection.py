# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""The k best entries of each row, exactly, in ascending order: a radix selection on ordered keys.

A row is one thread block's, or a cluster's of eight. A warp owns a run of entries and keeps their
keys in registers where they fit, so scores are read once. Rounds of eleven bits count the keys that
share the bits found so far, the cluster adds its counts up in distributed shared memory, and every
block finds the bin of the k-th key; a bin that is taken whole ends the rounds early. Then warps
number their entries above and at the threshold, and write in order, of equal scores the first ones.
Integer additions alone are atomic, so bits never depend on their order.

| buffer | shape | dtype |
|---|---|---|
| scores | (rows, entries), rows apart by any stride | the scores' bits, uint32 or uint16 |
| num_visible | words; word `row * visible_stride` is the row's | int32 |
| chosen | (rows, k) | int64 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80. Measured times:
`docs/performance/kernels.md`.
"""

from dataclasses import dataclass

import tilelang.language as T

from di_kernels.tile.select_source import CLUSTER, SELECT

THREADS = 1024
KEYS = 16
"""Keys a thread keeps in registers."""

_BINS = 2048
_WARPS = THREADS // 32
# Lowest bit and width of the digit of every round.
_DIGITS = {32: ((21, 11), (10, 11), (0, 10)), 16: ((5, 11), (0, 5))}


@dataclass(frozen=True)
class Selection:
    """One kernel of the family.

    Args:
        key_bits: 32 for float32 scores, 16 for bfloat16.
        blocks: Thread blocks per row: 1, or a cluster of 8.
        block_size: Entries a candidate stands for: 1, or 8 with the newest block forced in.
        is_kept: Whether a row's candidates fit the registers of its blocks; else every round reads
            the scores again.
    """

    key_bits: int
    blocks: int
    block_size: int
    is_kept: bool


def select_best(shape: Selection) -> object:
    """The selection of one shape; rows that see at most k candidates get them all."""
    num_rows, num_entries, row_stride = T.dynamic("num_rows, num_entries, row_stride")
    num_words, k = T.dynamic("num_words, k")
    blocks, block_size, key_bits = shape.blocks, shape.block_size, shape.key_bits
    is_cluster = blocks > 1
    digits = _DIGITS[key_bits]
    owned = _BINS // blocks
    levels = tuple(range(len(digits)))

    @T.macro
    def load_keys(scores, keys, row, first, step, steps, num_candidates):
        """Keys of the thread's next candidates; 0 where there is none."""
        lane = T.get_thread_binding() % 32
        for s in T.unroll(KEYS):
            candidate = first + (step + s) * 32 + lane
            keys[s] = T.uint32(0)
            if step + s < steps and candidate < num_candidates:
                if block_size == 1:
                    keys[s] = T.call_extern("uint32", "di_score_key", scores[row, candidate])
                else:
                    if candidate == num_candidates - 1:
                        # The newest block, above every finite score.
                        keys[s] = T.uint32(0xFF800000 >> (32 - key_bits))
                    else:
                        keys[s] = T.call_extern(
                            "uint32",
                            "di_best_key",
                            T.access_ptr(scores[row, candidate * block_size], "r", block_size),
                        )

    @T.macro
    def count_digit(keys, counts, state, level):
        """Adds the thread's keys that share the bits found so far to the counts of their digit."""
        shift, width = digits[level]
        for s in T.unroll(KEYS):
            T.call_extern(
                "handle",
                "di_count",
                T.address_of(counts[0]),
                (keys[s] >> shift) & T.uint32((1 << width) - 1),
                keys[s] != 0 if level == 0 else (keys[s] >> (shift + width)) == state[0],
            )

    @T.macro
    def find_digit(totals, sums, found, state, pair, level):
        """Takes the digit of the k-th key: state = bits so far, entries wanted, whether it ends."""
        tx = T.get_thread_binding()
        shift, width = digits[level]
        for i in T.unroll(2):
            bin_ = _BINS - 1 - (2 * tx + i)
            if is_cluster:
                pair[i] = T.call_extern(
                    "uint32",
                    "di_peer_load",
                    T.address_of(totals[level, bin_ % owned]),
                    bin_ // owned,
                )
            else:
                pair[i] = totals[level, bin_]
        pair[2] = T.call_extern(
            "uint32", "di_scan_block", pair[0] + pair[1], T.address_of(sums[level, 0])
        )
        if pair[2] < state[1] and state[1] <= pair[2] + pair[0] + pair[1]:
            if state[1] <= pair[2] + pair[0]:
                found[level, 0] = T.cast(_BINS - 1 - 2 * tx, "uint32")
                found[level, 1] = state[1] - pair[2]
                found[level, 2] = pair[0]
            else:
                found[level, 0] = T.cast(_BINS - 2 - 2 * tx, "uint32")
                found[level, 1] = state[1] - pair[2] - pair[0]
                found[level, 2] = pair[1]
        T.sync_threads()
        state[0] = (state[0] << width) | found[level, 0]
        state[1] = found[level, 1]
        state[2] = T.cast(found[level, 1] == found[level, 2], "uint32")
        state[3] = T.uint32(shift)

    @T.prim_func
    def kernel(
        scores: T.StridedTensor(
            (num_rows, num_entries), (row_stride, 1), "uint32" if key_bits == 32 else "uint16"
        ),
        num_visible: T.Tensor((num_words,), "int32"),
        visible_stride: T.int32,
        chosen: T.Tensor((num_rows, k), "int64"),
    ):
        with T.Kernel(
            num_rows * blocks, threads=THREADS, cluster_dims=blocks if is_cluster else None
        ) as bx:
            T.import_source(SELECT + CLUSTER if is_cluster else SELECT)
            counts = T.alloc_shared((_BINS,), "uint32", scope="shared")
            totals = T.alloc_shared((len(digits), owned), "uint32", scope="shared")
            sums = T.alloc_shared((len(digits), 32), "uint32", scope="shared")
            found = T.alloc_shared((len(digits), 3), "uint32", scope="shared")
            warp_counts = T.alloc_shared((2, _WARPS), "uint32", scope="shared")
            block_counts = T.alloc_shared((2, blocks), "uint32", scope="shared")
            keys = T.alloc_local((KEYS,), "uint32")
            pair = T.alloc_local((3,), "uint32")
            # Bits of the k-th key so far, entries to take among those that share them, whether
            # these are all, bits not looked at.
            state = T.alloc_local((4,), "uint32")
            before = T.alloc_local((2,), "uint32")
            votes = T.alloc_local((2,), "uint32")
            place = T.alloc_local((2,), "uint32")
            tx = T.get_thread_binding()
            row = bx // blocks
            rank = bx % blocks
            visible = T.min(T.max(num_visible[row * visible_stride], 0), num_entries)
            num_candidates = (visible + block_size - 1) // block_size

            if num_candidates <= k:
                for i in T.serial(T.ceildiv(k, THREADS * blocks)):
                    entry = (i * blocks + rank) * THREADS + tx
                    if entry < k:
                        chosen[row, entry] = T.if_then_else(
                            entry < num_candidates, T.cast(entry, "int64"), T.int64(-1)
                        )
            else:
                # Steps of 32 candidates per warp; a row's candidates are shared out evenly.
                steps = T.ceildiv(num_candidates, THREADS * blocks)
                first = (rank * _WARPS + tx // 32) * steps * 32
                parts = T.ceildiv(steps, KEYS)
                if shape.is_kept:
                    load_keys(scores, keys, row, first, 0, steps, num_candidates)
                for i in T.unroll(_BINS // THREADS):
                    counts[i * THREADS + tx] = T.uint32(0)
                for i in T.unroll((len(digits) * owned + THREADS - 1) // THREADS):
                    if i * THREADS + tx < len(digits) * owned:
                        totals[(i * THREADS + tx) // owned, (i * THREADS + tx) % owned] = T.uint32(
                            0
                        )
                state[0] = T.uint32(0)
                state[1] = T.cast(k, "uint32")
                state[2] = T.uint32(0)
                if is_cluster:
                    T.call_extern("handle", "di_sync_cluster")
                else:
                    T.sync_threads()

                for level in levels:
                    if state[2] == 0:
                        if shape.is_kept:
                            count_digit(keys, counts, state, level)
                        else:
                            for part in T.serial(parts):
                                load_keys(
                                    scores, keys, row, first, part * KEYS, steps, num_candidates
                                )
                                count_digit(keys, counts, state, level)
                        T.sync_threads()
                        for i in T.unroll(_BINS // THREADS):
                            bin_ = i * THREADS + tx
                            pair[0] = counts[bin_]
                            counts[bin_] = T.uint32(0)
                            if is_cluster:
                                if pair[0] != 0:
                                    T.call_extern(
                                        "handle",
                                        "di_peer_add",
                                        T.address_of(totals[level, bin_ % owned]),
                                        bin_ // owned,
                                        pair[0],
                                    )
                            else:
                                totals[level, bin_] = pair[0]
                        if is_cluster:
                            T.call_extern("handle", "di_sync_cluster")
                        else:
                            T.sync_threads()
                        find_digit(totals, sums, found, state, pair, level)

                # Above the threshold all are taken, at the threshold the first state[1].
                state[0] = state[0] << state[3]
                if state[2] != 0:
                    state[0] = state[0] - T.uint32(1)
                    state[1] = T.uint32(0)
                before[0] = T.uint32(0)
                before[1] = T.uint32(0)
                for part in T.serial(1 if shape.is_kept else parts):
                    if not shape.is_kept:
                        load_keys(scores, keys, row, first, part * KEYS, steps, num_candidates)
                    for s in T.unroll(KEYS):
                        before[0] += T.cast(keys[s] > state[0], "uint32")
                        before[1] += T.cast(keys[s] == state[0], "uint32")
                for i in T.unroll(2):
                    before[i] = T.call_extern("uint32", "di_sum_warp", before[i])
                    if tx % 32 == 0:
                        warp_counts[i, tx // 32] = before[i]
                T.sync_threads()
                for i in T.unroll(2):
                    # Inclusive sums over warps: every warp finds its own place in the block.
                    pair[i] = T.call_extern("uint32", "di_scan_warp", warp_counts[i, tx % 32])
                    before[i] = (
                        T.call_extern(
                            "uint32", "__shfl_sync", T.uint32(0xFFFFFFFF), pair[i], tx // 32
                        )
                        - before[i]
                    )
                    pair[i] = T.call_extern(
                        "uint32", "__shfl_sync", T.uint32(0xFFFFFFFF), pair[i], _WARPS - 1
                    )
                if is_cluster:
                    if tx < blocks:
                        for i in T.unroll(2):
                            T.call_extern(
                                "handle",
                                "di_peer_store",
                                T.address_of(block_counts[i, rank]),
                                tx,
                                pair[i],
                            )
                    T.call_extern("handle", "di_sync_cluster")
                    for peer in T.unroll(blocks):
                        if peer < rank:
                            for i in T.unroll(2):
                                before[i] += block_counts[i, peer]

                for part in T.serial(1 if shape.is_kept else parts):
                    if not shape.is_kept:
                        load_keys(scores, keys, row, first, part * KEYS, steps, num_candidates)
                    for s in T.unroll(KEYS):
                        votes[0] = T.call_extern("uint32", "di_vote", keys[s] > state[0])
                        votes[1] = T.call_extern("uint32", "di_vote", keys[s] == state[0])
                        if (votes[0] | votes[1]) != 0:
                            for i in T.unroll(2):
                                place[i] = before[i] + T.call_extern(
                                    "uint32", "di_before", votes[i]
                                )
                                before[i] += T.call_extern("uint32", "__popc", votes[i])
                            if keys[s] > state[0] or (keys[s] == state[0] and place[1] < state[1]):
                                chosen[row, place[0] + T.min(place[1], state[1])] = T.cast(
                                    first + (part * KEYS + s) * 32 + tx % 32, "int64"
                                )

    return kernel
