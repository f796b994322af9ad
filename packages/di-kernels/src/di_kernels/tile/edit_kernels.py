# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""Bias, penalties and mask of every row in one pass that writes float64 logits.

Formulas: `di_kernels.ops.logit_edits`. A thread block has a part of a row: it copies it, then
looks through the row's entries for those of its part, so that no two blocks write a token.

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| *_offsets | (rows + 1,), or (1,) where there are no entries | int64 |
| *_token_ids | (entries or 1,) | int64 |
| *_values | (entries or 1,) | float64 |
| repetition, frequency, presence | (rows or 1,) | float64 |
| edited | (rows, vocabulary) | float64 |

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.edit_source import EDITS

THREADS = 256


def edit_logits(dtype: str) -> object:
    """Edited logits; `has_bias` and `has_penalties` say whether there are entries."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    bias_offsets_size, bias_size, count_offsets_size, count_size, penalty_rows = T.dynamic(
        "bias_offsets_size, bias_size, count_offsets_size, count_size, penalty_rows"
    )

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        has_mask: T.int32,
        bias_offsets: T.Tensor((bias_offsets_size,), "int64"),
        bias_token_ids: T.Tensor((bias_size,), "int64"),
        bias_values: T.Tensor((bias_size,), "float64"),
        has_bias: T.int32,
        count_offsets: T.Tensor((count_offsets_size,), "int64"),
        count_token_ids: T.Tensor((count_size,), "int64"),
        count_values: T.Tensor((count_size,), "float64"),
        repetition: T.Tensor((penalty_rows,), "float64"),
        frequency: T.Tensor((penalty_rows,), "float64"),
        presence: T.Tensor((penalty_rows,), "float64"),
        has_penalties: T.int32,
        part_size: T.int32,
        edited: T.Tensor((num_rows, vocab_size), "float64"),
    ):
        with T.Kernel(T.ceildiv(vocab_size, part_size), num_rows, threads=THREADS) as (part, row):
            T.import_source(EDITS)
            first = part * part_size
            end = T.min(first + part_size, vocab_size)
            T.call_extern(
                "handle",
                "di_copy_allowed",
                T.address_of(logits[row, 0]),
                T.call_extern(
                    "handle", "di_mask_of", T.address_of(mask[0, 0]), row, has_mask, words
                ),
                first,
                end,
                T.address_of(edited[row, 0]),
            )
            T.call_extern("handle", "__syncthreads")
            if has_bias != 0:
                T.call_extern(
                    "handle",
                    "di_add_bias",
                    T.address_of(bias_token_ids[0]),
                    T.address_of(bias_values[0]),
                    bias_offsets[row],
                    bias_offsets[row + 1],
                    first,
                    end,
                    T.address_of(edited[row, 0]),
                )
                T.call_extern("handle", "__syncthreads")
            if has_penalties != 0:
                T.call_extern(
                    "handle",
                    "di_penalise",
                    T.address_of(count_token_ids[0]),
                    T.address_of(count_values[0]),
                    count_offsets[row],
                    count_offsets[row + 1],
                    first,
                    end,
                    repetition[row],
                    frequency[row],
                    presence[row],
                    T.address_of(edited[row, 0]),
                )

    return kernel
