# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""The k best candidates of each row, exactly, in ascending order: radix selection on ordered keys.

A row is one thread block's, or a cluster's of eight. A warp owns a run of candidates and keeps
their keys in registers where they fit, so scores are read once.

1. Every thread counts the best of its keys in bins of the upper eleven bits. The bin of the k-th
   best of these is a bound: at least k keys lie in it or above, and usually few more.
2. Keys from the bound up are counted in 2,048 bins over what range is left, and in the bin of the
   k-th key again, until a bin is taken whole or holds one value.
3. Warps number their keys above and at the threshold and write in order, of equal keys the first.

A cluster adds its counts up in distributed shared memory. Integer additions alone are atomic, so no
bit depends on their order.

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

THREADS = 512
KEYS = 32
"""Keys a thread keeps in registers."""

_BINS = 2048
_WARPS = THREADS // 32
_BINS_PER_THREAD = _BINS // THREADS
_ROUNDS = 3
_FULL = 0xFFFFFFFF


@dataclass(frozen=True)
class Selection:
    """One kernel of the family.

    Args:
        key_bits: 32 for float32 scores, 16 for bfloat16.
        blocks: Thread blocks per row: 1, or a cluster of 8.
        block_size: Entries a candidate stands for: 1, or 8 with the newest block forced in.
        is_kept: Whether a row's candidates fit the registers of its blocks; else every round reads
            the scores again.
        best_of: Keys of a thread that step 1 counts the best of.
    """

    key_bits: int
    blocks: int
    block_size: int
    is_kept: bool
    best_of: int


def _loads(shape: Selection):
    @T.macro
    def load_keys(scores, keys, row, first, step, steps, num_candidates):
        """Keys of the thread's next candidates; 0 where there is none."""
        lane = T.get_thread_binding() % 32
        for s in T.unroll(KEYS):
            candidate = first + (step + s) * 32 + lane
            keys[s] = T.uint32(0)
            if step + s < steps and candidate < num_candidates:
                if shape.block_size == 1:
                    keys[s] = T.call_extern("uint32", "di_score_key", scores[row, candidate])
                else:
                    if candidate == num_candidates - 1:
                        # The newest block, above every finite score.
                        keys[s] = T.uint32(0xFF800000 >> (32 - shape.key_bits))
                    else:
                        keys[s] = T.call_extern(
                            "uint32",
                            "di_best_key",
                            T.access_ptr(
                                scores[row, candidate * shape.block_size], "r", shape.block_size
                            ),
                        )

    return load_keys


def _counts(shape: Selection):
    is_cluster, owned = shape.blocks > 1, _BINS // shape.blocks

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
        for i in T.unroll(_BINS_PER_THREAD):
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
                totals[level, bin_] = count[0]
        sync_row()

    @T.macro
    def find_bin(totals, sums, found, wanted, level):
        """found: the bin of the `wanted`-th from above, its rank there, its count; the top bin."""
        tx = T.get_thread_binding()
        own = T.alloc_local((_BINS_PER_THREAD,), "uint32")
        above = T.alloc_local((2,), "uint32")
        lowest = _BINS - _BINS_PER_THREAD * (tx + 1)
        if is_cluster:
            T.call_extern(
                "handle",
                "di_peer_load4",
                T.address_of(totals[level, lowest % owned]),
                lowest // owned,
                T.access_ptr(own, "w"),
            )
        else:
            for i in T.vectorized(_BINS_PER_THREAD):
                own[i] = totals[level, lowest + i]
        above[1] = T.uint32(0)
        for i in T.unroll(_BINS_PER_THREAD):
            above[1] += own[i]
        above[0] = T.call_extern("uint32", "di_scan_block", above[1], T.address_of(sums[level, 0]))
        for i in T.unroll(_BINS_PER_THREAD):
            count = own[_BINS_PER_THREAD - 1 - i]
            bin_ = T.cast(lowest + _BINS_PER_THREAD - 1 - i, "uint32")
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


def select_best(shape: Selection) -> object:
    """The selection of one shape; rows that see at most k candidates get them all."""
    num_rows, num_entries, row_stride = T.dynamic("num_rows, num_entries, row_stride")
    num_words, k = T.dynamic("num_words, k")
    blocks, block_size, key_bits = shape.blocks, shape.block_size, shape.key_bits
    is_cluster, owned = blocks > 1, _BINS // blocks
    load_keys = _loads(shape)
    sync_row, add_up, find_bin = _counts(shape)

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
            T.annotate_min_blocks_per_sm(2)
            counts = T.alloc_shared((_BINS,), "uint32", scope="shared")
            totals = T.alloc_shared((1 + _ROUNDS, owned), "uint32", scope="shared")
            sums = T.alloc_shared((1 + _ROUNDS, _WARPS), "uint32", scope="shared")
            found = T.alloc_shared((1 + _ROUNDS, 4), "uint32", scope="shared")
            warp_counts = T.alloc_shared((2, 32), "uint32", scope="shared")
            block_counts = T.alloc_shared((2, blocks), "uint32", scope="shared")
            keys = T.alloc_local((KEYS,), "uint32")
            best = T.alloc_local((1,), "uint32")
            # Where the bins start, the shift to a bin, the bins to look at, keys to take in them,
            # whether the last bin is taken whole.
            low = T.alloc_local((1,), "uint32")
            shift = T.alloc_local((1,), "uint32")
            width = T.alloc_local((1,), "uint32")
            wanted = T.alloc_local((1,), "uint32")
            is_whole = T.alloc_local((1,), "bool")
            before = T.alloc_local((2,), "uint32")
            whole = T.alloc_local((2,), "uint32")
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
                for i in T.unroll(_BINS_PER_THREAD):
                    counts[i * THREADS + tx] = T.uint32(0)
                for i in T.unroll(((1 + _ROUNDS) * owned + THREADS - 1) // THREADS):
                    totals[(i * THREADS + tx) // owned, (i * THREADS + tx) % owned] = T.uint32(0)
                if tx < 4:
                    found[0, tx] = T.uint32(0)
                sync_row()

                best[0] = T.uint32(0)
                for part in T.serial(1 if shape.is_kept else parts):
                    if not shape.is_kept:
                        load_keys(scores, keys, row, first, part * KEYS, steps, num_candidates)
                    for s in T.unroll(KEYS):
                        best[0] = T.max(best[0], keys[s])
                        if (s + 1) % shape.best_of == 0 and shape.is_kept:
                            T.call_extern(
                                "handle",
                                "di_count",
                                T.address_of(counts[0]),
                                best[0] >> (key_bits - 11),
                                best[0] != 0,
                            )
                            best[0] = T.uint32(0)
                if not shape.is_kept:
                    T.call_extern(
                        "handle",
                        "di_count",
                        T.address_of(counts[0]),
                        best[0] >> (key_bits - 11),
                        best[0] != 0,
                    )
                add_up(counts, totals, 0)
                find_bin(totals, sums, found, T.cast(k, "uint32"), 0)
                # No bound where fewer than k were counted; key 0 is nobody's.
                low[0] = T.max(found[0, 0] << (key_bits - 11), T.uint32(1))
                shift[0] = T.call_extern(
                    "uint32", "di_shift_for", found[0, 3] - found[0, 0] + 1, key_bits - 11
                )
                width[0] = T.uint32(_BINS)
                wanted[0] = T.cast(k, "uint32")
                is_whole[0] = False

                for level in T.serial(1, 1 + _ROUNDS):
                    if not is_whole[0] and width[0] > 1:
                        for part in T.serial(1 if shape.is_kept else parts):
                            if not shape.is_kept:
                                load_keys(
                                    scores, keys, row, first, part * KEYS, steps, num_candidates
                                )
                            for s in T.unroll(KEYS):
                                T.call_extern(
                                    "handle",
                                    "di_count",
                                    T.address_of(counts[0]),
                                    (keys[s] - low[0]) >> shift[0],
                                    keys[s] >= low[0] and (keys[s] - low[0]) >> shift[0] < width[0],
                                )
                        add_up(counts, totals, level)
                        find_bin(totals, sums, found, wanted[0], level)
                        low[0] = low[0] + (found[level, 0] << shift[0])
                        wanted[0] = found[level, 1]
                        is_whole[0] = found[level, 1] == found[level, 2]
                        width[0] = T.uint32(1) << T.min(shift[0], T.uint32(11))
                        shift[0] = T.max(shift[0], T.uint32(11)) - T.uint32(11)

                # Above the threshold all are taken, at the threshold the first that are wanted.
                if is_whole[0]:
                    low[0] = low[0] - T.uint32(1)
                    wanted[0] = T.uint32(0)
                before[0] = T.uint32(0)
                before[1] = T.uint32(0)
                for part in T.serial(1 if shape.is_kept else parts):
                    if not shape.is_kept:
                        load_keys(scores, keys, row, first, part * KEYS, steps, num_candidates)
                    for s in T.unroll(KEYS):
                        before[0] += T.cast(keys[s] > low[0], "uint32")
                        before[1] += T.cast(keys[s] == low[0], "uint32")
                for i in T.unroll(2):
                    before[i] = T.call_extern("uint32", "di_sum_warp", before[i])
                    if tx % 32 == 0:
                        warp_counts[i, tx // 32] = before[i]
                        warp_counts[i, _WARPS + tx // 32] = T.uint32(0)
                T.sync_threads()
                for i in T.unroll(2):
                    # Inclusive sums over warps: every warp finds its own place in the block.
                    whole[i] = T.call_extern("uint32", "di_scan_warp", warp_counts[i, tx % 32])
                    before[i] = (
                        T.call_extern("uint32", "__shfl_sync", T.uint32(_FULL), whole[i], tx // 32)
                        - before[i]
                    )
                    whole[i] = T.call_extern(
                        "uint32", "__shfl_sync", T.uint32(_FULL), whole[i], _WARPS - 1
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

                for part in T.serial(1 if shape.is_kept else parts):
                    if not shape.is_kept:
                        load_keys(scores, keys, row, first, part * KEYS, steps, num_candidates)
                    for s in T.unroll(KEYS):
                        votes[0] = T.call_extern("uint32", "di_vote", keys[s] > low[0])
                        votes[1] = T.call_extern("uint32", "di_vote", keys[s] == low[0])
                        if (votes[0] | votes[1]) != 0:
                            for i in T.unroll(2):
                                place[i] = before[i] + T.call_extern(
                                    "uint32", "di_before", votes[i]
                                )
                                before[i] += T.call_extern("uint32", "__popc", votes[i])
                            if keys[s] > low[0] or (keys[s] == low[0] and place[1] < wanted[0]):
                                chosen[row, place[0] + T.min(place[1], wanted[0])] = T.cast(
                                    first + (part * KEYS + s) * 32 + tx % 32, "int64"
                                )

    return kernel
