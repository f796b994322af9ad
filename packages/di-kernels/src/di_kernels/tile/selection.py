# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""The k best candidates of each row, exactly, in ascending order: radix selection on ordered keys.

A row is one thread block's, or a cluster's of up to eight. A warp owns a run of candidates, whose
scores lie in shared memory where they fit, so they are read once. Steps are loops over shared
memory that stop at what is there; unrolled over registers they were four times the code.

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

from collections.abc import Callable

import tilelang.language as T

from di_kernels.tile.mailbox_source import MAILBOXES
from di_kernels.tile.select_keys import key_steps, score_steps
from di_kernels.tile.select_source import SELECT
from di_kernels.tile.select_steps import (
    BINS,
    BINS_PER_THREAD,
    LOOK,
    PACKED,
    ROUNDS,
    THREADS,
    WARPS,
    Selection,
    counting,
    loading,
)

_COARSE = 32 - 11
_AT_BITS = 20
_LARGEST_K = 2048
_LAST_MAILBOX = 1 + ROUNDS


def select_best(shape: Selection, *, blocks_per_sm: int) -> object:
    """The selection of one shape; rows that see at most k candidates get them all.

    Args:
        shape: Of rows and their scores.
        blocks_per_sm: Thread blocks that shall fit a multiprocessor by their registers.
    """
    num_rows, num_entries, row_stride = T.dynamic("num_rows, num_entries, row_stride")
    num_words, k = T.dynamic("num_words, k")
    blocks, block_size = shape.blocks, shape.block_size
    is_cluster, is_kept = blocks > 1, shape.is_kept
    start_loads, finish_loads = loading(shape)
    count_scores, pack = score_steps(shape)
    count_keys, number_keys, write_keys = key_steps(shape)
    add_up, find_bin = counting(shape)
    prepare, places_before = meeting(shape)
    # A bfloat16 score has one key in every 2^16.
    single = 32 - shape.score_bits

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
            T.import_source(SELECT + MAILBOXES if is_cluster else SELECT)
            T.annotate_min_blocks_per_sm(blocks_per_sm)
            # Scores, then those that were packed.
            values = T.alloc_shared((WARPS, shape.keys + PACKED), "uint32")
            places = T.alloc_shared((WARPS, PACKED), "int32", scope="shared")
            counts = T.alloc_shared((BINS,), "uint32", scope="shared")
            totals = T.alloc_shared((shape.levels, shape.owned), "uint32", scope="shared")
            sums = T.alloc_shared((1 + ROUNDS, WARPS), "uint32", scope="shared")
            found = T.alloc_shared((1 + ROUNDS, 4), "uint32", scope="shared")
            warp_numbers = T.alloc_shared((WARPS,), "uint32", scope="shared")
            block_numbers = T.alloc_shared((blocks,), "uint32", scope="shared")
            # For the counts of every level, and for the numbers of the blocks at the end.
            mailboxes = T.alloc_shared((_LAST_MAILBOX + 1,), "uint64", scope="shared")
            best = T.alloc_local((shape.looks,), "float32")
            count = T.alloc_local((1,), "int32")
            mine = T.alloc_local((3,), "int32")
            range_ = T.alloc_local((2,), "uint32")
            wanted = T.alloc_local((1,), "uint32")
            shift = T.alloc_local((1,), "uint32")
            numbers = T.alloc_local((2,), "uint32")
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
                # A row's candidates are shared out evenly, in runs of whole looks.
                length = T.ceildiv(num_candidates, WARPS * blocks * LOOK) * LOOK
                first = (rank * WARPS + tx // 32) * length
                run = (row, first, first + length, num_candidates)
                parts = 1 if is_kept else T.ceildiv(length, shape.keys)
                if is_kept:
                    start_loads(scores, values, run, 0, count)
                prepare(counts, totals, found, mailboxes, rank)
                if is_kept:
                    finish_loads(values, count)

                range_[0] = T.uint32(1)
                range_[1] = T.uint32(0xFFFFFFFF)
                wanted[0] = T.cast(k, "uint32")
                for i in T.unroll(3):
                    mine[i] = 0
                for level in T.unroll(1 + ROUNDS, unroll_factor=1):
                    if (range_[0] >> single) < (range_[1] >> single):
                        if level == 0:
                            count_scores(scores, values, run, parts, count, best, counts)
                        else:
                            count_keys(scores, values, run, mine, range_, shift, counts)
                        add_up(counts, totals, mailboxes, level)
                        find_bin(totals, sums, found, wanted[0], level)
                        if level == 0:
                            # No bound where fewer than k were counted; key 0 is nobody's.
                            range_[0] = T.max(found[0, 0] << _COARSE, T.uint32(1))
                            range_[1] = ((found[0, 3] + 1) << _COARSE) - T.uint32(1)
                            shift[0] = T.uint32(_COARSE - 11)
                            if found[0, 0] == 0:
                                shift[0] = T.call_extern(
                                    "uint32", "di_shift_for", range_[1] - range_[0]
                                )
                            pack(
                                scores, values, run, parts, count, best, places, range_[0], mine
                            )  # fmt: skip
                        else:
                            range_[0] += found[level, 0] << shift[0]
                            if found[level, 0] < BINS - 1:
                                range_[1] = range_[0] + (T.uint32(1) << shift[0]) - T.uint32(1)
                            wanted[0] = found[level, 1]
                            shift[0] = T.call_extern(
                                "uint32", "di_shift_for", range_[1] - range_[0]
                            )
                            if found[level, 1] == found[level, 2]:
                                # All of the bin are taken: none is left in question.
                                range_[1] = range_[0] - T.uint32(1)

                number_keys(scores, values, run, mine, range_, numbers)
                places_before(numbers, warp_numbers, block_numbers, mailboxes, rank)
                write_keys(
                    scores, values, run, mine, range_, wanted, numbers, places, chosen
                )  # fmt: skip

    return kernel


def meeting(shape: Selection) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros that prepare a row's blocks for counting, and that number their keys at the end."""
    blocks, owned, is_cluster = shape.blocks, shape.owned, shape.blocks > 1

    @T.macro
    def prepare(counts, totals, found, mailboxes, rank):
        tx = T.get_thread_binding()
        for i in T.unroll(BINS_PER_THREAD):
            counts[i * THREADS + tx] = T.uint32(0)
        for i in T.unroll(T.ceildiv(shape.levels * owned, THREADS)):
            if i * THREADS + tx < shape.levels * owned:
                totals[(i * THREADS + tx) // owned, (i * THREADS + tx) % owned] = T.uint32(0)
        if tx < 4:
            found[0, tx] = T.uint32(0)
        if is_cluster:
            if tx <= _LAST_MAILBOX:
                # Of every block the warps with its bins, at the end the block.
                warps = WARPS // blocks
                if WARPS % blocks:
                    warps = shape.first_owned(rank + 1) - shape.first_owned(rank)
                T.call_extern(
                    "handle",
                    "di_prepare_mailbox",
                    T.address_of(mailboxes[tx]),
                    T.if_then_else(tx < _LAST_MAILBOX, warps * blocks, blocks),
                )
            T.call_extern("handle", "di_meet_cluster")
        else:
            T.sync_threads()

    @T.macro
    def places_before(numbers, warp_numbers, block_numbers, mailboxes, rank):
        """Of the lane's numbers above the threshold and at it: those of all warps before.

        Both travel in one word; at the threshold no more than k of a warp count.
        """
        tx = T.get_thread_binding()
        warp, lane = tx // 32, tx % 32
        both = T.alloc_local((1,), "uint32")
        whole = T.alloc_local((1,), "uint32")
        for i in T.unroll(2):
            numbers[i] = T.call_extern("uint32", "di_sum_before", numbers[i], 32)
        if lane == 0:
            warp_numbers[warp] = (numbers[0] << _AT_BITS) + T.min(numbers[1], T.uint32(_LARGEST_K))
        T.sync_threads()
        both[0] = T.call_extern("uint32", "di_sum_before", warp_numbers[lane % WARPS], warp)
        if is_cluster:
            if warp == 0:
                whole[0] = T.call_extern(
                    "uint32", "di_sum_before", warp_numbers[lane % WARPS], WARPS
                )
                if lane < blocks:
                    T.call_extern(
                        "handle",
                        "di_mail",
                        T.address_of(block_numbers[rank]),
                        T.address_of(mailboxes[_LAST_MAILBOX]),
                        lane,
                        whole[0],
                    )
                    T.call_extern(
                        "handle", "di_announce", T.address_of(mailboxes[_LAST_MAILBOX]), lane, 1
                    )
            # Who has the numbers of all knows that no other block reads its memory any more.
            T.call_extern("handle", "di_await_mail", T.address_of(mailboxes[_LAST_MAILBOX]))
            both[0] += T.call_extern("uint32", "di_sum_before", block_numbers[lane % blocks], rank)
        numbers[0] = both[0] >> _AT_BITS
        numbers[1] = both[0] & T.uint32((1 << _AT_BITS) - 1)

    return prepare, places_before
