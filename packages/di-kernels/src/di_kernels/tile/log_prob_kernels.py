# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""Log-probabilities of one token of every row, and of the most likely ones, without a sort.

Formulas: `di_kernels.ops.log_probs`. A row is a cluster's of eight blocks, or one block's: largest
logits, then masses and counts of all tokens in bins, then the cut behind the most likely tokens as
the filters find theirs (`row_source`). The row's first block gathers those and orders them.

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| temperature | (rows,) or 1 | float64 |
| chosen | (rows,) | float32 |
| top_token_ids, top | (rows, wanted tokens or 1) | int64, float32 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80.
"""

import tilelang.language as T

from di_kernels.tile.log_prob_source import LOG_PROBS
from di_kernels.tile.row_source import row_source
from di_kernels.tile.row_steps import (
    SEARCH,
    THREADS,
    WARPS,
    RowShape,
    clearing,
    counting_ties,
    measuring,
    searching,
)

MOST_TOP = 32
_SLOT_WORDS = 3


def log_probs(shape: RowShape) -> object:
    """Log-probability of a token of every row, and its most likely tokens."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    degree_rows, columns = T.dynamic("degree_rows, columns")
    blocks = shape.blocks
    clear, search_cut = clearing(shape), searching(shape)
    measure, count_ties = measuring(shape), counting_ties(shape)

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        mask_step: T.int32,
        temperature: T.Tensor((degree_rows,), "float64"),
        degree_step: T.int32,
        token_ids: T.Tensor((num_rows,), "int64"),
        num_top: T.int32,
        chosen: T.Tensor((num_rows,), "float32"),
        top_token_ids: T.Tensor((num_rows, columns), "int64"),
        top: T.Tensor((num_rows, columns), "float32"),
    ):
        with T.Kernel(
            num_rows * blocks, threads=THREADS, cluster_dims=blocks if blocks > 1 else None
        ) as bx:
            T.import_source(row_source(blocks) + LOG_PROBS)
            bins = T.alloc_shared((shape.words,), "uint32")
            search = T.alloc_shared((SEARCH,), "int64", scope="shared")
            deepest = T.alloc_shared((1 + shape.rounds,), "int32", scope="shared")
            of_warps = T.alloc_shared((WARPS * 3,), "float64", scope="shared")
            of_blocks = T.alloc_shared((blocks * 3,), "float64", scope="shared")
            sums_of_warps = T.alloc_shared((2 * WARPS,), "int64", scope="shared")
            sums_of_blocks = T.alloc_shared((blocks,), "int64", scope="shared")
            ties_of_warps = T.alloc_shared((WARPS,), "uint32", scope="shared")
            ties_of_blocks = T.alloc_shared((blocks,), "uint32", scope="shared")
            size = T.alloc_shared((1,), "uint32", scope="shared")
            slots = T.alloc_shared((blocks * MOST_TOP * _SLOT_WORDS,), "uint32", scope="shared")
            law = T.alloc_shared((5,), "float64", scope="shared")
            state = T.alloc_local((3,), "float64")
            total = T.alloc_local((1,), "int64")
            ties = T.alloc_local((1,), "uint32")
            is_good = T.alloc_local((1,), "bool")
            tx = T.get_thread_binding()
            row = bx // blocks
            rank = bx % blocks
            run = T.ceildiv(vocab_size, 32 * WARPS * blocks) * 32
            first = (rank * WARPS + tx // 32) * run
            end = T.min(first + run, vocab_size)

            for i in T.serial(T.ceildiv(blocks * MOST_TOP * _SLOT_WORDS, THREADS)):
                if i * THREADS + tx < blocks * MOST_TOP * _SLOT_WORDS:
                    slots[i * THREADS + tx] = T.uint32(0xFFFFFFFF)
            if tx == 0:
                size[0] = T.uint32(0)
            clear(bins, deepest, search)
            measure(
                logits, mask, row, row * mask_step, first, end, rank, of_warps, of_blocks, state
            )
            is_good[0] = T.call_extern("bool", "di_is_good", T.access_ptr(state, "r"))
            T.call_extern(
                "handle",
                "di_set_plain_law",
                T.access_ptr(state, "r"),
                temperature[row * degree_step],
                T.address_of(law[0]),
            )
            T.sync_threads()
            total[0] = T.int64(0)
            if is_good[0]:
                search_cut(
                    logits, mask, row, row * mask_step, first, end, rank, law,
                    T.cast(num_top, "int64"), True, bins, deepest, search, sums_of_warps,
                    sums_of_blocks, total,
                )  # fmt: skip
                if num_top > 0:
                    ties[0] = T.uint32(0)
                    count_ties(
                        logits, mask, row, row * mask_step, first, end, rank, law, search,
                        ties_of_warps, ties_of_blocks, ties,
                    )  # fmt: skip
                    T.call_extern(
                        "handle",
                        "di_send_top",
                        T.address_of(logits[row, 0]),
                        T.address_of(mask[row * mask_step, 0]),
                        first,
                        end,
                        rank,
                        T.address_of(law[0]),
                        T.address_of(search[0]),
                        ties[0],
                        T.address_of(size[0]),
                        T.address_of(slots[0]),
                    )
            # Also keeps a block here while others read what it has added up.
            T.call_extern("handle", "di_meet")
            if rank == 0:
                if is_good[0] and num_top > 0:
                    T.call_extern(
                        "handle",
                        f"di_write_top<{blocks}>",
                        T.address_of(logits[row, 0]),
                        T.address_of(law[0]),
                        total[0],
                        num_top,
                        T.address_of(slots[0]),
                        T.address_of(top_token_ids[row, 0]),
                        T.address_of(top[row, 0]),
                    )
                else:
                    T.call_extern(
                        "handle",
                        "di_write_no_top",
                        num_top,
                        T.address_of(top_token_ids[row, 0]),
                        T.address_of(top[row, 0]),
                    )
                if tx == 0:
                    chosen[row] = T.call_extern(
                        "float32",
                        "di_log_prob_of",
                        T.address_of(logits[row, 0]),
                        T.address_of(mask[row * mask_step, 0]),
                        token_ids[row],
                        T.cast(vocab_size, "int64"),
                        is_good[0],
                        T.address_of(law[0]),
                        total[0],
                    )

    return kernel
