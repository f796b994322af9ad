# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Steps of kernels on rows of logits: clean start, largest logits, the cut of a row, its ties."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

THREADS = 512
WARPS = THREADS // 32
BINS = 2048
ARRAYS = 4
"""Counts, and three parts of masses."""

SEARCH = 8
"""Numbers of a search; the first is its state, 0 while tokens are in question."""


@dataclass(frozen=True)
class RowShape:
    """One kernel of the family.

    Args:
        dtype: Of the logits: float32 or float64.
        blocks: Thread blocks of a row: 1, or a cluster of 8.
    """

    dtype: str
    blocks: int

    @property
    def c_type(self) -> str:
        """Name of the dtype in CUDA."""
        return {"float32": "float", "float64": "double"}[self.dtype]

    @property
    def rounds(self) -> int:
        """Levels that follow the first: eleven bits of the keys each."""
        return {"float32": 3, "float64": 6}[self.dtype]

    @property
    def levels(self) -> int:
        """Sums of bins kept apart: a cluster's blocks may still read those of a level before."""
        return 1 + self.rounds if self.blocks > 1 else 1

    @property
    def level_words(self) -> int:
        """Words of a block's part of a level's sums."""
        return ARRAYS * BINS // self.blocks

    @property
    def words(self) -> int:
        """Words of bins and sums together."""
        return ARRAYS * BINS + self.levels * self.level_words


def clearing(shape: RowShape) -> Callable[..., None]:
    """The macro that empties bins and search and waits for the row's blocks."""

    @T.macro
    def clear(bins, deepest, search):
        tx = T.get_thread_binding()
        for i in T.unroll(shape.words // THREADS):
            bins[i * THREADS + tx] = T.uint32(0)
        if tx <= shape.rounds:
            deepest[tx] = -1
        if tx < SEARCH:
            search[tx] = T.int64(0)
        T.call_extern("handle", "di_meet")

    return clear


def measuring(shape: RowShape) -> Callable[..., None]:
    """The macro that leaves a row's largest logits and what it holds in `state`."""

    @T.macro
    def measure(logits, mask, row, mask_row, first, end, rank, of_warps, of_blocks, state):
        T.call_extern(
            "handle",
            f"di_row_extremes<{shape.blocks}>",
            T.address_of(logits[row, 0]),
            T.address_of(mask[mask_row, 0]),
            first,
            end,
            rank,
            T.address_of(of_warps[0]),
            T.address_of(of_blocks[0]),
            T.access_ptr(state, "w"),
        )

    return measure


def counting_ties(shape: RowShape) -> Callable[..., None]:
    """The macro that counts, of the tokens equal at the cut, those before the warp's own."""

    @T.macro
    def count_ties(
        logits, mask, row, mask_row, first, end, rank, law, search, ties_of_warps, ties_of_blocks,
        ties,
    ):  # fmt: skip
        if T.call_extern("bool", "di_is_partial", T.address_of(search[0])):
            ties[0] = T.call_extern(
                "uint32",
                f"di_ties_before<{shape.blocks}>",
                T.address_of(logits[row, 0]),
                T.address_of(mask[mask_row, 0]),
                first,
                end,
                rank,
                T.address_of(law[0]),
                T.address_of(search[0]),
                T.address_of(ties_of_warps[0]),
                T.address_of(ties_of_blocks[0]),
            )

    return count_ties


def searching(shape: RowShape) -> Callable[..., None]:
    """The macro that finds the cut of a row, its tokens counted level by level."""
    blocks, c_type = shape.blocks, shape.c_type

    @T.macro
    def search_cut(
        logits, mask, row, mask_row, first, end, rank, law, top_k, has_sum, bins, deepest, search,
        sums_of_warps, sums_of_blocks, total,
    ):  # fmt: skip
        """`total` becomes the sum of masses where `has_sum` or top-p asks for it."""
        total[0] = T.call_extern(
            "int64",
            "di_count_tokens<true>",
            T.address_of(logits[row, 0]),
            T.address_of(mask[mask_row, 0]),
            first,
            end,
            T.address_of(law[0]),
            T.address_of(search[0]),
            top_k > 0,
            has_sum,
            T.address_of(bins[0]),
        )
        T.call_extern(
            "handle",
            f"di_start_sum<{blocks}>",
            total[0],
            rank,
            T.address_of(sums_of_warps[0]),
            T.address_of(sums_of_blocks[0]),
        )
        T.call_extern(
            "handle",
            f"di_add_bins<{blocks}>",
            T.address_of(bins[0]),
            T.address_of(bins[ARRAYS * BINS]),
        )
        total[0] = T.call_extern("int64", f"di_end_sum<{blocks}>", T.address_of(sums_of_blocks[0]))
        if top_k > 0:
            T.call_extern(
                "handle",
                f"di_find_cut<{blocks}, true, {c_type}>",
                T.address_of(bins[ARRAYS * BINS]),
                T.address_of(sums_of_warps[0]),
                T.address_of(deepest[0]),
                T.address_of(law[0]),
                top_k,
                total[0],
                T.address_of(search[0]),
            )
            for level in T.serial(1, 1 + shape.rounds):
                if T.call_extern("bool", "di_is_open", T.address_of(search[0])):
                    T.call_extern(
                        "int64",
                        "di_count_tokens<false>",
                        T.address_of(logits[row, 0]),
                        T.address_of(mask[mask_row, 0]),
                        first,
                        end,
                        T.address_of(law[0]),
                        T.address_of(search[0]),
                        True,
                        False,
                        T.address_of(bins[0]),
                    )
                    T.call_extern(
                        "handle",
                        f"di_add_bins<{blocks}>",
                        T.address_of(bins[0]),
                        T.address_of(
                            bins[ARRAYS * BINS + level % shape.levels * shape.level_words]
                        ),
                    )
                    T.call_extern(
                        "handle",
                        f"di_find_cut<{blocks}, false, {c_type}>",
                        T.address_of(
                            bins[ARRAYS * BINS + level % shape.levels * shape.level_words]
                        ),
                        T.address_of(sums_of_warps[0]),
                        T.address_of(deepest[level]),
                        T.address_of(law[0]),
                        top_k,
                        total[0],
                        T.address_of(search[0]),
                    )

    return search_cut
