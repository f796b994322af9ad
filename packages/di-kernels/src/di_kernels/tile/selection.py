# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""The k best candidates of each row, exactly, in ascending order: radix selection on ordered keys.

A row is one thread block's, or a cluster's of eight. A warp owns a run of candidates, whose scores
lie in shared memory where they fit, so they are read once. Steps are loops over shared memory that
stop at what is there; unrolled over registers they were four times the code.

1. Every thread counts the best of some of its scores by the upper eleven bits of its key. The bin
   of the k-th best of these is a bound: at least k keys lie in it or above, and usually few more.
   Each warp packs the keys from the bound up together.
2. They are counted in 2,048 bins from the bound up, the last bin for all that lie further, then in
   bins over the bin of the k-th key again, until a bin is taken whole or holds one value.
3. Warps number their keys above and at the threshold and write in order, of equal keys the first.

A warp that cannot pack its keys (many equal scores) looks at all of them in every step. A cluster
adds its counts up in distributed shared memory. Integer additions alone are atomic, so no bit
depends on their order.

| buffer | shape | dtype |
|---|---|---|
| scores | (rows, entries), rows apart by any stride | the scores' bits, uint32 or uint16 |
| num_visible | words; word `row * visible_stride` is the row's | int32 |
| chosen | (rows, k) | int64 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80. Measured times:
`docs/performance/kernels.md`.
"""

import tilelang.language as T

from di_kernels.tile.select_source import CLUSTER, SELECT
from di_kernels.tile.select_steps import (
    BINS,
    BINS_PER_THREAD,
    KEYS,
    PACKED,
    ROUNDS,
    THREADS,
    WARPS,
    Selection,
    counting,
    loading,
)

_FULL = 0xFFFFFFFF
_COARSE = 32 - 11
_LOOK = 128
"""Candidates that a warp looks at together in step 1, four a lane."""

_LOOKS = KEYS // _LOOK
_AT_BITS = 20
_MOST = 2048
"""Largest k."""


def select_best(shape: Selection) -> object:
    """The selection of one shape; rows that see at most k candidates get them all."""
    num_rows, num_entries, row_stride = T.dynamic("num_rows, num_entries, row_stride")
    num_words, k = T.dynamic("num_words, k")
    blocks, block_size = shape.blocks, shape.block_size
    is_cluster, owned, is_kept = blocks > 1, BINS // blocks, shape.is_kept
    start_loads, finish_loads = loading(shape)
    sync_row, add_up, find_bin = counting(shape)
    # A bfloat16 score has one key in every 2^16.
    single = 32 - shape.score_bits

    @T.macro
    def load(scores, values, row, start, end, num_candidates, count):
        start_loads(scores, values, row, start, end, num_candidates, count)
        finish_loads(values, count)

    @T.macro
    def best_of_fours(values, warp, count, best):
        T.call_extern(
            "handle",
            "di_best_of_fours",
            T.address_of(values[warp, 0]),
            count[0],
            T.access_ptr(best, "w"),
        )

    @T.macro
    def count_score(counts, score, is_counted):
        T.call_extern("handle", "di_count_score", T.address_of(counts[0]), score, is_counted)

    @T.macro
    def key_of(values, warp, at, key):
        key[0] = T.call_extern("uint32", "di_score_key", values[warp, at])

    @T.prim_func
    def kernel(
        scores: T.StridedTensor(
            (num_rows, num_entries),
            (row_stride, 1),
            "uint32" if shape.score_bits == 32 else "uint16",
        ),
        num_visible: T.Tensor((num_words,), "int32"),
        visible_stride: T.int32,
        chosen: T.Tensor((num_rows, k), "int64"),
    ):
        with T.Kernel(
            num_rows * blocks, threads=THREADS, cluster_dims=blocks if is_cluster else None
        ) as bx:
            T.import_source(SELECT + CLUSTER if is_cluster else SELECT)
            T.annotate_min_blocks_per_sm(2)
            # Scores, then keys that were packed.
            values = T.alloc_shared((WARPS, KEYS + PACKED), "uint32")
            packed_places = T.alloc_shared((WARPS, PACKED), "int32", scope="shared")
            counts = T.alloc_shared((BINS,), "uint32", scope="shared")
            totals = T.alloc_shared((shape.levels, owned), "uint32", scope="shared")
            sums = T.alloc_shared((1 + ROUNDS, WARPS), "uint32", scope="shared")
            found = T.alloc_shared((1 + ROUNDS, 4), "uint32", scope="shared")
            warp_counts = T.alloc_shared((WARPS,), "uint32", scope="shared")
            block_counts = T.alloc_shared((blocks,), "uint32", scope="shared")
            best = T.alloc_local((_LOOKS,), "float32")
            bound = T.alloc_local((1,), "float32")
            # Keys still in question, from `low` to `high`; how many of the best of them are taken.
            low = T.alloc_local((1,), "uint32")
            high = T.alloc_local((1,), "uint32")
            wanted = T.alloc_local((1,), "uint32")
            shift = T.alloc_local((1,), "uint32")
            # Of the warp: candidates loaded, keys packed, where its keys start, how many there are
            # in a part, and parts that must be loaded again in every step.
            count = T.alloc_local((1,), "int32")
            size = T.alloc_local((1,), "uint32")
            base = T.alloc_local((1,), "int32")
            used = T.alloc_local((1,), "int32")
            again = T.alloc_local((1,), "int32")
            key = T.alloc_local((1,), "uint32")
            number = T.alloc_local((1,), "int32")
            before = T.alloc_local((2,), "uint32")
            both = T.alloc_local((1,), "uint32")
            whole = T.alloc_local((1,), "uint32")
            votes = T.alloc_local((2,), "uint32")
            place = T.alloc_local((2,), "uint32")
            tx = T.get_thread_binding()
            warp = tx // 32
            lane = tx % 32
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
                # A row's candidates are shared out evenly, in runs of whole looks.
                run = T.ceildiv(num_candidates, WARPS * blocks * _LOOK) * _LOOK
                first = (rank * WARPS + warp) * run
                parts = T.ceildiv(run, KEYS)
                if is_kept:
                    start_loads(scores, values, row, first, first + run, num_candidates, count)
                for i in T.unroll(BINS_PER_THREAD):
                    counts[i * THREADS + tx] = T.uint32(0)
                for i in T.unroll((shape.levels * owned + THREADS - 1) // THREADS):
                    number[0] = i * THREADS + tx
                    if number[0] < shape.levels * owned:
                        totals[number[0] // owned, number[0] % owned] = T.uint32(0)
                if tx < 4:
                    found[0, tx] = T.uint32(0)
                sync_row()
                if is_kept:
                    finish_loads(values, count)

                # Unless it packs them, a warp's keys are all its scores, loaded again if need be.
                base[0] = 0
                again[0] = 0 if is_kept else parts
                used[0] = 0
                if is_kept:
                    used[0] = count[0]
                low[0] = T.uint32(1)
                high[0] = T.uint32(_FULL)
                wanted[0] = T.cast(k, "uint32")
                for level in T.unroll(1 + ROUNDS, unroll_factor=1):
                    if (low[0] >> single) < (high[0] >> single):
                        if level == 0:
                            bound[0] = -T.infinity("float32")
                            for part in T.serial(1 if is_kept else parts):
                                if not is_kept:
                                    load(
                                        scores, values, row, first + part * KEYS, first + run,
                                        num_candidates, count,
                                    )  # fmt: skip
                                best_of_fours(values, warp, count, best)
                                for look in T.unroll(_LOOKS):
                                    bound[0] = T.max(bound[0], best[look])
                                if shape.counts_fours:
                                    for look in T.unroll(_LOOKS):
                                        count_score(
                                            counts, best[look], look * _LOOK + lane * 4 < count[0]
                                        )
                            if not shape.counts_fours:
                                count_score(counts, bound[0], first + lane * 4 < num_candidates)
                        else:
                            for part in T.serial(T.max(again[0], 1)):
                                if not is_kept and again[0] > 0:
                                    load(
                                        scores, values, row, first + part * KEYS, first + run,
                                        num_candidates, used,
                                    )  # fmt: skip
                                for s in T.unroll(T.ceildiv(used[0], 32), unroll_factor=1):
                                    if s * 32 + lane < used[0]:
                                        key_of(values, warp, base[0] + s * 32 + lane, key)
                                        T.call_extern(
                                            "handle",
                                            "di_count",
                                            T.address_of(counts[0]),
                                            T.min(
                                                (key[0] - low[0]) >> shift[0], T.uint32(BINS - 1)
                                            ),
                                            key[0] >= low[0] and key[0] <= high[0],
                                        )
                        add_up(counts, totals, level)
                        find_bin(totals, sums, found, wanted[0], level)
                        if level == 0:
                            # No bound where fewer than k were counted; key 0 is nobody's.
                            low[0] = T.max(found[0, 0] << _COARSE, T.uint32(1))
                            high[0] = ((found[0, 3] + 1) << _COARSE) - T.uint32(1)
                            shift[0] = T.uint32(_COARSE - 11)
                            if found[0, 0] == 0:
                                shift[0] = T.call_extern("uint32", "di_shift_for", high[0] - low[0])
                            bound[0] = T.call_extern("float32", "di_score_of", low[0])
                            size[0] = T.uint32(0)
                            for part in T.serial(1 if is_kept else parts):
                                if not is_kept:
                                    load(
                                        scores, values, row, first + part * KEYS, first + run,
                                        num_candidates, count,
                                    )  # fmt: skip
                                    best_of_fours(values, warp, count, best)
                                size[0] = T.call_extern(
                                    "uint32",
                                    "di_pack",
                                    T.address_of(values[warp, 0]),
                                    count[0],
                                    T.access_ptr(best, "r"),
                                    bound[0],
                                    part * KEYS,
                                    size[0],
                                    T.address_of(values[warp, KEYS]),
                                    T.address_of(packed_places[warp, 0]),
                                )
                            if size[0] <= PACKED:
                                base[0] = KEYS
                                used[0] = T.cast(size[0], "int32")
                                again[0] = 0
                            T.call_extern("handle", "__syncwarp")
                        else:
                            low[0] = low[0] + (found[level, 0] << shift[0])
                            if found[level, 0] < BINS - 1:
                                high[0] = low[0] + (T.uint32(1) << shift[0]) - T.uint32(1)
                            wanted[0] = found[level, 1]
                            shift[0] = T.call_extern("uint32", "di_shift_for", high[0] - low[0])
                            if found[level, 1] == found[level, 2]:
                                # All of the bin are taken: none is left in question.
                                high[0] = low[0] - T.uint32(1)

                # Above `high` all are taken, from `low` to `high` the first that are wanted.
                before[0] = T.uint32(0)
                before[1] = T.uint32(0)
                for part in T.serial(T.max(again[0], 1)):
                    if not is_kept and again[0] > 0:
                        load(
                            scores, values, row, first + part * KEYS, first + run, num_candidates,
                            used,
                        )  # fmt: skip
                    for s in T.unroll(T.ceildiv(used[0], 32), unroll_factor=1):
                        if s * 32 + lane < used[0]:
                            key_of(values, warp, base[0] + s * 32 + lane, key)
                            before[0] += T.cast(key[0] > high[0], "uint32")
                            before[1] += T.cast(key[0] >= low[0] and key[0] <= high[0], "uint32")
                # Both numbers in one word; no more than k at the threshold count.
                for i in T.unroll(2):
                    before[i] = T.call_extern("uint32", "di_sum_before", before[i], 32)
                if lane == 0:
                    warp_counts[warp] = (before[0] << _AT_BITS) + T.min(before[1], T.uint32(_MOST))
                T.sync_threads()
                both[0] = T.call_extern("uint32", "di_sum_before", warp_counts[lane % WARPS], warp)
                if is_cluster:
                    if warp == 0:
                        whole[0] = T.call_extern(
                            "uint32", "di_sum_before", warp_counts[lane % WARPS], WARPS
                        )
                        if lane < blocks:
                            T.call_extern(
                                "handle",
                                "di_peer_store",
                                T.address_of(block_counts[rank]),
                                lane,
                                whole[0],
                            )
                    sync_row()
                    both[0] += T.call_extern(
                        "uint32", "di_sum_before", block_counts[lane % blocks], rank
                    )
                before[0] = both[0] >> _AT_BITS
                before[1] = both[0] & T.uint32((1 << _AT_BITS) - 1)

                for part in T.serial(T.max(again[0], 1)):
                    if not is_kept and again[0] > 0:
                        load(
                            scores, values, row, first + part * KEYS, first + run, num_candidates,
                            used,
                        )  # fmt: skip
                    for s in T.unroll(T.ceildiv(used[0], 32), unroll_factor=1):
                        key[0] = T.uint32(0)
                        if s * 32 + lane < used[0]:
                            key_of(values, warp, base[0] + s * 32 + lane, key)
                        votes[0] = T.call_extern("uint32", "di_vote", key[0] > high[0])
                        votes[1] = T.call_extern(
                            "uint32", "di_vote", key[0] >= low[0] and key[0] <= high[0]
                        )
                        for i in T.unroll(2):
                            place[i] = before[i] + T.call_extern("uint32", "di_before", votes[i])
                            before[i] += T.call_extern("uint32", "__popc", votes[i])
                        if key[0] > high[0] or (
                            key[0] >= low[0] and key[0] <= high[0] and place[1] < wanted[0]
                        ):
                            number[0] = part * KEYS + s * 32 + lane
                            if base[0] > 0:
                                number[0] = packed_places[warp, s * 32 + lane]
                            chosen[row, place[0] + T.min(place[1], wanted[0])] = T.cast(
                                first + number[0], "int64"
                            )

    return kernel
