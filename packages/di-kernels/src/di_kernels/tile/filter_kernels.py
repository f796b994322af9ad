# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""The tokens that top-k, top-p and min-p leave of every row, as bits, without a sort.

Formulas and the order of tokens: `di_kernels.ops.token_filters`. A row is a cluster's of eight
blocks, or one block's. Its logits are read once from memory, then from the cache:

1. largest logits;
2. counts and masses of all tokens in 2,048 bins, added up in the cluster's shared memory, where the
   bin is found in which the kept tokens end; then of the tokens of that bin, by their keys, until
   one token or one value is left (`row_source`);
3. bits.

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| temperature, top_p, min_p | (rows,) or 1 | float64 |
| top_k | (rows,) or 1 | int64 |
| bits | (rows, words) | uint32 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80.
"""

import tilelang.language as T

from di_kernels.tile.filter_source import FILTER
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


def keep_tokens(shape: RowShape) -> object:
    """Bits of the kept tokens of every row."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    k_rows, p_rows, least_rows = T.dynamic("k_rows, p_rows, least_rows")
    blocks = shape.blocks
    clear, search_cut = clearing(shape), searching(shape)
    measure, count_ties = measuring(shape), counting_ties(shape)

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        mask_step: T.int32,
        temperature: T.Tensor((num_rows,), "float64"),
        top_k: T.Tensor((k_rows,), "int64"),
        k_step: T.int32,
        top_p: T.Tensor((p_rows,), "float64"),
        p_step: T.int32,
        min_p: T.Tensor((least_rows,), "float64"),
        least_step: T.int32,
        bits: T.Tensor((num_rows, words), "uint32"),
    ):
        with T.Kernel(
            num_rows * blocks, threads=THREADS, cluster_dims=blocks if blocks > 1 else None
        ) as bx:
            T.import_source(row_source(blocks) + FILTER)
            bins = T.alloc_shared((shape.words,), "uint32")
            search = T.alloc_shared((SEARCH,), "int64", scope="shared")
            deepest = T.alloc_shared((1 + shape.rounds,), "int32", scope="shared")
            of_warps = T.alloc_shared((WARPS * 3,), "float64", scope="shared")
            of_blocks = T.alloc_shared((blocks * 3,), "float64", scope="shared")
            sums_of_warps = T.alloc_shared((2 * WARPS,), "int64", scope="shared")
            sums_of_blocks = T.alloc_shared((blocks,), "int64", scope="shared")
            ties_of_warps = T.alloc_shared((WARPS,), "uint32", scope="shared")
            ties_of_blocks = T.alloc_shared((blocks,), "uint32", scope="shared")
            state = T.alloc_local((3,), "float64")
            law = T.alloc_shared((5,), "float64", scope="shared")
            mode = T.alloc_local((1,), "int32")
            total = T.alloc_local((1,), "int64")
            limit = T.alloc_local((1,), "int64")
            ties = T.alloc_local((1,), "uint32")
            tx = T.get_thread_binding()
            row = bx // blocks
            rank = bx % blocks
            run = T.ceildiv(vocab_size, 32 * WARPS * blocks) * 32
            first = (rank * WARPS + tx // 32) * run
            end = T.min(first + run, vocab_size)

            clear(bins, deepest, search)
            measure(
                logits, mask, row, row * mask_step, first, end, rank, of_warps, of_blocks, state
            )
            limit[0] = top_k[row * k_step]
            mode[0] = T.call_extern(
                "int32",
                "di_filter_mode",
                T.access_ptr(state, "r"),
                temperature[row],
                limit[0],
                top_p[row * p_step],
                min_p[row * least_step],
                T.cast(vocab_size, "int64"),
            )
            T.call_extern(
                "handle",
                "di_set_law",
                T.access_ptr(state, "r"),
                temperature[row],
                top_p[row * p_step],
                min_p[row * least_step],
                T.address_of(law[0]),
            )
            T.sync_threads()
            if limit[0] < 1:
                limit[0] = T.cast(vocab_size, "int64")
            ties[0] = T.uint32(0)
            if mode[0] == 2:
                search_cut(
                    logits, mask, row, row * mask_step, first, end, rank, law, limit[0], False,
                    bins, deepest, search, sums_of_warps, sums_of_blocks, total,
                )  # fmt: skip
                count_ties(
                    logits, mask, row, row * mask_step, first, end, rank, law, search,
                    ties_of_warps, ties_of_blocks, ties,
                )  # fmt: skip
            T.call_extern(
                "handle",
                "di_write_bits",
                T.address_of(logits[row, 0]),
                T.address_of(mask[row * mask_step, 0]),
                first,
                end,
                mode[0],
                T.address_of(law[0]),
                T.address_of(search[0]),
                ties[0],
                T.address_of(bits[row, 0]),
            )
            # No block leaves while others read what it has added up.
            T.call_extern("handle", "di_meet")

    return kernel
