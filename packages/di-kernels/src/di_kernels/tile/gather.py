# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the macros below as its own language.)
"""Gathers of packed records into bfloat16 key tiles in shared memory, by a warp group.

| record | units of 16 bytes | contents |
|---|---|---|
| `mxfp8` (528 bytes) | 0 .. 31, 32 | 512 e4m3 codes, 16 UE8M0 scales |
| `nvfp4` (288 bytes) | 0 .. 15, 16 .. 17 | 512 e2m1 codes, 32 e4m3 scales |

A pool is seen as units of 16 bytes; slot n starts at unit n // entries * block_stride +
section_offset + n % entries * record.

A tile of 64 keys comes in pieces of 8 KB of codes, the left 256 channels before the right ones, so
that either half of a key buffer is filled as soon as it is free: 2 pieces of 64 keys (`nvfp4`) or
4 of 32 keys (`mxfp8`). Two pieces are copied while the two before are converted. A thread converts
what it copied itself, so it waits for no other; and it takes both pieces into registers at once,
because the fence behind converted keys waits for its copies, which must be old by then.

`tx` is the thread in the warp group. A warp takes 8 keys x 4 chunks of 16 bytes: its stores hit 8
swizzled places.
"""

import tilelang.language as T

from di_kernels.tile.attention_shapes import RECORD_UNITS, TILE, place_of


@T.macro
def copy_nvfp4(units, starts, raw, raw_scales, slot, tile, piece, tx):
    """Starts the copies of a piece: 64 keys, 8 chunks of 32 channels."""
    for key in T.unroll(2):
        start = starts[tile * TILE + tx // 32 * 16 + key * 8 + tx % 8]
        for u in T.unroll(2):
            T.call_extern(
                "handle",
                "di_copy_unit",
                T.access_ptr(raw[slot, key * 2 + u, tx, 0], "w", 4),
                T.access_ptr(units[T.max(start, 0) + piece * 8 + u * 4 + tx % 32 // 8, 0], "r", 4),
                start >= 0,
            )
            T.call_extern(
                "handle",
                "di_copy_word",
                T.access_ptr(raw_scales[slot, key * 2 + u, tx], "w", 1),
                T.access_ptr(units[T.max(start, 0) + 16 + piece, u * 2 + tx % 32 // 16], "r", 1),
                start >= 0,
            )


@T.macro
def copy_mxfp8(units, starts, raw, raw_scales, slot, tile, piece, tx):
    """Starts the copies of a piece: 32 keys, 16 chunks of 16 channels."""
    start = starts[tile * TILE + piece % 2 * 32 + tx // 32 * 8 + tx % 8]
    for u in T.unroll(4):
        T.call_extern(
            "handle",
            "di_copy_unit",
            T.access_ptr(raw[slot, u, tx, 0], "w", 4),
            T.access_ptr(
                units[T.max(start, 0) + piece // 2 * 16 + u * 4 + tx % 32 // 8, 0], "r", 4
            ),
            start >= 0,
        )
    for u in T.unroll(2):
        T.call_extern(
            "handle",
            "di_copy_word",
            T.access_ptr(raw_scales[slot, u, tx], "w", 1),
            T.access_ptr(units[T.max(start, 0) + 32, piece // 2 * 2 + u], "r", 1),
            start >= 0,
        )


@T.macro
def take_pieces(raw, raw_scales, codes, scales, tx):
    """Waits for this thread's copies and takes them into registers."""
    T.call_extern("handle", "di_wait_copies")
    for slot in T.unroll(2):
        for u in T.unroll(4):
            for v in T.vectorized(4):
                codes[slot * 16 + u * 4 + v] = raw[slot, u, tx, v]
            scales[slot * 4 + u] = raw_scales[slot, u, tx]


@T.macro
def store_nvfp4(codes, scales, keys_s, values, buffer, piece, tx):
    """Converts a piece into a key buffer."""
    for u in T.unroll(4):
        T.call_extern(
            "handle",
            "di_unpack_nvfp4_record",
            T.access_ptr(codes[piece % 2 * 16 + u * 4], "r", 4),
            scales[piece % 2 * 4 + u],
            tx // 8 % 2,
            T.access_ptr(values, "w"),
        )
        for part in T.unroll(4):
            for v in T.vectorized(8):
                keys_s[
                    buffer,
                    tx // 32 * 16 + u // 2 * 8 + tx % 8,
                    (piece * 8 + u % 2 * 4 + tx % 32 // 8) * 32 + part * 8 + v,
                ] = values[part * 8 + v]


@T.macro
def store_mxfp8(codes, scales, keys_s, values, buffer, piece, tx):
    """Converts a piece into a key buffer."""
    for u in T.unroll(4):
        T.call_extern(
            "handle",
            "di_unpack_mxfp8_record",
            T.access_ptr(codes[piece % 2 * 16 + u * 4], "r", 4),
            scales[piece % 2 * 4 + u // 2],
            u % 2 * 2 + tx % 32 // 16,
            T.access_ptr(values, "w"),
        )
        for part in T.unroll(2):
            for v in T.vectorized(8):
                keys_s[
                    buffer,
                    piece % 2 * 32 + tx // 32 * 8 + tx % 8,
                    (piece // 2 * 16 + u * 4 + tx % 32 // 8) * 16 + part * 8 + v,
                ] = values[part * 8 + v]


def tile_macros(selected_format):
    """Copies of the first two pieces of a tile, of whichever pool, and of the last two; places."""

    @T.macro
    def copy_first(window, selected, starts, raw, raw_scales, place, tile, window_tiles, tx):
        for piece in T.unroll(2):
            if tile < window_tiles:
                copy_mxfp8(window, starts, raw, raw_scales, piece, place, piece, tx)
            elif selected_format == "mxfp8":
                copy_mxfp8(selected, starts, raw, raw_scales, piece, place, piece, tx)
            else:
                copy_nvfp4(selected, starts, raw, raw_scales, piece, place, piece, tx)

    @T.macro
    def copy_last(window, selected, starts, raw, raw_scales, place, tile, window_tiles, tx):
        for piece in T.unroll(2):
            if tile < window_tiles:
                copy_mxfp8(window, starts, raw, raw_scales, piece, place, piece + 2, tx)
            else:
                copy_mxfp8(selected, starts, raw, raw_scales, piece, place, piece + 2, tx)

    @T.macro
    def keep_place(
        window_entries, window_stride, window_offset, selected_entries, selected_stride,
        selected_offset, window_tiles, tiles, starts, ring, ahead, slot, place, tx,
    ):  # fmt: skip
        """Keeps the place of the slot that was loaded.

        `ahead`: tile and number of the row that the loaded slot belongs to; the next ones then.
        """
        if tx < TILE:
            place[0] = -1
            if slot[0] >= 0:
                if ahead[0] < window_tiles:
                    place[0] = place_of(
                        slot[0], window_entries, window_stride, window_offset,
                        RECORD_UNITS["mxfp8"],
                    )  # fmt: skip
                else:
                    place[0] = place_of(
                        slot[0], selected_entries, selected_stride, selected_offset,
                        RECORD_UNITS[selected_format],
                    )  # fmt: skip
            starts[ring * TILE + tx] = place[0]
        ahead[0] += 1
        if ahead[0] == tiles:
            ahead[0] = 0
            ahead[1] += 1

    return copy_first, copy_last, keep_place
