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

from dataclasses import dataclass

import tilelang.language as T

from di_kernels.tile.select_source import CLUSTER, SELECT

THREADS = 512
KEYS = 32
"""Keys a thread keeps in registers."""

_BINS = 2048
_WARPS = THREADS // 32
_BINS_PER_THREAD = _BINS // THREADS
_ROUNDS = 4
_PACKED = 64
_FULL = 0xFFFFFFFF


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
        return 1 + _ROUNDS if self.blocks > 1 else 1


def _loads(shape: Selection):
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
                totals[0, bin_] = count[0]
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
                own[i] = totals[0, lowest + i]
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
    is_cluster, owned, is_kept = blocks > 1, _BINS // blocks, shape.is_kept
    coarse = key_bits - 11
    load_keys = _loads(shape)
    sync_row, add_up, find_bin = _counts(shape)

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
            counts = T.alloc_shared((_BINS,), "uint32", scope="shared")
            totals = T.alloc_shared((shape.levels, owned), "uint32", scope="shared")
            sums = T.alloc_shared((1 + _ROUNDS, _WARPS), "uint32", scope="shared")
            found = T.alloc_shared((1 + _ROUNDS, 4), "uint32", scope="shared")
            warp_counts = T.alloc_shared((2, 32), "uint32", scope="shared")
            block_counts = T.alloc_shared((2, blocks), "uint32", scope="shared")
            packed_keys = T.alloc_shared((_WARPS, _PACKED), "uint32", scope="shared")
            packed_places = T.alloc_shared((_WARPS, _PACKED), "int32", scope="shared")
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
                first = (rank * _WARPS + warp) * steps * 32
                parts = T.ceildiv(steps, KEYS)
                if is_kept:
                    load_keys(scores, keys, numbers, row, first, 0, steps, num_candidates)
                for i in T.unroll(_BINS_PER_THREAD):
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

                for level in T.serial(1, 1 + _ROUNDS):
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
                                        T.min((keys[s] - low[0]) >> shift[0], T.uint32(_BINS - 1)),
                                        keys[s] >= low[0] and keys[s] <= high[0],
                                    )
                        add_up(counts, totals, level)
                        find_bin(totals, sums, found, wanted[0], level)
                        low[0] = low[0] + (found[level, 0] << shift[0])
                        if found[level, 0] < _BINS - 1:
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
                        warp_counts[i, _WARPS + warp] = T.uint32(0)
                T.sync_threads()
                for i in T.unroll(2):
                    # Inclusive sums over warps: every warp finds its own place in the block.
                    whole[i] = T.call_extern("uint32", "di_scan_warp", warp_counts[i, lane])
                    before[i] = (
                        T.call_extern("uint32", "__shfl_sync", T.uint32(_FULL), whole[i], warp)
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
