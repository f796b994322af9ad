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

Records are copied whole into `staged`, a tile of 64 keys at once (`nvfp4`) or in two pieces of 32
keys (`mxfp8`). All threads take a piece into registers, so that the next one is copied while they
convert.

`tx` is the thread in the warp group. Neighbouring threads copy neighbouring units. Eight threads
beside each other read 8 different sixteenths of a line and write 8 swizzled places: `nvfp4` 4 keys
x 2 chunks of 16 bytes, `mxfp8` 8 keys x one.
"""

import tilelang.language as T

from di_kernels.tile.attention_shapes import RECORD_UNITS, TILE, load_slot

PLACES = 8
"""Tiles whose places are kept."""

STAGED_UNITS = TILE * RECORD_UNITS["nvfp4"]
"""Of 16 bytes; a piece of 32 `mxfp8` records is smaller."""

_PIECE = TILE // 2


@T.macro
def advance(ahead, tiles):
    """From a tile's number in its row and the row's number to those of the next tile."""
    ahead[0] += 1
    if ahead[0] == tiles:
        ahead[0] = 0
        ahead[1] += 1


@T.macro
def load_ahead(
    window_slots, selected_slots, window_width, selected_width, block, blocks, rows, ahead, key,
    slot,
):  # fmt: skip
    """Slot of a key of the tile that `ahead` tells, -1 behind the last row."""
    slot[0] = -1
    if ahead[1] < rows:
        load_slot(
            window_slots, selected_slots, window_width, selected_width, block + ahead[1] * blocks,
            ahead[0], key, slot,
        )  # fmt: skip


def following(tile, distance, tiles):
    """Number in its row of the tile at a distance of one or two."""
    beyond = T.min(tile + distance - tiles, tiles - 1)
    return T.if_then_else(tile + distance < tiles, tile + distance, beyond)


@T.macro
def wait_copies(barrier):
    """Waits for the copies of all threads of the group."""
    T.call_extern("handle", "di_wait_copies")
    T.call_extern("handle", "di_sync", barrier, 128)


@T.macro
def _copy_unit(units, staged, start, spot, unit, wanted):
    T.call_extern(
        "handle",
        "di_copy_unit",
        T.access_ptr(staged[spot + unit, 0], "w", 4),
        T.access_ptr(units[T.max(start, 0) + unit, 0], "r", 4),
        start,
        wanted,
    )


@T.macro
def _copy_nvfp4(units, staged, starts, begin, first, tx):
    """Starts the copies of 64 records, a warp two at a time, then all their scales."""
    record = RECORD_UNITS["nvfp4"]
    for step in T.unroll(8):
        begin[step] = starts[first + tx // 32 * 16 + step * 2 + tx % 32 // 16]
    begin[8] = starts[first + tx // 32 * 16 + tx % 32 // 2]
    for step in T.unroll(8):
        spot = (tx // 32 * 16 + step * 2 + tx % 32 // 16) * record
        _copy_unit(units, staged, begin[step], spot, tx % 16, True)
    _copy_unit(units, staged, begin[8], (tx // 32 * 16 + tx % 32 // 2) * record, 16 + tx % 2, True)


@T.macro
def _copy_mxfp8(units, staged, starts, begin, first, tx):
    """Starts the copies of 32 records, a warp one at a time, then all their scales."""
    record = RECORD_UNITS["mxfp8"]
    for step in T.unroll(8):
        begin[step] = starts[first + tx // 32 * 8 + step]
    begin[8] = starts[first + tx // 32 * 8 + tx % 8]
    for step in T.unroll(8):
        _copy_unit(units, staged, begin[step], (tx // 32 * 8 + step) * record, tx % 32, True)
    _copy_unit(units, staged, begin[8], (tx // 32 * 8 + tx % 8) * record, 32, tx % 32 < 8)


@T.macro
def take_nvfp4(staged, codes, scales, tx):
    """Takes every second chunk of a key into registers, and its scales."""
    key = tx // 32 * 16 + tx % 4 + tx % 32 // 8 * 4
    for u in T.unroll(8):
        for v in T.vectorized(4):
            codes[u * 4 + v] = staged[key * RECORD_UNITS["nvfp4"] + u * 2 + tx // 4 % 2, v]
    for u in T.unroll(2):
        for v in T.vectorized(4):
            scales[u * 4 + v] = staged[key * RECORD_UNITS["nvfp4"] + 16 + u, v]


@T.macro
def take_mxfp8(staged, codes, scales, tx):
    """Takes every fourth chunk of a key of a piece into registers, and its scales."""
    key = tx // 32 * 8 + tx % 8
    for u in T.unroll(8):
        for v in T.vectorized(4):
            codes[u * 4 + v] = staged[key * RECORD_UNITS["mxfp8"] + u * 4 + tx % 32 // 8, v]
    for v in T.vectorized(4):
        scales[v] = staged[key * RECORD_UNITS["mxfp8"] + 32, v]


@T.macro
def store_nvfp4(codes, scales, keys_s, values, buffer, half, tx):
    """Converts half of the channels of 64 keys into a key buffer."""
    for u in T.unroll(4):
        T.call_extern(
            "handle",
            "di_unpack_nvfp4_record",
            T.access_ptr(codes[half * 16 + u * 4], "r", 4),
            scales[half * 4 + u],
            tx // 4 % 2,
            T.access_ptr(values, "w"),
        )
        for part in T.unroll(4):
            for v in T.vectorized(8):
                keys_s[
                    buffer,
                    tx // 32 * 16 + tx % 4 + tx % 32 // 8 * 4,
                    (half * 8 + u * 2 + tx // 4 % 2) * 32 + part * 8 + v,
                ] = values[part * 8 + v]


@T.macro
def store_mxfp8(codes, scales, keys_s, values, buffer, piece, half, tx):
    """Converts half of the channels of 32 keys into a key buffer."""
    for u in T.unroll(4):
        T.call_extern(
            "handle",
            "di_unpack_mxfp8_record",
            T.access_ptr(codes[half * 16 + u * 4], "r", 4),
            scales[half * 2 + u // 2],
            u % 2 * 2 + tx % 32 // 16,
            T.access_ptr(values, "w"),
        )
        for part in T.unroll(2):
            for v in T.vectorized(8):
                keys_s[
                    buffer,
                    piece * _PIECE + tx // 32 * 8 + tx % 8,
                    (half * 16 + u * 4 + tx % 32 // 8) * 16 + part * 8 + v,
                ] = values[part * 8 + v]


def tile_macros(selected_format):
    """Copies of a tile's first piece, of its last piece; places of the keys of a tile."""

    @T.macro
    def copy_first(window, selected, staged, starts, begin, number, is_window, tx):
        first = (number & (PLACES - 1)) * TILE
        if is_window:
            _copy_mxfp8(window, staged, starts, begin, first, tx)
        elif selected_format == "mxfp8":
            _copy_mxfp8(selected, staged, starts, begin, first, tx)
        else:
            _copy_nvfp4(selected, staged, starts, begin, first, tx)

    @T.macro
    def copy_last(window, selected, staged, starts, begin, number, is_window, tx):
        first = (number & (PLACES - 1)) * TILE + _PIECE
        if is_window or selected_format != "mxfp8":
            _copy_mxfp8(window, staged, starts, begin, first, tx)
        else:
            _copy_mxfp8(selected, staged, starts, begin, first, tx)

    @T.macro
    def keep_place(
        window_entries, window_stride, window_offset, selected_entries, selected_stride,
        selected_offset, is_window, starts, masks, number, slot, key,
    ):  # fmt: skip
        """Keeps the place of a key's slot, and which keys of its tile have one.

        `number`: of the tile among all.
        """
        entries = T.if_then_else(is_window, window_entries, selected_entries)
        stride = T.if_then_else(is_window, window_stride, selected_stride)
        offset = T.if_then_else(is_window, window_offset, selected_offset)
        record = T.if_then_else(is_window, RECORD_UNITS["mxfp8"], RECORD_UNITS[selected_format])
        starts[(number & (PLACES - 1)) * TILE + key] = T.call_extern(
            "int32", "di_start_of", slot, entries, stride, offset, record
        )
        T.call_extern(
            "handle", "di_put_votes",
            T.access_ptr(masks[(number & (PLACES - 1)) * 2 + key // 32], "w", 1), slot >= 0,
        )  # fmt: skip

    return copy_first, copy_last, keep_place
