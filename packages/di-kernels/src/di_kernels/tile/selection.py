# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""The k best candidates of each row, exactly, in ascending order: radix selection on ordered keys.

A row is one thread block's, or a cluster's of eight. A warp owns a run of candidates and keeps
their keys in registers where they fit, so scores are read once.

1. Every thread counts the best of its keys in bins of the upper eleven bits. The bin of the k-th
   best of these is a bound: at least k keys lie in it or above, and usually few more. Each warp
   packs its keys from the bound up together.
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
    ROUNDS,
    THREADS,
    WARPS,
    Selection,
    counting,
    loading,
)

_PACKED = 64
_FULL = 0xFFFFFFFF


def select_best(shape: Selection) -> object:
    """The selection of one shape; rows that see at most k candidates get them all."""
    num_rows, num_entries, row_stride = T.dynamic("num_rows, num_entries, row_stride")
    num_words, k = T.dynamic("num_words, k")
    blocks, block_size, key_bits = shape.blocks, shape.block_size, shape.key_bits
    is_cluster, owned, is_kept = blocks > 1, BINS // blocks, shape.is_kept
    coarse = key_bits - 11
    load_keys = loading(shape)
    sync_row, add_up, find_bin = counting(shape)

    @T.macro
    def count_best(counts, best):
        T.call_extern(
            "handle", "di_count", T.address_of(counts[0]), best[0] >> coarse, best[0] != 0
        )

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
            T.annotate_min_blocks_per_sm(shape.blocks_per_sm)
            counts = T.alloc_shared((BINS,), "uint32", scope="shared")
            totals = T.alloc_shared((shape.levels, owned), "uint32", scope="shared")
            sums = T.alloc_shared((1 + ROUNDS, WARPS), "uint32", scope="shared")
            found = T.alloc_shared((1 + ROUNDS, 4), "uint32", scope="shared")
            warp_counts = T.alloc_shared((2, 32), "uint32", scope="shared")
            block_counts = T.alloc_shared((2, blocks), "uint32", scope="shared")
            packed_keys = T.alloc_shared((WARPS, _PACKED), "uint32", scope="shared")
            packed_places = T.alloc_shared((WARPS, _PACKED), "int32", scope="shared")
            keys = T.alloc_local((KEYS,), "uint32")
            numbers = T.alloc_local((4,), "int32")
            best = T.alloc_local((1,), "uint32")
            # Keys still in question, from `low` to `high`; how many of the best of them are taken;
            # whether all are.
            low = T.alloc_local((1,), "uint32")
            high = T.alloc_local((1,), "uint32")
            wanted = T.alloc_local((1,), "uint32")
            is_whole = T.alloc_local((1,), "bool")
            shift = T.alloc_local((1,), "uint32")
            # Steps that a warp looks at its keys in, and times it loads them for that.
            used = T.alloc_local((1,), "int32")
            loads = T.alloc_local((1,), "int32")
            size = T.alloc_local((1,), "uint32")
            before = T.alloc_local((2,), "uint32")
            whole = T.alloc_local((2,), "uint32")
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
                # Steps of 32 candidates per warp; a row's candidates are shared out evenly.
                steps = T.ceildiv(num_candidates, THREADS * blocks)
                first = (rank * WARPS + warp) * steps * 32
                parts = T.ceildiv(steps, KEYS)
                if is_kept:
                    load_keys(scores, keys, numbers, row, first, 0, steps, num_candidates)
                for i in T.unroll(BINS_PER_THREAD):
                    counts[i * THREADS + tx] = T.uint32(0)
                for i in T.unroll((shape.levels * owned + THREADS - 1) // THREADS):
                    number = i * THREADS + tx
                    if number < shape.levels * owned:
                        totals[number // owned, number % owned] = T.uint32(0)
                if tx < 4:
                    found[0, tx] = T.uint32(0)
                sync_row()

                best[0] = T.uint32(0)
                for part in T.serial(1 if is_kept else parts):
                    if not is_kept:
                        load_keys(
                            scores, keys, numbers, row, first, part * KEYS, steps, num_candidates
                        )
                    for s in T.unroll(KEYS):
                        best[0] = T.max(best[0], keys[s])
                        if is_kept and (s + 1) % shape.best_of == 0:
                            count_best(counts, best)
                            best[0] = T.uint32(0)
                if not is_kept:
                    count_best(counts, best)
                add_up(counts, totals, 0)
                find_bin(totals, sums, found, T.cast(k, "uint32"), 0)
                # No bound where fewer than k were counted; key 0 is nobody's.
                low[0] = T.max(found[0, 0] << coarse, T.uint32(1))
                high[0] = ((found[0, 3] + 1) << coarse) - T.uint32(1)
                wanted[0] = T.cast(k, "uint32")
                is_whole[0] = False
                shift[0] = T.uint32(max(0, coarse - 11))
                if found[0, 0] == 0:
                    shift[0] = T.call_extern("uint32", "di_shift_for", high[0] - low[0])

                used[0] = KEYS
                loads[0] = 1 if is_kept else parts
                size[0] = T.uint32(0)
                for part in T.serial(loads[0]):
                    if not is_kept:
                        load_keys(
                            scores, keys, numbers, row, first, part * KEYS, steps, num_candidates
                        )
                    size[0] = T.call_extern(
                        "uint32",
                        f"di_pack<{KEYS}>",
                        T.access_ptr(keys, "r"),
                        low[0],
                        part * KEYS * 32 + lane,
                        size[0],
                        T.access_ptr(packed_keys[warp, 0], "rw", _PACKED),
                        T.access_ptr(packed_places[warp, 0], "rw", _PACKED),
                    )
                T.call_extern("handle", "__syncwarp")
                if size[0] <= _PACKED:
                    used[0] = T.cast((size[0] + 31) // 32, "int32")
                    loads[0] = 0
                    for s in T.unroll(_PACKED // 32):
                        keys[s] = T.uint32(0)
                        if T.cast(s * 32 + lane, "uint32") < size[0]:
                            keys[s] = packed_keys[warp, s * 32 + lane]

                for level in T.serial(1, 1 + ROUNDS):
                    if not is_whole[0] and low[0] < high[0]:
                        for part in T.serial(1 if is_kept else T.max(loads[0], 1)):
                            if not is_kept and loads[0] > 0:
                                load_keys(
                                    scores, keys, numbers, row, first, part * KEYS, steps,
                                    num_candidates,
                                )  # fmt: skip
                            for s in T.unroll(KEYS):
                                if s < used[0]:
                                    T.call_extern(
                                        "handle",
                                        "di_count",
                                        T.address_of(counts[0]),
                                        T.min((keys[s] - low[0]) >> shift[0], T.uint32(BINS - 1)),
                                        keys[s] >= low[0] and keys[s] <= high[0],
                                    )
                        add_up(counts, totals, level)
                        find_bin(totals, sums, found, wanted[0], level)
                        low[0] = low[0] + (found[level, 0] << shift[0])
                        if found[level, 0] < BINS - 1:
                            high[0] = low[0] + (T.uint32(1) << shift[0]) - T.uint32(1)
                        wanted[0] = found[level, 1]
                        is_whole[0] = found[level, 1] == found[level, 2]
                        shift[0] = T.call_extern("uint32", "di_shift_for", high[0] - low[0])

                # Above the threshold all are taken, at the threshold the first that are wanted.
                if is_whole[0]:
                    low[0] = low[0] - T.uint32(1)
                    wanted[0] = T.uint32(0)
                before[0] = T.uint32(0)
                before[1] = T.uint32(0)
                for part in T.serial(1 if is_kept else T.max(loads[0], 1)):
                    if not is_kept and loads[0] > 0:
                        load_keys(
                            scores, keys, numbers, row, first, part * KEYS, steps, num_candidates
                        )
                    for s in T.unroll(KEYS):
                        if s < used[0]:
                            before[0] += T.cast(keys[s] > low[0], "uint32")
                            before[1] += T.cast(keys[s] == low[0], "uint32")
                for i in T.unroll(2):
                    before[i] = T.call_extern("uint32", "di_sum_warp", before[i])
                    if lane == 0:
                        warp_counts[i, warp] = before[i]
                        warp_counts[i, WARPS + warp] = T.uint32(0)
                T.sync_threads()
                for i in T.unroll(2):
                    # Inclusive sums over warps: every warp finds its own place in the block.
                    whole[i] = T.call_extern("uint32", "di_scan_warp", warp_counts[i, lane])
                    before[i] = (
                        T.call_extern("uint32", "__shfl_sync", T.uint32(_FULL), whole[i], warp)
                        - before[i]
                    )
                    whole[i] = T.call_extern(
                        "uint32", "__shfl_sync", T.uint32(_FULL), whole[i], WARPS - 1
                    )
                if is_cluster:
                    if tx < blocks:
                        for i in T.unroll(2):
                            T.call_extern(
                                "handle",
                                "di_peer_store",
                                T.address_of(block_counts[i, rank]),
                                tx,
                                whole[i],
                            )
                    sync_row()
                    for peer in T.unroll(blocks):
                        if peer < rank:
                            for i in T.unroll(2):
                                before[i] += block_counts[i, peer]

                for part in T.serial(1 if is_kept else T.max(loads[0], 1)):
                    if not is_kept and loads[0] > 0:
                        load_keys(
                            scores, keys, numbers, row, first, part * KEYS, steps, num_candidates
                        )
                    for s in T.unroll(KEYS):
                        if s < used[0]:
                            votes[0] = T.call_extern("uint32", "di_vote", keys[s] > low[0])
                            votes[1] = T.call_extern("uint32", "di_vote", keys[s] == low[0])
                            for i in T.unroll(2):
                                place[i] = before[i] + T.call_extern(
                                    "uint32", "di_before", votes[i]
                                )
                                before[i] += T.call_extern("uint32", "__popc", votes[i])
                            if keys[s] > low[0] or (keys[s] == low[0] and place[1] < wanted[0]):
                                numbers[0] = (part * KEYS + s) * 32 + lane
                                if s < _PACKED // 32 and used[0] <= _PACKED // 32:
                                    numbers[0] = packed_places[warp, s * 32 + lane]
                                chosen[row, place[0] + T.min(place[1], wanted[0])] = T.cast(
                                    first + numbers[0], "int64"
                                )

    return kernel
