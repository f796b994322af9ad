# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Steps of kernels on rows of logits: clean start, the row's part in shared memory, its ties."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

STEP = 128
"""Tokens of a warp's step, four a lane."""

ARRAYS, LISTED = 4, 1024
"""A level's counts and three parts of masses; tokens of a block's list."""

SEARCH, LAW = 7, 10
"""Numbers of a search (the first is its state, 0 while tokens are in question) and of a law."""


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
    def is_shared(self) -> bool:
        """Whether three blocks fit a multiprocessor, by registers and shared memory."""
        return self.dtype == "float32" and self.blocks > 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 256 if self.is_shared else 512

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // 32

    @property
    def blocks_per_sm(self) -> int:
        """Thread blocks that a multiprocessor is to hold at once."""
        return 3 if self.is_shared else 1

    @property
    def part(self) -> int:
        """Most tokens of a block: a row of one block is short, a cluster's has up to 2^17."""
        return 8192 if self.blocks == 1 else (1 << 17) // self.blocks

    @property
    def bins(self) -> int:
        """Bins of the first look at a row."""
        return 4 * self.threads

    @property
    def level_bits(self) -> int:
        """Bits of keys of a later look."""
        return 8

    @property
    def rounds(self) -> int:
        """Later looks at most."""
        return {"float32": 32, "float64": 64}[self.dtype] // self.level_bits

    @property
    def words(self) -> int:
        """Words of bins and of the sums of every look.

        A cluster's blocks may still read those of a look before.
        """
        looks = 1 + self.rounds if self.blocks > 1 else 1
        most = max(self.bins, ARRAYS << self.level_bits)
        return most + looks * (most // self.blocks)

    @property
    def marks(self) -> int:
        """Bracket, and the deepest bin of every level."""
        return 2 + self.rounds


def clearing(shape: RowShape) -> Callable[..., None]:
    """The macro that empties bins and search; the row's blocks are told, not waited for."""

    @T.macro
    def clear(bins, marks, size, search):
        tx = T.get_thread_binding()
        for i in T.serial(T.ceildiv(shape.words, shape.threads)):
            if i * shape.threads + tx < shape.words:
                bins[i * shape.threads + tx] = T.uint32(0)
        if tx < shape.marks:
            marks[tx] = T.if_then_else(tx == 0, shape.bins, -1)
        if tx < SEARCH:
            search[tx] = T.int64(0)
        if tx == 0:
            size[0] = T.uint32(0)
        T.call_extern("handle", "di_arrive")

    return clear


def keeping(shape: RowShape) -> Callable[..., None]:
    """The macro that copies the row's part and leaves what the row holds in `state`."""

    @T.macro
    def keep(
        logits, mask, row, has_mask, words, first, run, vocab_size, rank, part, of_warps, of_blocks,
        state,
    ):  # fmt: skip
        tx = T.get_thread_binding()
        extremes = T.alloc_local((3,), "int64")
        T.call_extern(
            "handle",
            "di_keep_run",
            T.address_of(logits[row, 0]),
            T.call_extern("handle", "di_mask_of", T.address_of(mask[0, 0]), row, has_mask, words),
            first,
            run,
            vocab_size,
            T.address_of(part[tx // 32 * run]),
            T.access_ptr(extremes, "w"),
        )
        T.call_extern(
            "handle",
            f"di_row_extremes<{shape.blocks}, {shape.c_type}>",
            rank,
            T.access_ptr(extremes, "r"),
            T.address_of(of_warps[0]),
            T.address_of(of_blocks[0]),
            T.access_ptr(state, "w"),
        )

    return keep


def searching(shape: RowShape, has_sum: bool) -> Callable[..., None]:
    """The macro that finds the cut of a row, and adds up its masses if asked."""
    arguments = f"{shape.blocks}, {shape.rounds}, {str(has_sum).lower()}"

    @T.macro
    def search_cut(
        part, run, rank, vocab_size, bins, marks, listed, size, search, law, of_warps,
        sums_of_blocks,
    ):  # fmt: skip
        T.call_extern(
            "handle",
            f"di_search<{arguments}>",
            T.address_of(part[0]),
            run,
            rank,
            vocab_size,
            T.address_of(bins[0]),
            T.address_of(marks[0]),
            T.address_of(listed[0]),
            T.address_of(size[0]),
            T.address_of(search[0]),
            T.address_of(law[0]),
            T.address_of(of_warps[0]),
            T.address_of(sums_of_blocks[0]),
        )
        T.call_extern(
            "handle",
            f"di_raise_cut<{shape.c_type}>",
            T.address_of(law[0]),
            T.address_of(search[0]),
        )

    return search_cut


def counting_ties(shape: RowShape) -> Callable[..., None]:
    """The macro that counts, of the tokens equal at the cut, those before the warp's own."""

    @T.macro
    def count_ties(part, run, rank, search, ties_of_warps, ties_of_blocks, ties):
        tx = T.get_thread_binding()
        ties[0] = T.uint32(0)
        if T.call_extern("bool", "di_is_partial", T.address_of(search[0])):
            ties[0] = T.call_extern(
                "uint32",
                f"di_ties_before<{shape.blocks}>",
                T.address_of(part[tx // 32 * run]),
                run,
                rank,
                T.address_of(search[0]),
                T.address_of(ties_of_warps[0]),
                T.address_of(ties_of_blocks[0]),
            )

    return count_ties
