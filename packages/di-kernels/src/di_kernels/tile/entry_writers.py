# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Cache entries from rows: pool, norm, rotation, quantisation and the record, in one kernel.

One warp makes one entry of up to 512 channels, a lane 16 of them; all loads that need no other
start together. Slots outside the pool store nothing. A pool is seen as blocks of units of a lane's
codes and as blocks of bytes; 64-bit slots are read as pairs of 32-bit words (`slot_step` 2).

Rounding follows the ops that these kernels join: the pooled row, the normalised row and the rotated
row are rounded to bfloat16. Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.lane_source import LANES, ROWS
from di_kernels.tile.quantizers import CODE_WORDS, LANES_PER_SCALE

ROWS_PER_BLOCK = 4
_WARP = 32
_WORDS_PER_LINE = 32


@T.macro
def _load_row(x, start, is_read, values, halves):
    """A lane's 16 channels of a bfloat16 row, zeros where there are none."""
    for v in T.unroll(16):
        values[v] = 0
    if is_read:
        for half in T.unroll(2):
            for v in T.vectorized(8):
                halves[half * 8 + v] = x[start + half, v]
        for v in T.unroll(16):
            values[v] = T.cast(halves[v], "float32")


@T.macro
def _load_four(table, start, out):
    """16 float32 values from units of four."""
    for part in T.unroll(4):
        for v in T.vectorized(4):
            out[part * 4 + v] = table[start + part, v]


@T.macro
def _load_member(table, start, lanes, lane, i, members, gates):
    """A lane's values and gates of the i-th of two pooled rows, from units of four."""
    for part in T.unroll(4):
        for v in T.vectorized(4):
            members[i * 16 + part * 4 + v] = table[start + lane * 4 + part, v]
        for v in T.vectorized(4):
            gates[i * 16 + part * 4 + v] = table[start + (lanes + lane) * 4 + part, v]


@T.macro
def _normalise(values, weights, size, eps, total):
    """RMSNorm of the warp's row, rounded to bfloat16."""
    total[0] = T.call_extern("float32", "di_squares", T.access_ptr(values, "r", 8))
    total[0] += T.call_extern("float32", "di_squares", T.access_ptr(values[8], "r", 8))
    total[0] = T.call_extern("float32", "di_sum_over_warp", total[0])
    total[0] = T.call_extern("float32", "di_inverse_rms", total[0], size, eps)
    for v in T.unroll(16):
        values[v] = values[v] * total[0]
        values[v] = T.call_extern("float32", "di_as_bfloat16", values[v] * weights[v])


@T.macro
def _rotate(values, cosines, sines):
    T.call_extern(
        "handle",
        "di_rotate",
        T.access_ptr(values, "rw"),
        T.access_ptr(cosines, "r"),
        T.access_ptr(sines, "r"),
    )
    for v in T.unroll(16):
        values[v] = T.call_extern("float32", "di_as_bfloat16", values[v])


@T.macro
def _store_latent(latent, row, lane, values, halves):
    for v in T.unroll(16):
        halves[v] = T.cast(values[v], "bfloat16")
    for half in T.unroll(2):
        for v in T.vectorized(8):
            latent[row, lane, half * 8 + v] = halves[half * 8 + v]


def _store_record(quantizer: str):
    """Macro that quantises the warp's row and stores it; every lane takes part in the quantiser."""
    words, per_scale = CODE_WORDS[quantizer], LANES_PER_SCALE[quantizer]

    @T.macro
    def store(values, packed, scale, codes, scales, slot, place, places, lane):
        scale[0] = T.call_extern(
            "uint32",
            f"di_encode_{quantizer}",
            T.access_ptr(values, "r"),
            T.access_ptr(packed, "w"),
        )
        if slot[0] >= 0 and slot[0] < codes.shape[0] * places[0]:
            # Kept in 32 bits: as index expressions these divisions would run in 64.
            place[0] = T.truncdiv(slot[0], places[0])
            place[1] = places[1] + T.truncmod(slot[0], places[0]) * places[2] + lane
            place[2] = places[3] + T.truncmod(slot[0], places[0]) * places[4] + lane // per_scale
            for v in T.vectorized(words):
                codes[place[0], place[1], v] = packed[v]
            if lane % per_scale == 0:
                scales[place[0], place[2]] = T.cast(scale[0], "uint8")

    return store


def write_records(quantizer: str) -> object:
    """Quantised rows, stored."""
    num_units, num_slots = T.dynamic("num_units, num_slots")
    num_blocks, block_units, block_bytes = T.dynamic("num_blocks, block_units, block_bytes")
    words = CODE_WORDS[quantizer]
    store = _store_record(quantizer)

    @T.prim_func
    def kernel(
        x: T.Tensor((num_units, 8), "bfloat16"),
        row_units: T.int32,
        num_rows: T.int32,
        lanes: T.int32,
        slots: T.Tensor((num_slots,), "int32"),
        slot_step: T.int32,
        entries: T.int32,
        code_start: T.int32,
        code_step: T.int32,
        scale_start: T.int32,
        scale_step: T.int32,
        codes: T.Tensor((num_blocks, block_units, words), "uint32"),
        scales: T.Tensor((num_blocks, block_bytes), "uint8"),
    ):
        with T.Kernel(T.ceildiv(num_rows, ROWS_PER_BLOCK), threads=ROWS_PER_BLOCK * _WARP) as block:
            T.import_source(LANES + ROWS)
            tx = T.get_thread_binding()
            values = T.alloc_local((16,), "float32")
            halves = T.alloc_local((16,), "bfloat16")
            packed = T.alloc_local((words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            slot = T.alloc_local((1,), "int32")
            place = T.alloc_local((3,), "int32")
            row = block * ROWS_PER_BLOCK + tx // _WARP
            lane = tx % _WARP
            is_read = T.And(row < num_rows, lane < lanes)
            slot[0] = -1
            if is_read:
                slot[0] = slots[row * slot_step]
            _load_row(x, row * row_units + lane * 2, is_read, values, halves)
            store(
                values, packed, scale, codes, scales, slot, place,
                (entries, code_start, code_step, scale_start, scale_step), lane,
            )  # fmt: skip

    return kernel


def norm_rope_write(quantizer: str) -> object:
    """Normalised rows, kept, and their rotations, quantised and stored."""
    num_rows, num_units, num_slots = T.dynamic("num_rows, num_units, num_slots")
    num_blocks, block_units, block_bytes = T.dynamic("num_blocks, block_units, block_bytes")
    weight_units, table_units, lanes = T.dynamic("weight_units, table_units, lanes")
    words = CODE_WORDS[quantizer]
    store = _store_record(quantizer)

    @T.prim_func
    def kernel(
        x: T.Tensor((num_units, 8), "bfloat16"),
        row_units: T.int32,
        weight: T.Tensor((weight_units, 4), "float32"),
        eps: T.float32,
        cosine: T.Tensor((table_units, 4), "float32"),
        sine: T.Tensor((table_units, 4), "float32"),
        rotary_units: T.int32,
        slots: T.Tensor((num_slots,), "int32"),
        slot_step: T.int32,
        entries: T.int32,
        code_start: T.int32,
        code_step: T.int32,
        scale_start: T.int32,
        scale_step: T.int32,
        codes: T.Tensor((num_blocks, block_units, words), "uint32"),
        scales: T.Tensor((num_blocks, block_bytes), "uint8"),
        latent: T.Tensor((num_rows, lanes, 16), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(num_rows, ROWS_PER_BLOCK), threads=ROWS_PER_BLOCK * _WARP) as block:
            T.import_source(LANES + ROWS)
            tx = T.get_thread_binding()
            values = T.alloc_local((16,), "float32")
            halves = T.alloc_local((16,), "bfloat16")
            weights = T.alloc_local((16,), "float32")
            cosines = T.alloc_local((16,), "float32")
            sines = T.alloc_local((16,), "float32")
            total = T.alloc_local((1,), "float32")
            packed = T.alloc_local((words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            slot = T.alloc_local((1,), "int32")
            place = T.alloc_local((3,), "int32")
            turned = T.alloc_local((1,), "int32")
            row = block * ROWS_PER_BLOCK + tx // _WARP
            lane = tx % _WARP
            is_read = T.And(row < num_rows, lane < lanes)
            slot[0] = -1
            turned[0] = -1
            if is_read:
                slot[0] = slots[row * slot_step]
                turned[0] = (lane - lanes) * 4 + rotary_units
                _load_four(weight, lane * 4, weights)
            if turned[0] >= 0:
                _load_four(cosine, row * rotary_units + turned[0], cosines)
                _load_four(sine, row * rotary_units + turned[0], sines)
            _load_row(x, row * row_units + lane * 2, is_read, values, halves)
            _normalise(values, weights, lanes * 16, eps, total)
            if is_read:
                _store_latent(latent, row, lane, values, halves)
            if turned[0] >= 0:
                _rotate(values, cosines, sines)
            store(
                values, packed, scale, codes, scales, slot, place,
                (entries, code_start, code_step, scale_start, scale_step), lane,
            )  # fmt: skip

    return kernel


def compress_entries(quantizer: str) -> object:
    """Pairs of rows pooled by their gates; the rest as `norm_rope_write`.

    Row m of a group is entry `history_slots[m]` of the state while m is below their number, and row
    m less that number of `rows` from there on; both hold values, then gates.
    """
    num_groups, num_units, num_slots = T.dynamic("num_groups, num_units, num_slots")
    num_blocks, block_units, block_bytes = T.dynamic("num_blocks, block_units, block_bytes")
    weight_units, table_units, lanes = T.dynamic("weight_units, table_units, lanes")
    group_words, history_words, state_units = T.dynamic("group_words, history_words, state_units")
    words = CODE_WORDS[quantizer]
    store = _store_record(quantizer)

    @T.prim_func
    def kernel(
        rows: T.Tensor((num_units, 4), "float32"),
        row_units: T.int32,
        num_rows: T.int32,
        groups: T.Tensor((group_words,), "int32"),
        group_step: T.int32,
        state: T.Tensor((state_units, 4), "float32"),
        state_entries: T.int32,
        state_stride: T.int32,
        state_start: T.int32,
        num_states: T.int32,
        history: T.Tensor((history_words,), "int32"),
        history_step: T.int32,
        num_history: T.int32,
        weight: T.Tensor((weight_units, 4), "float32"),
        eps: T.float32,
        cosine: T.Tensor((table_units, 4), "float32"),
        sine: T.Tensor((table_units, 4), "float32"),
        rotary_units: T.int32,
        slots: T.Tensor((num_slots,), "int32"),
        slot_step: T.int32,
        entries: T.int32,
        code_start: T.int32,
        code_step: T.int32,
        scale_start: T.int32,
        scale_step: T.int32,
        codes: T.Tensor((num_blocks, block_units, words), "uint32"),
        scales: T.Tensor((num_blocks, block_bytes), "uint8"),
        latent: T.Tensor((num_groups, lanes, 16), "bfloat16"),
    ):
        with T.Kernel(
            T.ceildiv(num_groups, ROWS_PER_BLOCK), threads=ROWS_PER_BLOCK * _WARP
        ) as block:
            T.import_source(LANES + ROWS)
            tx = T.get_thread_binding()
            members = T.alloc_local((2 * 16,), "float32")
            gates = T.alloc_local((2 * 16,), "float32")
            values = T.alloc_local((16,), "float32")
            halves = T.alloc_local((16,), "bfloat16")
            weights = T.alloc_local((16,), "float32")
            cosines = T.alloc_local((16,), "float32")
            sines = T.alloc_local((16,), "float32")
            total = T.alloc_local((1,), "float32")
            packed = T.alloc_local((words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            slot = T.alloc_local((1,), "int32")
            place = T.alloc_local((3,), "int32")
            turned = T.alloc_local((1,), "int32")
            member = T.alloc_local((2,), "int32")
            row = block * ROWS_PER_BLOCK + tx // _WARP
            lane = tx % _WARP
            is_read = T.And(row < num_groups, lane < lanes)
            slot[0] = -1
            turned[0] = -1
            if is_read:
                slot[0] = slots[row * slot_step]
                turned[0] = (lane - lanes) * 4 + rotary_units
                _load_four(weight, lane * 4, weights)
                for i in T.unroll(2):
                    member[i] = groups[(row * 2 + i) * group_step]
                # Which of them is known only behind the groups; the first warp asks for all.
                if row == 0 and lane * _WORDS_PER_LINE < num_history * history_step:
                    T.call_extern(
                        "handle", "di_prefetch", T.address_of(history[lane * _WORDS_PER_LINE])
                    )
            if turned[0] >= 0:
                _load_four(cosine, row * rotary_units + turned[0], cosines)
                _load_four(sine, row * rotary_units + turned[0], sines)
            for v in T.unroll(32):
                members[v] = 0
                gates[v] = 0
            # Where the row lies in the state, if it does; other rows need not wait for that.
            for i in T.unroll(2):
                place[i] = -1
                if is_read and member[i] >= 0 and member[i] < num_history:
                    place[i] = history[member[i] * history_step]
            for i in T.unroll(2):
                if is_read and member[i] >= num_history and member[i] - num_history < num_rows:
                    _load_member(
                        rows, (member[i] - num_history) * row_units, lanes, lane, i, members, gates
                    )  # fmt: skip
            for i in T.unroll(2):
                if place[i] >= 0 and place[i] < num_states:
                    place[i] = (
                        T.truncdiv(place[i], state_entries) * state_stride
                        + state_start
                        + T.truncmod(place[i], state_entries) * lanes * 8
                    )
                    _load_member(state, place[i], lanes, lane, i, members, gates)
            T.call_extern(
                "handle",
                "di_pool",
                T.access_ptr(members, "r"),
                T.access_ptr(gates, "r"),
                T.access_ptr(values, "w"),
            )
            _normalise(values, weights, lanes * 16, eps, total)
            if is_read:
                _store_latent(latent, row, lane, values, halves)
            if turned[0] >= 0:
                _rotate(values, cosines, sines)
            store(
                values, packed, scale, codes, scales, slot, place,
                (entries, code_start, code_step, scale_start, scale_step), lane,
            )  # fmt: skip

    return kernel


def copy_records() -> object:
    """Rows stored as they are; everything in units of 16 bytes."""
    num_units, num_slots, pool_units = T.dynamic("num_units, num_slots, pool_units")

    @T.prim_func
    def kernel(
        x: T.Tensor((num_units, 4), "uint32"),
        row_units: T.int32,
        num_rows: T.int32,
        width: T.int32,
        slots: T.Tensor((num_slots,), "int32"),
        slot_step: T.int32,
        entries: T.int32,
        stride: T.int32,
        start: T.int32,
        num_places: T.int32,
        pool: T.Tensor((pool_units, 4), "uint32"),
    ):
        with T.Kernel(num_rows, T.ceildiv(width, 128), threads=128) as (row, block):
            tx = T.get_thread_binding()
            slot = T.alloc_local((2,), "int32")
            unit = block * 128 + tx
            slot[0] = slots[row * slot_step]
            if slot[0] >= 0 and slot[0] < num_places and unit < width:
                slot[1] = T.truncmod(slot[0], entries) * width + start + unit
                slot[0] = T.truncdiv(slot[0], entries)
                for v in T.vectorized(4):
                    pool[slot[0] * stride + slot[1], v] = x[row * row_units + unit, v]

    return kernel
