# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the macros below as its own language.)
"""What the attention kernels share: sizes, the sink, angles, places of records."""

import tilelang.language as T

HEADS, DIM, ROTARY = 64, 512, 64
TILE = 64
"""Keys of a tile."""

RECORD_UNITS = {"mxfp8": 33, "nvfp4": 18}
"""Units of 16 bytes of a record."""

LOG2_E = 1.4426950408889634
KEY_SCALE = 65536.0
"""Keys are kept in shared memory divided by this."""

_LARGE = 1e30


def finite_sink(value):
    """An infinite sink takes all mass or none; so does a large finite one, without a NaN."""
    return T.max(T.min(value, T.float32(_LARGE)), T.float32(-_LARGE))


@T.macro
def load_angles(cosines, sines, row, channel, cosine, sine):
    """Cosines and sines of eight channels of a row."""
    for u in T.unroll(2):
        for v in T.vectorized(4):
            cosine[u * 4 + v] = cosines[row, channel + u * 4 + v]
        for v in T.vectorized(4):
            sine[u * 4 + v] = sines[row, channel + u * 4 + v]


@T.macro
def rotate(values, step, cosine, sine, direction):
    """Turns eight neighbouring channels in place, forth (1) or back (-1)."""
    T.call_extern(
        "handle",
        "di_rotate",
        T.access_ptr(values[step * 8], "rw", 8),
        T.access_ptr(cosine, "r"),
        T.access_ptr(sine, "r"),
        T.float32(direction),
    )


@T.macro
def to_key_order(values, step, reordered):
    """Eight channels in the order that converted records have."""
    T.call_extern(
        "handle",
        "di_interleave_halves",
        T.access_ptr(values[step * 8], "r", 8),
        T.access_ptr(reordered, "w"),
    )


@T.macro
def from_key_order(values, reordered):
    """The way back."""
    T.call_extern(
        "handle", "di_separate_halves", T.access_ptr(values, "r"), T.access_ptr(reordered, "w")
    )


@T.macro
def load_slot(window_slots, selected_slots, window_width, selected_width, row, tile, key, slot):
    """Slot of a key of a tile, left as it is behind the last one; window tiles come first."""
    window_tiles = T.ceildiv(window_width, TILE)
    if tile < window_tiles:
        if tile * TILE + key < window_width:
            slot[0] = window_slots[row, tile * TILE + key]
    else:
        if (tile - window_tiles) * TILE + key < selected_width:
            slot[0] = selected_slots[row, (tile - window_tiles) * TILE + key]


@T.macro
def keep_start(
    slot, is_window, window_entries, window_stride, window_offset, selected_entries,
    selected_stride, selected_offset, selected_format, starts, index,
):  # fmt: skip
    """Keeps the unit where the record of a slot starts, -1 for none."""
    if is_window:
        starts[index] = _start_of(
            slot, window_entries, window_stride, window_offset, RECORD_UNITS["mxfp8"]
        )
    else:
        starts[index] = _start_of(
            slot, selected_entries, selected_stride, selected_offset, RECORD_UNITS[selected_format]
        )


def _start_of(slot, entries, stride, offset, record):
    start = slot // entries * stride + offset + slot % entries * record
    return T.if_then_else(slot >= 0, start, -1)


def has_slot(mask, key):
    """Whether a key of a tile has a slot, by the two words of the tile's mask."""
    word = T.if_then_else(key < 32, mask[0], mask[1])
    return (word >> T.cast(key % 32, "uint32")) & T.uint32(1) != T.uint32(0)


def divide_down(value, divisor):
    """Quotient of numbers that are not negative, which TileLang cannot know of its arguments."""
    return T.call_extern("int32", "di_divide", value, divisor)
