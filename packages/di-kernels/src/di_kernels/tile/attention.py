# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Sparse attention over packed records: window entries and selected entries of every row.

a[k] = scale * q . key[k]; out = sum of exp(a[k]) * key[k] / (sum of exp(a[k]) + exp(sink)), for 64
heads of 512 channels that share one key vector per entry (DeepSeek-V4.1 reference
`inference/model.py`). Exponentials are rounded to bfloat16 before the value product, their sum is
not.

A thread block works on one row after the other, in tiles of 64 keys. Warp group 0 multiplies
queries and keys, takes the softmax and the left half of the value product, warp group 1 the right
half, warp group 2 gathers records and turns them into two bfloat16 key tiles in shared memory. The
right half of a tile's product waits until the next tile's scores are there: the tensor cores then
have it to do beside the softmax. Halves of key tiles are handed over one by one for that.

Nothing stops between rows: the next row's records are gathered while this one is finished, its
queries are copied as soon as the last scores are there.
"""

import tilelang.language as T

from di_kernels.tile.attention_shapes import (
    DIM,
    HEADS,
    KEY_SCALE,
    LOG2_E,
    ROTARY,
    TILE,
    from_key_order,
    load_angles,
    load_slot,
    rotate,
)
from di_kernels.tile.attention_steps import copy_queries, divide, finish_queries, take_softmax
from di_kernels.tile.cuda_source import COMMON, RECORDS, ROTATION
from di_kernels.tile.gather import store_mxfp8, store_nvfp4, take_pieces, tile_macros

_GROUP = 128
_LEFT, _RIGHT, _GATHER = 8, 9, 10
"""Named barriers of the warp groups."""

_REGISTERS = (240, 168, 96)
"""Per thread of the warp groups."""

_RING = 4
"""Tiles whose record places are kept: a score mask is read two tiles after its places are found."""

_HALF, _PASSED = DIM // 2, DIM - ROTARY


def sparse_attention(selected_format: str) -> object:
    """Attention of every `blocks`-th row per thread block.

    Args:
        selected_format: Record format of the selected entries; window entries are `mxfp8`.
    """
    num_rows, window_columns, selected_columns = T.dynamic(
        "num_rows, window_columns, selected_columns"
    )
    window_units, selected_units = T.dynamic("window_units, selected_units")
    table_rows = T.dynamic("table_rows")  # num_rows if there is a rotation
    copy_first, copy_last, keep_place = tile_macros(selected_format)

    @T.prim_func
    def kernel(
        q: T.Tensor((num_rows, HEADS, DIM), "bfloat16"),
        window: T.Tensor((window_units, 4), "uint32"),
        selected: T.Tensor((selected_units, 4), "uint32"),
        window_slots: T.Tensor((num_rows, window_columns), "int32"),
        selected_slots: T.Tensor((num_rows, selected_columns), "int32"),
        sink: T.Tensor((HEADS,), "float32"),
        cosines: T.Tensor((table_rows, ROTARY), "float32"),
        sines: T.Tensor((table_rows, ROTARY), "float32"),
        rotates: T.int32,
        scale: T.float32,
        blocks: T.int32,
        window_width: T.int32,
        selected_width: T.int32,
        window_entries: T.int32,
        window_stride: T.int32,
        window_offset: T.int32,
        selected_entries: T.int32,
        selected_stride: T.int32,
        selected_offset: T.int32,
        out: T.Tensor((num_rows, HEADS, DIM), "bfloat16"),
    ):
        with T.Kernel(blocks, threads=3 * _GROUP) as block:
            T.import_source(COMMON + RECORDS + ROTATION)
            q_s = T.alloc_shared((HEADS, DIM), "bfloat16")
            keys_s = T.alloc_shared((2, TILE, DIM), "bfloat16")
            powers_s = T.alloc_shared((HEADS, TILE), "bfloat16")
            starts = T.alloc_shared((_RING * TILE,), "int32", scope="shared")
            raw = T.alloc_shared((2, 4, _GROUP, 4), "uint32", scope="shared")
            raw_scales = T.alloc_shared((2, 4, _GROUP), "uint32", scope="shared")
            alpha_s = T.alloc_shared((HEADS,), "float32", scope="shared")
            inverse_s = T.alloc_shared((HEADS,), "float32", scope="shared")
            left = T.alloc_fragment((HEADS, _HALF), "float32")
            right = T.alloc_fragment((HEADS, _HALF), "float32")
            scores = T.alloc_fragment((HEADS, TILE), "float32")
            total = T.alloc_fragment((HEADS,), "float32")
            tile_total = T.alloc_fragment((HEADS,), "float32")
            peak = T.alloc_fragment((HEADS,), "float32")
            last_peak = T.alloc_fragment((HEADS,), "float32")
            alpha = T.alloc_fragment((HEADS,), "float32")
            sinks = T.alloc_fragment((HEADS,), "float32")
            codes = T.alloc_local((32,), "uint32")
            scales = T.alloc_local((8,), "uint32")
            values = T.alloc_local((32,), "bfloat16")
            eight = T.alloc_local((8,), "bfloat16")
            reordered = T.alloc_local((8,), "bfloat16")
            turned = T.alloc_local((4 * 8,), "bfloat16")
            cosine = T.alloc_local((8,), "float32")
            sine = T.alloc_local((8,), "float32")
            # Barriers of key buffers: left half and right half of each.
            keys_ready = T.alloc_barrier(arrive_count=[_GROUP] * 4)
            keys_free = T.alloc_barrier(arrive_count=[_GROUP] * 4)
            powers_ready = T.alloc_barrier(arrive_count=_GROUP)
            powers_free = T.alloc_barrier(arrive_count=_GROUP)
            q_ready = T.alloc_barrier(arrive_count=_GROUP)
            tx = T.get_thread_binding()
            slot = T.alloc_local((1,), "int32")
            place = T.alloc_local((1,), "int32")
            ahead = T.alloc_local((2,), "int32")
            window_tiles = T.ceildiv(window_width, TILE)
            tiles = window_tiles + T.ceildiv(selected_width, TILE)
            rows = T.ceildiv(num_rows - block, blocks)
            factor = scale * T.float32(LOG2_E * KEY_SCALE)

            if tx < _GROUP:
                T.set_max_nreg(_REGISTERS[0], 1)
                for h in T.Parallel(HEADS):
                    sinks[h] = sink[h]
                for r in T.serial(rows):
                    T.fill(total, 0)
                    T.fill(peak, -(2.0**30))
                    T.fill(left, 0)
                    T.barrier_wait(q_ready, r & 1)
                    for i in T.serial(tiles):
                        g = r * tiles + i
                        if i != 0:
                            T.wgmma_gemm(powers_s, keys_s[(g - 1) % 2, :, :_HALF], left)
                        T.barrier_wait(keys_ready[g % 2 * 2], (g // 2) & 1)
                        for h, b in T.Parallel(HEADS, TILE):
                            scores[h, b] = T.if_then_else(
                                starts[g % _RING * TILE + b] >= 0, 0, -T.infinity("float32")
                            )
                        T.wgmma_gemm(
                            q_s[:, :_HALF], keys_s[g % 2, :, :_HALF], scores, transpose_B=True
                        )
                        # Left half of the product of the tile before.
                        T.wait_wgmma(1)
                        if i != 0:
                            T.barrier_arrive(keys_free[(g - 1) % 2 * 2])
                        T.barrier_wait(keys_ready[g % 2 * 2 + 1], (g // 2) & 1)
                        T.wgmma_gemm(
                            q_s[:, _HALF:], keys_s[g % 2, :, _HALF:], scores, transpose_B=True
                        )
                        T.wait_wgmma(0)
                        if i != 0:
                            T.barrier_arrive(powers_ready)
                        take_softmax(scores, peak, last_peak, alpha, total, tile_total, factor)
                        for h, c in T.Parallel(HEADS, _HALF):
                            left[h, c] *= alpha[h]
                        if g != 0:
                            T.barrier_wait(powers_free, (g - 1) & 1)
                        T.copy(alpha, alpha_s)
                        T.copy(scores, powers_s)
                        T.fence_proxy_async()
                        T.sync_threads(_LEFT, _GROUP)
                    last = (r * tiles + tiles - 1) % 2
                    T.wgmma_gemm(powers_s, keys_s[last, :, :_HALF], left)
                    divide(total, peak, sinks, tile_total, factor)
                    T.copy(tile_total, inverse_s)
                    T.barrier_arrive(powers_ready)
                    T.wait_wgmma(0)
                    for h, c in T.Parallel(HEADS, _HALF):
                        left[h, c] *= tile_total[h]
                    # Results pass through the last tile's place, once all warps are done with it.
                    T.sync_threads(_LEFT, _GROUP)
                    T.copy(left, keys_s[last, :, :_HALF])
                    T.sync_threads(_LEFT, _GROUP)
                    for step in T.unroll(16):
                        for v in T.vectorized(8):
                            eight[v] = keys_s[last, step * 4 + tx // 32, tx % 32 * 8 + v]
                        from_key_order(eight, reordered)
                        for v in T.vectorized(8):
                            out[block + r * blocks, step * 4 + tx // 32, tx % 32 * 8 + v] = (
                                reordered[v]
                            )
                    T.barrier_arrive(keys_free[last * 2])
            elif tx < 2 * _GROUP:
                T.set_max_nreg(_REGISTERS[1], 1)
                # A row's products, then the queries of the next one; first queries alone.
                for r in T.serial(rows + 1):
                    if r != 0:
                        T.fill(right, 0)
                        for i in T.serial(tiles):
                            g = (r - 1) * tiles + i
                            T.barrier_wait(powers_ready, g & 1)
                            if i == tiles - 1 and r < rows:
                                copy_queries(q, q_s, block + r * blocks, tx - _GROUP)
                            for h, c in T.Parallel(HEADS, _HALF):
                                right[h, c] *= alpha_s[h]
                            T.gemm(powers_s, keys_s[g % 2, :, _HALF:], right)
                            if i != tiles - 1:
                                T.barrier_arrive(keys_free[g % 2 * 2 + 1])
                            T.barrier_arrive(powers_free)
                        last = (r * tiles - 1) % 2
                        for h, c in T.Parallel(HEADS, _HALF):
                            right[h, c] *= inverse_s[h]
                        T.sync_threads(_RIGHT, _GROUP)
                        T.copy(right, keys_s[last, :, _HALF:])
                        T.sync_threads(_RIGHT, _GROUP)
                        if rotates != 0 and tx % 32 >= (_PASSED - _HALF) // 8:
                            load_angles(
                                cosines, sines, block + (r - 1) * blocks, tx % 8 * 8, cosine, sine
                            )
                        for step in T.unroll(16):
                            for v in T.vectorized(8):
                                eight[v] = keys_s[
                                    last, step * 4 + (tx - _GROUP) // 32, _HALF + tx % 32 * 8 + v
                                ]
                            from_key_order(eight, reordered)
                            if rotates != 0 and tx % 32 >= (_PASSED - _HALF) // 8:
                                rotate(reordered, 0, cosine, sine, -1)
                            for v in T.vectorized(8):
                                out[
                                    block + (r - 1) * blocks,
                                    step * 4 + (tx - _GROUP) // 32,
                                    _HALF + tx % 32 * 8 + v,
                                ] = reordered[v]
                        T.barrier_arrive(keys_free[last * 2 + 1])
                    else:
                        copy_queries(q, q_s, block, tx - _GROUP)
                    if r < rows:
                        finish_queries(
                            q, q_s, cosines, sines, rotates, block + r * blocks, turned, eight,
                            reordered, cosine, sine, tx - _GROUP,
                        )  # fmt: skip
                        T.barrier_arrive(q_ready)
            else:
                T.set_max_nreg(_REGISTERS[2], 0)
                slot[0] = -1
                # Places of the first two tiles, and the slots of the third.
                ahead[0] = 0
                ahead[1] = 0
                for step in T.unroll(3):
                    if step != 0:
                        keep_place(
                            window_entries, window_stride, window_offset, selected_entries,
                            selected_stride, selected_offset, window_tiles, tiles, starts,
                            step - 1, ahead, slot, place, tx - 2 * _GROUP,
                        )  # fmt: skip
                    slot[0] = -1
                    if tx - 2 * _GROUP < TILE and ahead[1] < rows:
                        load_slot(
                            window_slots, selected_slots, window_width, selected_width,
                            block + ahead[1] * blocks, ahead[0], tx - 2 * _GROUP, slot,
                        )  # fmt: skip
                T.sync_threads(_GATHER, _GROUP)
                copy_first(
                    window, selected, starts, raw, raw_scales, 0, 0, window_tiles, tx - 2 * _GROUP
                )
                for r in T.serial(rows):
                    for i in T.serial(tiles):
                        g = r * tiles + i
                        following = T.if_then_else(i + 1 == tiles, 0, i + 1)
                        # Places of the following tile are seen by all.
                        T.sync_threads(_GATHER, _GROUP)
                        take_pieces(raw, raw_scales, codes, scales, tx - 2 * _GROUP)
                        if i < window_tiles or selected_format == "mxfp8":
                            copy_last(
                                window, selected, starts, raw, raw_scales, g % _RING, i,
                                window_tiles, tx - 2 * _GROUP,
                            )  # fmt: skip
                            T.barrier_wait(keys_free[g % 2 * 2], ((g // 2) & 1) ^ 1)
                            for piece in T.unroll(2):
                                store_mxfp8(
                                    codes, scales, keys_s, values, g % 2, piece, tx - 2 * _GROUP
                                )
                            T.fence_proxy_async()
                            T.barrier_arrive(keys_ready[g % 2 * 2])
                            take_pieces(raw, raw_scales, codes, scales, tx - 2 * _GROUP)
                            copy_first(
                                window, selected, starts, raw, raw_scales, (g + 1) % _RING,
                                following, window_tiles, tx - 2 * _GROUP,
                            )  # fmt: skip
                            T.barrier_wait(keys_free[g % 2 * 2 + 1], ((g // 2) & 1) ^ 1)
                            for piece in T.unroll(2):
                                store_mxfp8(
                                    codes, scales, keys_s, values, g % 2, piece + 2,
                                    tx - 2 * _GROUP,
                                )  # fmt: skip
                            T.fence_proxy_async()
                            T.barrier_arrive(keys_ready[g % 2 * 2 + 1])
                        else:
                            copy_first(
                                window, selected, starts, raw, raw_scales, (g + 1) % _RING,
                                following, window_tiles, tx - 2 * _GROUP,
                            )  # fmt: skip
                            for piece in T.unroll(2):
                                T.barrier_wait(keys_free[g % 2 * 2 + piece], ((g // 2) & 1) ^ 1)
                                store_nvfp4(
                                    codes, scales, keys_s, values, g % 2, piece, tx - 2 * _GROUP
                                )
                                T.fence_proxy_async()
                                T.barrier_arrive(keys_ready[g % 2 * 2 + piece])
                        # Places two tiles ahead, and the slots of the tile after that.
                        keep_place(
                            window_entries, window_stride, window_offset, selected_entries,
                            selected_stride, selected_offset, window_tiles, tiles, starts,
                            (g + 2) % _RING, ahead, slot, place, tx - 2 * _GROUP,
                        )  # fmt: skip
                        slot[0] = -1
                        if tx - 2 * _GROUP < TILE and ahead[1] < rows:
                            load_slot(
                                window_slots, selected_slots, window_width, selected_width,
                                block + ahead[1] * blocks, ahead[0], tx - 2 * _GROUP, slot,
                            )  # fmt: skip

    return kernel
