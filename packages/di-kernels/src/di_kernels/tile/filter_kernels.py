# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""The tokens that top-k, top-p and min-p leave of every row, as bits, without a sort.

Formulas and the order of tokens: `di_kernels.ops.token_filters`. A row is a cluster's of eight
blocks, or one block's. Its logits are read once from memory, then from shared memory
(`row_source`):

1. largest logits;
2. where top-k or top-p ask for it, the cut (`cut_source`);
3. bits.

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| temperature, top_p, min_p | (rows,) or 1 | float64 |
| top_k | (rows,) or 1 | int64 |
| bits | (rows, words) | uint32 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80, nor with float64 for
sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.cut_source import CUT
from di_kernels.tile.filter_source import FILTER
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


def keep_tokens(shape: RowShape) -> object:
    """Bits of the kept tokens of every row."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    k_rows, p_rows, least_rows = T.dynamic("k_rows, p_rows, least_rows")
    blocks = shape.blocks
    clear, keep, count_ties = clearing(shape), keeping(shape), counting_ties(shape)
    search_cut = searching(shape, has_sum=False)

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        has_mask: T.int32,
        temperature: T.Tensor((num_rows,), "float64"),
        top_k: T.Tensor((k_rows,), "int64"),
        has_k: T.int32,
        top_p: T.Tensor((p_rows,), "float64"),
        has_p: T.int32,
        min_p: T.Tensor((least_rows,), "float64"),
        has_least: T.int32,
        bits: T.Tensor((num_rows, words), "uint32"),
    ):
        with T.Kernel(
            num_rows * blocks, threads=shape.threads, cluster_dims=blocks if blocks > 1 else None
        ) as bx:
            T.annotate_min_blocks_per_sm(shape.blocks_per_sm)
            T.import_source(row_source(shape) + CUT + FILTER)
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
            state = T.alloc_local((3,), "float64")
            is_filtered = T.alloc_local((1,), "bool")
            limit = T.alloc_local((1,), "int32")
            ties = T.alloc_local((1,), "uint32")
            tx = T.get_thread_binding()
            row = bx // blocks
            rank = bx % blocks
            run = T.ceildiv(vocab_size, STEP * shape.warps * blocks) * STEP
            first = (rank * shape.warps + tx // 32) * run

            clear(bins, marks, size, search)
            keep(
                logits, mask, row, has_mask, words, first, run, vocab_size, rank, part, of_warps,
                of_blocks, state,
            )  # fmt: skip
            limit[0] = T.call_extern(
                "int32", "di_limit", T.address_of(top_k[0]), row, has_k, vocab_size
            )
            is_filtered[0] = T.call_extern(
                "bool",
                "di_is_filtered",
                T.access_ptr(state, "r"),
                temperature[row],
                limit[0],
                T.call_extern(
                    "float64", "di_number<double>", T.address_of(top_p[0]), row, has_p, 1.0
                ),
                T.call_extern(
                    "float64", "di_number<double>", T.address_of(min_p[0]), row, has_least, 0.0
                ),
                vocab_size,
            )
            if not is_filtered[0]:
                T.call_extern(
                    "handle",
                    "di_write_mask",
                    T.call_extern(
                        "handle", "di_mask_of", T.address_of(mask[0, 0]), row, has_mask, words
                    ),
                    rank * shape.warps * run // 32,
                    (rank + 1) * shape.warps * run // 32,
                    words,
                    vocab_size,
                    T.address_of(bits[row, 0]),
                )
            else:
                T.call_extern(
                    "handle",
                    f"di_set_law<{shape.c_type}>",
                    T.access_ptr(state, "r"),
                    temperature[row],
                    limit[0],
                    T.call_extern(
                        "float64", "di_number<double>", T.address_of(top_p[0]), row, has_p, 1.0
                    ),
                    T.call_extern(
                        "float64", "di_number<double>", T.address_of(min_p[0]), row, has_least, 0.0
                    ),
                    vocab_size,
                    T.address_of(law[0]),
                )
                T.sync_threads()
                search_cut(
                    part, run, rank, vocab_size, bins, marks, listed, size, search, law, of_warps,
                    sums_of_blocks,
                )  # fmt: skip
                count_ties(part, run, rank, search, ties_of_warps, ties_of_blocks, ties)
                T.call_extern(
                    "handle",
                    "di_write_bits",
                    T.address_of(part[tx // 32 * run]),
                    run,
                    first,
                    words,
                    T.address_of(search[0]),
                    ties[0],
                    T.address_of(bits[row, 0]),
                )
            # No block leaves while others read what it has added up.
            T.call_extern("handle", "di_meet")

    return kernel
