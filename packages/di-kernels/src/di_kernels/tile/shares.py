# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the macros below as its own language.)
"""Shares of a fixed grid of thread blocks that work through tiles and end together.

Whole turns of tiles go round the blocks. What is left, one to two tiles per block, is cut into as
many ranges of steps as there are blocks: a range holds the end of a tile, perhaps a whole one, and
the beginning of another. A block does its beginning first and leaves the sums in memory; the block
after it, which has the end of that tile, takes them up at the end of its work. So a tile's steps
run in their order on the same sums as they would in one block, and nobody waits long.

| buffer | shape | dtype |
|---|---|---|
| partial | (thread blocks x sums of each,) | float32 |
| ready | (thread blocks x multiplying warps,), zeros before and after | int32 |
"""

import tilelang.language as T

from di_kernels.tile.gemm_tile import BLOCK, RolesTile

LEAST_STEPS = 3
"""Steps a block must win, or tiles stay whole: sums to memory and back take about two."""


def hand_over(tile: RolesTile):
    """Macros that leave a block's sums in memory, and that take up those of the block before."""
    threads, per_tile = tile.threads, BLOCK * tile.tokens // 128
    of_tile = per_tile * threads

    @T.macro
    def take_out(total, sums):
        for i, j in T.Parallel(BLOCK * tile.warp_groups, tile.tokens):
            T.call_extern(
                "handle", "di_put", T.access_ptr(sums, "w"),
                (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2, total[i, j],
            )  # fmt: skip

    @T.macro
    def put_back(sums, total):
        for i, j in T.Parallel(BLOCK * tile.warp_groups, tile.tokens):
            total[i, j] = T.call_extern(
                "float32", "di_at", T.access_ptr(sums, "r"),
                (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2,
            )  # fmt: skip

    @T.macro
    def save_tile(total, row, sums, partial, block):
        if total is not None:
            take_out(total, sums)
        T.call_extern(
            "handle", f"di_save_sums<{per_tile}>",
            T.access_ptr(partial[(block * tile.row_tiles + row) * of_tile], "w", of_tile),
            T.access_ptr(sums, "r"), threads,
        )  # fmt: skip

    @T.macro
    def load_tile(total, row, sums, partial, block):
        T.call_extern(
            "handle", f"di_load_sums<{per_tile}>",
            T.access_ptr(partial[(block * tile.row_tiles + row) * of_tile], "r", of_tile),
            T.access_ptr(sums, "w"), threads,
        )  # fmt: skip
        if total is not None:
            put_back(sums, total)

    @T.macro
    def flag(name, ready, block):
        place = block * (threads // 32) + T.get_thread_binding() // 32
        T.call_extern("handle", name, T.access_ptr(ready[place], "rw", 1))

    def save(totals, sums, partial, ready, block):
        for row, total in enumerate(totals):
            save_tile(total, row, sums, partial, block)
        flag("di_raise", ready, block)

    def load(totals, sums, partial, ready, block):
        flag("di_await", ready, block - 1)
        for row, total in enumerate(totals):
            load_tile(total, row, sums, partial, block - 1)

    return take_out, save, load
