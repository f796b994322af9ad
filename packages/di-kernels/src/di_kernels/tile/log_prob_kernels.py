# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""Log-probabilities of one token of every row, and of the most likely ones, without a sort.

Formulas: `di_kernels.ops.log_probs`. A row is a cluster's of eight blocks, or one block's: largest
logits, then the sum of masses, then, where they are wanted, the cut behind the most likely tokens
as the filters find theirs (`cut_source`). The row's first block gathers those and orders them.

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| temperature | (rows,) or 1 | float64 |
| chosen | (rows,) | float32 |
| top_token_ids, top | (rows, wanted tokens or 1) | int64, float32 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80, nor with float64 for
sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.cut_source import CUT
from di_kernels.tile.log_prob_source import LOG_PROBS
from di_kernels.tile.row_source import row_source
from di_kernels.tile.row_steps import (
    LAW,
    LISTED,
    SEARCH,
    STEP,
    RowShape,
    clearing,
    counting_ties,
    keeping,
    searching,
)


def log_probs(shape: RowShape) -> object:
    """Log-probability of a token of every row, and its most likely tokens."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    degree_rows, columns = T.dynamic("degree_rows, columns")
    blocks = shape.blocks
    clear, keep, count_ties = clearing(shape), keeping(shape), counting_ties(shape)
    search_cut = searching(shape, has_sum=True)

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        has_mask: T.int32,
        temperature: T.Tensor((degree_rows,), "float64"),
        has_degree: T.int32,
        token_ids: T.Tensor((num_rows,), "int64"),
        num_top: T.int32,
        chosen: T.Tensor((num_rows,), "float32"),
        top_token_ids: T.Tensor((num_rows, columns), "int64"),
        top: T.Tensor((num_rows, columns), "float32"),
    ):
        with T.Kernel(
            num_rows * blocks, threads=shape.threads, cluster_dims=blocks if blocks > 1 else None
        ) as bx:
            T.annotate_min_blocks_per_sm(shape.blocks_per_sm)
            T.import_source(row_source(shape) + CUT + LOG_PROBS)
            part = T.alloc_shared((shape.part,), shape.dtype)
            bins = T.alloc_shared((shape.words,), "uint32")
            listed = T.alloc_shared((LISTED,), "uint16")
            marks = T.alloc_shared((shape.marks,), "int32", scope="shared")
            size = T.alloc_shared((1,), "uint32", scope="shared")
            search = T.alloc_shared((SEARCH,), "int64", scope="shared")
            law = T.alloc_shared((LAW,), "float64", scope="shared")
            of_warps = T.alloc_shared((shape.warps * 3,), "float64", scope="shared")
            of_blocks = T.alloc_shared((blocks * 3,), "int64", scope="shared")
            sums_of_blocks = T.alloc_shared((blocks * 3,), "int64", scope="shared")
            ties_of_warps = T.alloc_shared((shape.warps,), "uint32", scope="shared")
            ties_of_blocks = T.alloc_shared((blocks,), "uint32", scope="shared")
            num_sent = T.alloc_shared((1,), "uint32", scope="shared")
            state = T.alloc_local((3,), "float64")
            total = T.alloc_local((1,), "int64")
            ties = T.alloc_local((1,), "uint32")
            is_good = T.alloc_local((1,), "bool")
            tx = T.get_thread_binding()
            row = bx // blocks
            rank = bx % blocks
            run = T.ceildiv(vocab_size, STEP * shape.warps * blocks) * STEP
            first = (rank * shape.warps + tx // 32) * run

            if tx == 0:
                num_sent[0] = T.uint32(0)
            clear(bins, marks, size, search)
            keep(
                logits, mask, row, has_mask, words, first, run, vocab_size, rank, part, of_warps,
                of_blocks, state,
            )  # fmt: skip
            is_good[0] = T.call_extern("bool", "di_is_good", T.access_ptr(state, "r"))
            T.call_extern(
                "handle",
                f"di_set_plain_law<{shape.c_type}>",
                T.access_ptr(state, "r"),
                T.call_extern(
                    "float64",
                    "di_number<double>",
                    T.address_of(temperature[0]),
                    row,
                    has_degree,
                    1.0,
                ),
                num_top,
                vocab_size,
                T.address_of(law[0]),
            )
            T.sync_threads()
            if is_good[0]:
                if num_top == 0:
                    T.call_extern(
                        "handle",
                        f"di_row_mass<{blocks}>",
                        T.address_of(part[0]),
                        run,
                        rank,
                        T.address_of(law[0]),
                        T.address_of(of_warps[0]),
                        T.address_of(sums_of_blocks[0]),
                    )
                else:
                    search_cut(
                        part, run, rank, vocab_size, bins, marks, listed, size, search, law,
                        of_warps, sums_of_blocks,
                    )  # fmt: skip
                    count_ties(part, run, rank, search, ties_of_warps, ties_of_blocks, ties)
                    T.call_extern(
                        "handle",
                        "di_send_top",
                        T.address_of(part[0]),
                        run,
                        rank,
                        T.address_of(listed[0]),
                        T.address_of(size[0]),
                        T.address_of(search[0]),
                        ties[0],
                        T.address_of(num_sent[0]),
                        T.address_of(bins[0]),
                    )
            # Also keeps a block here while others read what it has added up.
            T.call_extern("handle", "di_meet")
            if rank == 0:
                total[0] = T.call_extern(
                    "int64", f"di_sum_of<{blocks}>", T.address_of(sums_of_blocks[0]), 0
                )
                if is_good[0] and num_top > 0:
                    T.call_extern(
                        "handle",
                        f"di_write_top<{blocks}>",
                        T.address_of(logits[row, 0]),
                        T.address_of(law[0]),
                        total[0],
                        num_top,
                        T.address_of(bins[0]),
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
                        T.call_extern(
                            "handle", "di_mask_of", T.address_of(mask[0, 0]), row, has_mask, words
                        ),
                        token_ids[row],
                        T.cast(vocab_size, "int64"),
                        is_good[0],
                        T.address_of(law[0]),
                        total[0],
                    )

    return kernel
