# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Sparse attention of few rows, second kernel: results of 64 channels of a row per thread block.

Every block takes its channels of all records of its row and multiplies them with the exponentials
that `attention_scores` gave. Records are converted a second time, but beside the scores: the launch
overlaps, and the exponentials are waited for after that. Tiles are added in a fixed order, even
ones by one warp group and odd ones by the other, so equal calls give equal bits.
"""

import tilelang.language as T

from di_kernels.tile.attend import MOST_TILES
from di_kernels.tile.attention_shapes import (
    DIM,
    HEADS,
    KEY_SCALE,
    LOG2_E,
    ROTARY,
    TILE,
    finite_sink,
    from_key_order,
    keep_start,
    load_angles,
    rotate,
)
from di_kernels.tile.cuda_source import COMMON, RECORDS, ROTATION

SLICE = 64
"""Channels of a thread block."""

_SLICES = DIM // SLICE
_THREADS = 256
_GROUP = 128


def attention_values(selected_format: str) -> object:
    """Results of one row and 64 channels per thread block, from the exponentials of all keys."""
    num_rows, window_columns, selected_columns = T.dynamic(
        "num_rows, window_columns, selected_columns"
    )
    window_units, selected_units = T.dynamic("window_units, selected_units")
    num_tiles, table_rows = T.dynamic("num_tiles, table_rows")
    group_tiles = MOST_TILES // 2
    slot_steps = -(-MOST_TILES * TILE // _THREADS)

    @T.macro
    def load_nvfp4(units, starts, tile, codes, scales, index, part, tx):
        """A chunk of 32 channels."""
        start = starts[tile * TILE + tx % _GROUP // 32 * 16 + tx % 16]
        if start >= 0:
            for v in T.vectorized(4):
                codes[index * 8 + v] = units[start + part * 2 + tx % 32 // 16, v]
            scales[index * 2] = units[start + 16 + part // 4, part % 4]

    @T.macro
    def load_mxfp8(units, starts, tile, codes, scales, index, part, tx):
        """A chunk of 16 channels of two keys."""
        for u in T.unroll(2):
            start = starts[tile * TILE + u * 32 + tx % _GROUP // 32 * 8 + tx % 8]
            if start >= 0:
                for v in T.vectorized(4):
                    codes[index * 8 + u * 4 + v] = units[start + part * 4 + tx % 32 // 8, v]
                scales[index * 2 + u] = units[start + 32, part // 2]

    @T.macro
    def store_nvfp4(codes, scales, keys_s, values, index, tile, tx):
        T.call_extern(
            "handle", "di_unpack_nvfp4_record", T.access_ptr(codes[index * 8], "r", 4),
            scales[index * 2], tx % 32 // 16, T.access_ptr(values, "w"),
        )  # fmt: skip
        for part in T.unroll(4):
            for v in T.vectorized(8):
                keys_s[
                    tile,
                    tx % _GROUP // 32 * 16 + tx % 16,
                    tx % 32 // 16 * 32 + part * 8 + v,
                ] = values[part * 8 + v]

    @T.macro
    def store_mxfp8(codes, scales, keys_s, values, index, tile, part, tx):
        for u in T.unroll(2):
            T.call_extern(
                "handle", "di_unpack_mxfp8_record", T.access_ptr(codes[index * 8 + u * 4], "r", 4),
                scales[index * 2 + u], part % 2 * 2 + tx % 32 // 16, T.access_ptr(values, "w"),
            )  # fmt: skip
            for eighth in T.unroll(2):
                for v in T.vectorized(8):
                    keys_s[
                        tile,
                        u * 32 + tx % _GROUP // 32 * 8 + tx % 8,
                        tx % 32 // 8 * 16 + eighth * 8 + v,
                    ] = values[eighth * 8 + v]

    @T.prim_func
    def kernel(
        window: T.Tensor((window_units, 4), "uint32"),
        selected: T.Tensor((selected_units, 4), "uint32"),
        window_slots: T.Tensor((num_rows, window_columns), "int32"),
        selected_slots: T.Tensor((num_rows, selected_columns), "int32"),
        sink: T.Tensor((HEADS,), "float32"),
        cosines: T.Tensor((table_rows, ROTARY), "float32"),
        sines: T.Tensor((table_rows, ROTARY), "float32"),
        rotates: T.int32,
        window_width: T.int32,
        selected_width: T.int32,
        window_entries: T.int32,
        window_stride: T.int32,
        window_offset: T.int32,
        selected_entries: T.int32,
        selected_stride: T.int32,
        selected_offset: T.int32,
        powers: T.Tensor((num_rows, num_tiles, HEADS, TILE), "bfloat16"),
        peaks: T.Tensor((num_rows, num_tiles, HEADS), "float32"),
        totals: T.Tensor((num_rows, num_tiles, HEADS), "float32"),
        out: T.Tensor((num_rows, HEADS, DIM), "bfloat16"),
    ):
        with T.Kernel(_SLICES, num_rows, threads=_THREADS) as (part, row):
            T.import_source(COMMON + RECORDS + ROTATION)
            powers_s = T.alloc_shared((MOST_TILES, HEADS, TILE), "bfloat16")
            keys_s = T.alloc_shared((MOST_TILES, TILE, SLICE), "bfloat16")
            sums_s = T.alloc_shared((2, HEADS, SLICE), "float32", scope="shared")
            starts = T.alloc_shared((slot_steps * _THREADS,), "int32", scope="shared")
            weights = T.alloc_shared((MOST_TILES, HEADS), "float32", scope="shared")
            product = T.alloc_fragment((HEADS, SLICE), "float32")
            result = T.alloc_fragment((HEADS, SLICE), "float32")
            # Of their own: the threads of a fragment are those that use it first.
            odd_product = T.alloc_fragment((HEADS, SLICE), "float32")
            odd_result = T.alloc_fragment((HEADS, SLICE), "float32")
            codes = T.alloc_local((group_tiles * 8,), "uint32")
            scales = T.alloc_local((group_tiles * 2,), "uint32")
            slots = T.alloc_local((slot_steps,), "int32")
            values = T.alloc_local((32,), "bfloat16")
            loaded = T.alloc_local((MOST_TILES * 2 * 8,), "bfloat16")
            tile_peaks = T.alloc_local((MOST_TILES,), "float32")
            tile_totals = T.alloc_local((MOST_TILES,), "float32")
            state = T.alloc_local((2,), "float32")
            head_sink = T.alloc_local((1,), "float32")
            rounded = T.alloc_local((8,), "bfloat16")
            ordered = T.alloc_local((8,), "bfloat16")
            cosine = T.alloc_local((8,), "float32")
            sine = T.alloc_local((8,), "float32")
            tx = T.get_thread_binding()
            group = tx // _GROUP
            window_tiles = T.ceildiv(window_width, TILE)

            # Before the wait for the scores: all that does not depend on them.
            for step in T.unroll(slot_steps):
                slots[step] = -1
                key = step * _THREADS + tx
                if key < window_tiles * TILE:
                    if key < window_width:
                        slots[step] = window_slots[row, key]
                else:
                    if key - window_tiles * TILE < selected_width:
                        slots[step] = selected_slots[row, key - window_tiles * TILE]
            for step in T.unroll(slot_steps):
                keep_start(
                    slots[step], step * _THREADS + tx < window_tiles * TILE, window_entries,
                    window_stride, window_offset, selected_entries, selected_stride,
                    selected_offset, selected_format, starts, step * _THREADS + tx,
                )  # fmt: skip
            T.sync_threads()
            for index in T.unroll(group_tiles):
                for u in T.unroll(2):
                    scales[index * 2 + u] = T.uint32(0)
                    for v in T.vectorized(4):
                        codes[index * 8 + u * 4 + v] = T.uint32(0)
                if index * 2 + group < window_tiles:
                    load_mxfp8(window, starts, index * 2 + group, codes, scales, index, part, tx)
                elif index * 2 + group < num_tiles:
                    if selected_format == "mxfp8":
                        load_mxfp8(
                            selected, starts, index * 2 + group, codes, scales, index, part, tx
                        )
                    else:
                        load_nvfp4(
                            selected, starts, index * 2 + group, codes, scales, index, part, tx
                        )
            head_sink[0] = sink[tx % HEADS]
            if rotates != 0 and part == _SLICES - 1:
                load_angles(cosines, sines, row, tx % 8 * 8, cosine, sine)
            for index in T.unroll(group_tiles):
                if index * 2 + group < num_tiles:
                    if index * 2 + group < window_tiles or selected_format == "mxfp8":
                        store_mxfp8(
                            codes, scales, keys_s, values, index, index * 2 + group, part, tx
                        )
                    else:
                        store_nvfp4(codes, scales, keys_s, values, index, index * 2 + group, tx)

            T.pdl_sync()
            for step in T.unroll(MOST_TILES * 2):
                if step // 2 < num_tiles:
                    for v in T.vectorized(8):
                        loaded[step * 8 + v] = powers[
                            row, step // 2, step % 2 * 32 + tx // 8, tx % 8 * 8 + v
                        ]
            if tx < HEADS:
                for tile in T.unroll(MOST_TILES):
                    tile_totals[tile] = 0
                    tile_peaks[tile] = 0
                    if tile < num_tiles:
                        tile_totals[tile] = totals[row, tile, tx]
                        tile_peaks[tile] = peaks[row, tile, tx]
                state[0] = -T.float32(3e38)
                for tile in T.unroll(MOST_TILES):
                    if tile_totals[tile] > 0:
                        state[0] = T.max(state[0], tile_peaks[tile])
                state[1] = 0
                for tile in T.unroll(MOST_TILES):
                    if tile_totals[tile] > 0:
                        tile_peaks[tile] = T.exp2(tile_peaks[tile] - state[0])
                        state[1] += tile_peaks[tile] * tile_totals[tile]
                    else:
                        tile_peaks[tile] = 0
                if state[1] > 0:
                    state[1] = T.float32(KEY_SCALE) / (
                        state[1] + T.exp2(finite_sink(head_sink[0]) * T.float32(LOG2_E) - state[0])
                    )
                for tile in T.unroll(MOST_TILES):
                    weights[tile, tx] = tile_peaks[tile] * state[1]
            for step in T.unroll(MOST_TILES * 2):
                if step // 2 < num_tiles:
                    for v in T.vectorized(8):
                        powers_s[step // 2, step % 2 * 32 + tx // 8, tx % 8 * 8 + v] = loaded[
                            step * 8 + v
                        ]
            T.fence_proxy_async()
            T.sync_threads()
            if tx < _GROUP:
                T.fill(result, 0)
                for index in T.serial(T.ceildiv(num_tiles, 2)):
                    T.gemm(
                        powers_s[index * 2, :, :],
                        keys_s[index * 2, :, :],
                        product,
                        clear_accum=True,
                    )
                    for h, c in T.Parallel(HEADS, SLICE):
                        result[h, c] += weights[index * 2, h] * product[h, c]
                for h, c in T.Parallel(HEADS, SLICE):
                    sums_s[0, h, c] = result[h, c]
            else:
                T.fill(odd_result, 0)
                for index in T.serial(num_tiles // 2):
                    T.gemm(
                        powers_s[index * 2 + 1, :, :],
                        keys_s[index * 2 + 1, :, :],
                        odd_product,
                        clear_accum=True,
                    )
                    for h, c in T.Parallel(HEADS, SLICE):
                        odd_result[h, c] += weights[index * 2 + 1, h] * odd_product[h, c]
                for h, c in T.Parallel(HEADS, SLICE):
                    sums_s[1, h, c] = odd_result[h, c]
            T.sync_threads()
            for step in T.unroll(2):
                for v in T.unroll(8):
                    rounded[v] = T.cast(
                        sums_s[0, step * 32 + tx // 8, tx % 8 * 8 + v]
                        + sums_s[1, step * 32 + tx // 8, tx % 8 * 8 + v],
                        "bfloat16",
                    )
                from_key_order(rounded, ordered)
                if rotates != 0 and part == _SLICES - 1:
                    rotate(ordered, 0, cosine, sine, -1)
                for v in T.vectorized(8):
                    out[row, step * 32 + tx // 8, part * SLICE + tx % 8 * 8 + v] = ordered[v]

    return kernel
