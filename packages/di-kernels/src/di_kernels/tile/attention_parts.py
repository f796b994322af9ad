# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Sparse attention of few rows: sums over parts of a row's keys, which `merge_parts` adds up.

One thread block works on one row and one part of its keys, in tiles of 64. Warp group 0 multiplies
queries and keys, takes the softmax and the left half of the value product, warp group 1 the right
half, warp group 2 gathers records and turns them into two bfloat16 key tiles in shared memory.
Parts are merged in their order, so equal calls give equal bits. With a rotation, queries are
rotated on their way into shared memory.

Roles need barriers, so nothing below sm_90a. Elsewhere than there `T.gemm` replaces wgmma; those
variants compile and were never run.
"""

import tilelang.language as T

from di_kernels.tile.attention_shapes import DIM, HEADS, KEY_SCALE, LOG2_E, ROTARY, load_angles
from di_kernels.tile.cuda_source import COMMON, RECORDS, ROTATION
from di_kernels.tile.gather_parts import RECORD_UNITS, TILE, record_macros

MAX_KEYS = 1024
_PRODUCERS = 128


def attention_parts(selected_format: str, *, has_wgmma: bool) -> object:
    """Unnormalised float32 sums of one row and one part of its keys per thread block.

    Args:
        selected_format: Record format of the selected entries; window entries are `mxfp8`.
        has_wgmma: Scores by wgmma of sm_90a, which waits for nothing but itself.
    """
    num_rows, window_columns, selected_columns = T.dynamic(
        "num_rows, window_columns, selected_columns"
    )
    window_units, selected_units = T.dynamic("window_units, selected_units")
    num_parts = T.dynamic("num_parts")
    table_rows = T.dynamic("table_rows")  # num_rows if there is a rotation
    load_first, load_nvfp4, store_nvfp4, load_mxfp8, store_mxfp8 = record_macros(selected_format)
    selected_record = RECORD_UNITS[selected_format]
    half, passed = DIM // 2, DIM - ROTARY
    # Per thread and warp group. Without wgmma key tiles pass through registers in both products.
    registers = (240, 168, 96) if has_wgmma else (208, 200, 96)

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
        part_tiles: T.int32,
        window_width: T.int32,
        selected_width: T.int32,
        window_entries: T.int32,
        window_stride: T.int32,
        window_offset: T.int32,
        selected_entries: T.int32,
        selected_stride: T.int32,
        selected_offset: T.int32,
        part_sum: T.Tensor((num_parts, num_rows, HEADS, DIM), "float32"),
        part_peak: T.Tensor((num_parts, num_rows, HEADS), "float32"),
        part_total: T.Tensor((num_parts, num_rows, HEADS), "float32"),
    ):
        with T.Kernel(num_parts, num_rows, threads=256 + _PRODUCERS) as (part, row):
            T.import_source(COMMON + RECORDS + ROTATION)
            q_s = T.alloc_shared((HEADS, DIM), "bfloat16")
            keys_s = T.alloc_shared((2, TILE, DIM), "bfloat16")
            powers_s = T.alloc_shared((HEADS, TILE), "bfloat16")
            starts = T.alloc_shared((MAX_KEYS,), "int32", scope="shared")
            alpha_s = T.alloc_shared((HEADS,), "float32", scope="shared")
            left = T.alloc_fragment((HEADS, half), "float32")
            right = T.alloc_fragment((HEADS, half), "float32")
            scores = T.alloc_fragment((HEADS, TILE), "float32")
            total = T.alloc_fragment((HEADS,), "float32")
            tile_total = T.alloc_fragment((HEADS,), "float32")
            peak = T.alloc_fragment((HEADS,), "float32")
            last_peak = T.alloc_fragment((HEADS,), "float32")
            alpha = T.alloc_fragment((HEADS,), "float32")
            codes_a = T.alloc_local((16,), "uint32")
            scales_a = T.alloc_local((4,), "uint32")
            codes_b = T.alloc_local((16,), "uint32")
            scales_b = T.alloc_local((4,), "uint32")
            values = T.alloc_local((32,), "bfloat16")
            reordered = T.alloc_local((8,), "bfloat16")
            q_values = T.alloc_local((16 * 8,), "bfloat16")
            q_turned = T.alloc_local((2 * 8,), "bfloat16")
            cosine = T.alloc_local((8,), "float32")
            sine = T.alloc_local((8,), "float32")
            keys_ready = T.alloc_barrier(arrive_count=[_PRODUCERS] * 2)
            keys_free = T.alloc_barrier(arrive_count=[256] * 2)
            powers_ready = T.alloc_barrier(arrive_count=256)
            powers_free = T.alloc_barrier(arrive_count=256)
            tx = T.get_thread_binding()
            span = T.alloc_local((3,), "int32")
            slot = T.alloc_local((1,), "int32")
            found = T.alloc_local((1,), "int32")
            span[0] = T.ceildiv(window_width, TILE)
            span[1] = part * part_tiles
            span[2] = T.min(part_tiles, span[0] + T.ceildiv(selected_width, TILE) - span[1])
            factor = scale * T.float32(LOG2_E * KEY_SCALE)

            if has_wgmma:
                # Parts are for few rows, where launches count: this one overlaps the kernel before
                # it, and that of `merge_parts` this one.
                T.pdl_trigger()
                T.pdl_sync()

            # Queries come through the threads that multiply, places of records through those that
            # gather: two latencies side by side.
            if tx < 256:
                if tx % 64 < passed // 8:
                    for step in T.unroll(16):
                        for v in T.vectorized(8):
                            q_values[step * 8 + v] = q[row, step * 4 + tx // 64, tx % 64 * 8 + v]
                # Every thread turns two eighths of the last channels of a head.
                for step in T.unroll(2):
                    for v in T.vectorized(8):
                        q_turned[step * 8 + v] = q[
                            row, step * 32 + tx // 8, passed + tx % 8 * 8 + v
                        ]
                if rotates != 0:
                    load_angles(cosines, sines, row, tx % 8 * 8, cosine, sine)
                    for step in T.unroll(2):
                        T.call_extern(
                            "handle",
                            "di_rotate",
                            T.access_ptr(q_turned[step * 8], "rw", 8),
                            T.access_ptr(cosine, "r"),
                            T.access_ptr(sine, "r"),
                            T.float32(1),
                        )
                if tx % 64 < passed // 8:
                    for step in T.unroll(16):
                        T.call_extern(
                            "handle",
                            "di_interleave_halves",
                            T.access_ptr(q_values[step * 8], "r", 8),
                            T.access_ptr(reordered, "w"),
                        )
                        for v in T.vectorized(8):
                            q_s[step * 4 + tx // 64, tx % 64 * 8 + v] = reordered[v]
                for step in T.unroll(2):
                    T.call_extern(
                        "handle",
                        "di_interleave_halves",
                        T.access_ptr(q_turned[step * 8], "r", 8),
                        T.access_ptr(reordered, "w"),
                    )
                    for v in T.vectorized(8):
                        q_s[step * 32 + tx // 8, passed + tx % 8 * 8 + v] = reordered[v]
                T.fence_proxy_async()
            else:
                for step in T.serial(T.ceildiv(span[2] * TILE, _PRODUCERS)):
                    if step * _PRODUCERS + tx - 256 < span[2] * TILE:
                        key = span[1] * TILE + step * _PRODUCERS + tx - 256
                        found[0] = -1
                        if key < span[0] * TILE:
                            if key < window_width:
                                slot[0] = window_slots[row, key]
                                if slot[0] >= 0:
                                    found[0] = (
                                        slot[0] // window_entries * window_stride
                                        + window_offset
                                        + slot[0] % window_entries * RECORD_UNITS["mxfp8"]
                                    )
                        else:
                            if key - span[0] * TILE < selected_width:
                                slot[0] = selected_slots[row, key - span[0] * TILE]
                                if slot[0] >= 0:
                                    found[0] = (
                                        slot[0] // selected_entries * selected_stride
                                        + selected_offset
                                        + slot[0] % selected_entries * selected_record
                                    )
                        starts[step * _PRODUCERS + tx - 256] = found[0]
            T.sync_threads()

            if tx < 128:
                T.set_max_nreg(registers[0], 1)
                T.fill(total, 0)
                T.fill(peak, -(2.0**30))
                T.fill(left, 0)
                for i in T.serial(span[2]):
                    T.barrier_wait(keys_ready[i % 2], (i // 2) & 1)
                    for h, b in T.Parallel(HEADS, TILE):
                        scores[h, b] = T.if_then_else(
                            starts[i * TILE + b] >= 0, 0, -T.infinity("float32")
                        )
                    if has_wgmma:
                        T.wgmma_gemm(q_s, keys_s[i % 2, :, :], scores, transpose_B=True)
                        T.wait_wgmma(0)
                    else:
                        T.gemm(q_s, keys_s[i % 2, :, :], scores, transpose_B=True)
                    if i != 0:
                        T.barrier_arrive(powers_free)
                        T.barrier_wait(powers_free, (i & 1) ^ 1)
                    T.copy(peak, last_peak)
                    T.reduce_max(scores, peak, dim=1, clear=False)
                    for h in T.Parallel(HEADS):
                        peak[h] = T.max(peak[h], last_peak[h])
                    for h in T.Parallel(HEADS):
                        alpha[h] = T.exp2((last_peak[h] - peak[h]) * factor)
                    for h, b in T.Parallel(HEADS, TILE):
                        scores[h, b] = T.exp2(scores[h, b] * factor - peak[h] * factor)
                    T.reduce_sum(scores, tile_total, dim=1)
                    for h in T.Parallel(HEADS):
                        total[h] = total[h] * alpha[h] + tile_total[h]
                    for h, c in T.Parallel(HEADS, half):
                        left[h, c] *= alpha[h]
                    T.copy(alpha, alpha_s)
                    T.copy(scores, powers_s)
                    T.fence_proxy_async()
                    T.barrier_arrive(powers_ready)
                    T.barrier_wait(powers_ready, i & 1)
                    T.gemm(powers_s, keys_s[i % 2, :, :half], left)
                    T.barrier_arrive(keys_free[i % 2])
                for h, c in T.Parallel(HEADS, half):
                    part_sum[part, row, h, c] = left[h, c] * T.float32(KEY_SCALE)
                for h in T.Parallel(HEADS):
                    part_peak[part, row, h] = peak[h] * factor
                for h in T.Parallel(HEADS):
                    part_total[part, row, h] = total[h]
                T.barrier_arrive(powers_free)
            elif tx < 256:
                T.set_max_nreg(registers[1], 1)
                T.fill(right, 0)
                for i in T.serial(span[2]):
                    T.barrier_arrive(powers_ready)
                    T.barrier_wait(powers_ready, i & 1)
                    for h, c in T.Parallel(HEADS, half):
                        right[h, c] *= alpha_s[h]
                    T.gemm(powers_s, keys_s[i % 2, :, half:], right)
                    T.barrier_arrive(keys_free[i % 2])
                    if i != span[2] - 1:
                        T.barrier_arrive(powers_free)
                T.barrier_arrive(powers_free)
                T.barrier_wait(powers_free, (span[2] - 1) & 1)
                for h, c in T.Parallel(HEADS, half):
                    part_sum[part, row, h, half + c] = right[h, c] * T.float32(KEY_SCALE)
            else:
                T.set_max_nreg(registers[2], 0)
                load_first(window, selected, starts, codes_a, scales_a, 0, span, tx)
                for i in T.serial(span[2]):
                    if span[1] + i < span[0]:
                        load_mxfp8(window, starts, codes_b, scales_b, i, 1, tx)
                        T.barrier_wait(keys_free[i % 2], ((i // 2) & 1) ^ 1)
                        store_mxfp8(codes_a, scales_a, keys_s, values, i % 2, 0, tx)
                        load_mxfp8(window, starts, codes_a, scales_a, i, 2, tx)
                        store_mxfp8(codes_b, scales_b, keys_s, values, i % 2, 1, tx)
                        load_mxfp8(window, starts, codes_b, scales_b, i, 3, tx)
                        store_mxfp8(codes_a, scales_a, keys_s, values, i % 2, 2, tx)
                        load_first(window, selected, starts, codes_a, scales_a, i + 1, span, tx)
                        store_mxfp8(codes_b, scales_b, keys_s, values, i % 2, 3, tx)
                    elif selected_format == "mxfp8":
                        load_mxfp8(selected, starts, codes_b, scales_b, i, 1, tx)
                        T.barrier_wait(keys_free[i % 2], ((i // 2) & 1) ^ 1)
                        store_mxfp8(codes_a, scales_a, keys_s, values, i % 2, 0, tx)
                        load_mxfp8(selected, starts, codes_a, scales_a, i, 2, tx)
                        store_mxfp8(codes_b, scales_b, keys_s, values, i % 2, 1, tx)
                        load_mxfp8(selected, starts, codes_b, scales_b, i, 3, tx)
                        store_mxfp8(codes_a, scales_a, keys_s, values, i % 2, 2, tx)
                        load_first(window, selected, starts, codes_a, scales_a, i + 1, span, tx)
                        store_mxfp8(codes_b, scales_b, keys_s, values, i % 2, 3, tx)
                    else:
                        load_nvfp4(selected, starts, codes_b, scales_b, i, 1, tx)
                        T.barrier_wait(keys_free[i % 2], ((i // 2) & 1) ^ 1)
                        store_nvfp4(codes_a, scales_a, keys_s, values, i % 2, 0, tx)
                        load_first(window, selected, starts, codes_a, scales_a, i + 1, span, tx)
                        store_nvfp4(codes_b, scales_b, keys_s, values, i % 2, 1, tx)
                    T.fence_proxy_async()
                    T.barrier_arrive(keys_ready[i % 2])

    return kernel
