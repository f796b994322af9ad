# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Sparse attention of few rows, first kernel: exponentials of the scores, 64 keys per thread block.

Sums over parts of the keys would be 128 KB a part, to be written and added up again. The
exponentials of 64 keys are 8 KB; `attention_values` multiplies all of them with its own channels.
Exponentials are relative to the largest score of their tile.
"""

import tilelang.language as T

from di_kernels.tile.attention_shapes import (
    DIM,
    HEADS,
    KEY_SCALE,
    LOG2_E,
    ROTARY,
    TILE,
    keep_start,
    load_angles,
    load_slot,
    rotate,
    to_key_order,
)
from di_kernels.tile.cuda_source import COMMON, RECORDS, ROTATION

_THREADS = 256
_GROUP = 128


def attention_scores(selected_format: str) -> object:
    """Exponentials of the scores of one row and 64 keys per thread block, their peaks and sums."""
    num_rows, window_columns, selected_columns = T.dynamic(
        "num_rows, window_columns, selected_columns"
    )
    window_units, selected_units = T.dynamic("window_units, selected_units")
    num_tiles, table_rows = T.dynamic("num_tiles, table_rows")
    passed = DIM - ROTARY

    @T.macro
    def load_nvfp4(units, start, codes, scales, tx):
        """Half of the chunks of two keys; the group of threads says which."""
        for u in T.unroll(4):
            if start[u // 2] >= 0:
                for v in T.vectorized(4):
                    codes[u * 4 + v] = units[
                        start[u // 2] + tx // _GROUP * 8 + u % 2 * 4 + tx % 32 // 8, v
                    ]
                scales[u] = units[start[u // 2] + 16 + tx // _GROUP, u % 2 * 2 + tx % 32 // 16]

    @T.macro
    def load_mxfp8(units, start, codes, scales, tx):
        for u in T.unroll(8):
            if start[u // 4] >= 0:
                for v in T.vectorized(4):
                    codes[u * 4 + v] = units[
                        start[u // 4] + tx // _GROUP * 16 + u % 4 * 4 + tx % 32 // 8, v
                    ]
                scales[u] = units[start[u // 4] + 32, tx // _GROUP * 2 + u % 4 // 2]

    @T.macro
    def store_nvfp4(codes, scales, keys_s, values, tx):
        for u in T.unroll(4):
            T.call_extern(
                "handle", "di_unpack_nvfp4_record", T.access_ptr(codes[u * 4], "r", 4), scales[u],
                tx // 8 % 2, T.access_ptr(values, "w"),
            )  # fmt: skip
            for part in T.unroll(4):
                for v in T.vectorized(8):
                    keys_s[
                        tx % _GROUP // 32 * 8 + u // 2 * 32 + tx % 8,
                        (tx // _GROUP * 8 + u % 2 * 4 + tx % 32 // 8) * 32 + part * 8 + v,
                    ] = values[part * 8 + v]

    @T.macro
    def store_mxfp8(codes, scales, keys_s, values, tx):
        for u in T.unroll(8):
            T.call_extern(
                "handle", "di_unpack_mxfp8_record", T.access_ptr(codes[u * 4], "r", 4), scales[u],
                u % 2 * 2 + tx % 32 // 16, T.access_ptr(values, "w"),
            )  # fmt: skip
            for part in T.unroll(2):
                for v in T.vectorized(8):
                    keys_s[
                        tx % _GROUP // 32 * 8 + u // 4 * 32 + tx % 8,
                        (tx // _GROUP * 16 + u % 4 * 4 + tx % 32 // 8) * 16 + part * 8 + v,
                    ] = values[part * 8 + v]

    @T.prim_func
    def kernel(
        q: T.Tensor((num_rows, HEADS, DIM), "bfloat16"),
        window: T.Tensor((window_units, 4), "uint32"),
        selected: T.Tensor((selected_units, 4), "uint32"),
        window_slots: T.Tensor((num_rows, window_columns), "int32"),
        selected_slots: T.Tensor((num_rows, selected_columns), "int32"),
        cosines: T.Tensor((table_rows, ROTARY), "float32"),
        sines: T.Tensor((table_rows, ROTARY), "float32"),
        rotates: T.int32,
        scale: T.float32,
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
    ):
        with T.Kernel(num_tiles, num_rows, threads=_THREADS) as (tile, row):
            T.import_source(COMMON + RECORDS + ROTATION)
            q_s = T.alloc_shared((HEADS, DIM), "bfloat16")
            keys_s = T.alloc_shared((TILE, DIM), "bfloat16")
            starts = T.alloc_shared((TILE,), "int32", scope="shared")
            scores = T.alloc_fragment((HEADS, TILE), "float32")
            peak = T.alloc_fragment((HEADS,), "float32")
            total = T.alloc_fragment((HEADS,), "float32")
            codes = T.alloc_local((32,), "uint32")
            scales = T.alloc_local((8,), "uint32")
            start = T.alloc_local((2,), "int32")
            values = T.alloc_local((32,), "bfloat16")
            reordered = T.alloc_local((8,), "bfloat16")
            q_values = T.alloc_local((16 * 8,), "bfloat16")
            q_turned = T.alloc_local((2 * 8,), "bfloat16")
            cosine = T.alloc_local((8,), "float32")
            sine = T.alloc_local((8,), "float32")
            slot = T.alloc_local((1,), "int32")
            tx = T.get_thread_binding()
            is_window = tile < T.ceildiv(window_width, TILE)
            factor = scale * T.float32(LOG2_E * KEY_SCALE)
            # In this order: `attention_values` reads inputs without waiting for this kernel.
            T.pdl_sync()
            T.pdl_trigger()

            slot[0] = -1
            if tx < TILE:
                load_slot(
                    window_slots, selected_slots, window_width, selected_width, row, tile, tx, slot
                )
            if tx % 64 < passed // 8:
                for step in T.unroll(16):
                    for v in T.vectorized(8):
                        q_values[step * 8 + v] = q[row, step * 4 + tx // 64, tx % 64 * 8 + v]
            # Every thread turns two eighths of the last channels of a head.
            for step in T.unroll(2):
                for v in T.vectorized(8):
                    q_turned[step * 8 + v] = q[row, step * 32 + tx // 8, passed + tx % 8 * 8 + v]
            if rotates != 0:
                load_angles(cosines, sines, row, tx % 8 * 8, cosine, sine)
            if tx < TILE:
                keep_start(
                    slot[0], is_window, window_entries, window_stride, window_offset,
                    selected_entries, selected_stride, selected_offset, selected_format, starts, tx,
                )  # fmt: skip
            T.sync_threads()
            for u in T.unroll(8):
                scales[u] = T.uint32(0)
                for v in T.vectorized(4):
                    codes[u * 4 + v] = T.uint32(0)
            for u in T.unroll(2):
                start[u] = starts[tx % _GROUP // 32 * 8 + u * 32 + tx % 8]
            if is_window:
                load_mxfp8(window, start, codes, scales, tx)
            elif selected_format == "mxfp8":
                load_mxfp8(selected, start, codes, scales, tx)
            else:
                load_nvfp4(selected, start, codes, scales, tx)
            if rotates != 0:
                for step in T.unroll(2):
                    rotate(q_turned, step, cosine, sine, 1)
            if tx % 64 < passed // 8:
                for step in T.unroll(16):
                    to_key_order(q_values, step, reordered)
                    for v in T.vectorized(8):
                        q_s[step * 4 + tx // 64, tx % 64 * 8 + v] = reordered[v]
            for step in T.unroll(2):
                to_key_order(q_turned, step, reordered)
                for v in T.vectorized(8):
                    q_s[step * 32 + tx // 8, passed + tx % 8 * 8 + v] = reordered[v]
            if is_window or selected_format == "mxfp8":
                store_mxfp8(codes, scales, keys_s, values, tx)
            else:
                store_nvfp4(codes, scales, keys_s, values, tx)
            T.fence_proxy_async()
            T.sync_threads()
            if tx < _GROUP:
                for h, b in T.Parallel(HEADS, TILE):
                    scores[h, b] = T.if_then_else(starts[b] >= 0, 0, -T.infinity("float32"))
                T.gemm(q_s, keys_s, scores, transpose_B=True)
                T.fill(peak, -(2.0**30))
                T.reduce_max(scores, peak, dim=1, clear=False)
                for h, b in T.Parallel(HEADS, TILE):
                    scores[h, b] = T.exp2(scores[h, b] * factor - peak[h] * factor)
                T.reduce_sum(scores, total, dim=1)
                for h, b in T.Parallel(HEADS, TILE):
                    powers[row, tile, h, b] = scores[h, b]
                for h in T.Parallel(HEADS):
                    peaks[row, tile, h] = peak[h] * factor
                for h in T.Parallel(HEADS):
                    totals[row, tile, h] = total[h]

    return kernel
