# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Sparse attention over packed records: window entries and selected entries of every row.

a[k] = scale * q . key[k]; out = sum of exp(a[k]) * key[k] / (sum of exp(a[k]) + exp(sink)), for 64
heads of 512 channels that share one key vector per entry (DeepSeek-V4.1 reference
`inference/model.py`). Exponentials are rounded to bfloat16 before the value product, their sum is
not.

A thread block works on one row after the other, in tiles of 64 keys. Warp group 0 brings queries
into shape, multiplies queries and keys, takes the softmax and the left half of the value product,
its exponentials straight from registers; warp group 1 takes the right half, from shared memory, and
finds the places of later records; warp group 2 gathers records and turns them into two bfloat16 key
tiles in shared memory. The right half of a tile's product waits until the next tile's scores are
there: the tensor cores then have it to do beside the softmax. Halves of key tiles are handed over
one by one for that.

Nothing stops between rows: the next row's records are gathered while this one is finished, its
queries are copied as soon as the last scores are there. Places of the first tiles are found before
the groups part: the first loads of a launch take longest.
"""

import tilelang.language as T

from di_kernels.tile.attention_shapes import (
    DIM,
    HEADS,
    KEY_SCALE,
    LOG2_E,
    ROTARY,
    TILE,
    divide_down,
    from_key_order,
    has_slot,
    load_angles,
    rotate,
)
from di_kernels.tile.attention_steps import (
    copy_queries,
    divide,
    finish_queries,
    hand_over,
    multiply_rows,
    take_softmax,
)
from di_kernels.tile.cuda_source import COMMON, RECORD_COPIES, RECORDS, ROTATION, SOFTMAX
from di_kernels.tile.gather import (
    PLACES,
    STAGED_UNITS,
    advance,
    following,
    load_ahead,
    store_mxfp8,
    store_nvfp4,
    take_mxfp8,
    take_nvfp4,
    tile_macros,
    wait_copies,
)

_GROUP = 128
_LEFT, _RIGHT, _GATHER = 8, 9, 10
"""Named barriers of the warp groups."""

_REGISTERS = (232, 176, 96)
"""Per thread of the warp groups."""

_AHEAD = 6
"""Tiles whose places are found ahead of the one whose product is taken: three for each group."""

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
            T.import_source(COMMON + RECORDS + RECORD_COPIES + SOFTMAX + ROTATION)
            q_s = T.alloc_shared((HEADS, DIM), "bfloat16")
            keys_s = T.alloc_shared((2, TILE, DIM), "bfloat16")
            powers_s = T.alloc_shared((HEADS, TILE), "bfloat16")
            staged = T.alloc_shared((STAGED_UNITS, 4), "uint32", scope="shared")
            starts = T.alloc_shared((PLACES * TILE,), "int32", scope="shared")
            masks = T.alloc_shared((PLACES * 2,), "uint32", scope="shared")
            alpha_s = T.alloc_shared((HEADS,), "float32", scope="shared")
            inverse_s = T.alloc_shared((HEADS,), "float32", scope="shared")
            left = T.alloc_fragment((HEADS, _HALF), "float32")
            right = T.alloc_fragment((HEADS, _HALF), "float32")
            scores = T.alloc_fragment((HEADS, TILE), "float32")
            rounded = T.alloc_fragment((HEADS, TILE), "bfloat16")
            reference = T.alloc_local((2,), "float32")
            totals = T.alloc_local((2,), "float32")
            highs = T.alloc_local((2,), "float32")
            alpha = T.alloc_local((2,), "float32")
            sinks = T.alloc_local((2,), "float32")
            mask = T.alloc_local((2,), "uint32")
            begin = T.alloc_local((9,), "int32")
            codes = T.alloc_local((32,), "uint32")
            scales = T.alloc_local((8,), "uint32")
            values = T.alloc_local((32,), "bfloat16")
            eight = T.alloc_local((8,), "bfloat16")
            natural = T.alloc_local((4 * 8,), "bfloat16")
            halved = T.alloc_fragment((HEADS, _HALF), "bfloat16")
            other_halved = T.alloc_fragment((HEADS, _HALF), "bfloat16")
            reordered = T.alloc_local((8,), "bfloat16")
            cosine = T.alloc_local((8,), "float32")
            sine = T.alloc_local((8,), "float32")
            # Barriers of key buffers: left half and right half of each.
            keys_ready = T.alloc_barrier(arrive_count=[_GROUP] * 4)
            keys_free = T.alloc_barrier(arrive_count=[_GROUP] * 4)
            powers_ready = T.alloc_barrier(arrive_count=_GROUP)
            powers_free = T.alloc_barrier(arrive_count=_GROUP)
            q_copied = T.alloc_barrier(arrive_count=32)
            tx = T.get_thread_binding()
            slot = T.alloc_local((1,), "int32")
            ahead = T.alloc_local((2,), "int32")
            window_tiles = T.ceildiv(window_width, TILE)
            tiles = window_tiles + T.ceildiv(selected_width, TILE)
            rows_here = T.alloc_local((1,), "int32")
            rows_here[0] = divide_down(num_rows - block + blocks - 1, blocks)
            rows = rows_here[0]
            factor = scale * T.float32(LOG2_E * KEY_SCALE)

            # Places of the first tiles, a key per thread.
            ahead[1] = divide_down(tx // TILE, tiles)
            ahead[0] = tx // TILE - ahead[1] * tiles
            load_ahead(
                window_slots, selected_slots, window_width, selected_width, block, blocks, rows,
                ahead, tx % TILE, slot,
            )  # fmt: skip
            keep_place(
                window_entries, window_stride, window_offset, selected_entries, selected_stride,
                selected_offset, ahead[0] < window_tiles, starts, masks, tx // TILE, slot[0],
                tx % TILE,
            )  # fmt: skip
            T.sync_threads()
            if tx < _GROUP:
                T.set_max_nreg(_REGISTERS[0], 1)
                copy_queries(q, q_s, block, q_copied, tx)
                for k in T.unroll(2):
                    sinks[k] = sink[tx // 32 * 16 + k * 8 + tx % 32 // 4]
                for r in T.serial(rows):
                    for k in T.unroll(2):
                        totals[k] = T.float32(0)
                        reference[k] = T.float32(-1e30)
                    finish_queries(
                        q_s, cosines, sines, rotates, block + r * blocks, q_copied, r & 1, natural,
                        reordered, cosine, sine, tx,
                    )  # fmt: skip
                    T.sync_threads(_LEFT, _GROUP)
                    T.fill(left, 0)
                    for i in T.serial(tiles):
                        g = r * tiles + i
                        if i != 0:
                            T.wgmma_gemm(rounded, keys_s[(g - 1) & 1, :, :_HALF], left)
                            hand_over(rounded, powers_s, alpha, alpha_s, powers_free, g - 1, tx)
                        T.barrier_wait(keys_ready[(g & 1) * 2], (g // 2) & 1)
                        T.wgmma_gemm(
                            q_s[:, :_HALF], keys_s[g & 1, :, :_HALF], scores, transpose_B=True,
                            clear_accum=True,
                        )  # fmt: skip
                        # Left half of the product of the tile before.
                        T.wait_wgmma(1)
                        if i != 0:
                            T.barrier_arrive(keys_free[((g - 1) & 1) * 2])
                        T.barrier_wait(keys_ready[(g & 1) * 2 + 1], (g // 2) & 1)
                        T.wgmma_gemm(
                            q_s[:, _HALF:], keys_s[g & 1, :, _HALF:], scores, transpose_B=True
                        )
                        for v in T.vectorized(2):
                            mask[v] = masks[(g & (PLACES - 1)) * 2 + v]
                        # The right half of the product before, beside the softmax.
                        if i != 0:
                            T.barrier_arrive(powers_ready)
                        T.wait_wgmma(0)
                        if i == tiles - 1 and r + 1 < rows:
                            T.sync_threads(_LEFT, _GROUP)
                            copy_queries(q, q_s, block + (r + 1) * blocks, q_copied, tx)
                        if mask[0] & mask[1] != T.uint32(0xFFFFFFFF):
                            for h, b in T.Parallel(HEADS, TILE):
                                scores[h, b] = T.if_then_else(
                                    has_slot(mask, b), scores[h, b], -T.infinity("float32")
                                )
                        take_softmax(scores, left, factor, reference, highs, alpha, totals)
                        T.copy(scores, rounded)
                    last = (r * tiles + tiles - 1) & 1
                    hand_over(
                        rounded, powers_s, alpha, alpha_s, powers_free, r * tiles + tiles - 1, tx
                    )  # fmt: skip
                    divide(totals, reference, sinks, alpha)
                    if tx % 4 == 0:
                        for k in T.unroll(2):
                            inverse_s[tx // 32 * 16 + k * 8 + tx % 32 // 4] = alpha[k]
                    T.barrier_arrive(powers_ready)
                    T.wgmma_gemm(rounded, keys_s[last, :, :_HALF], left)
                    T.wait_wgmma(0)
                    multiply_rows(left, alpha)
                    # Results pass through the last tile's place, once all warps are done with it.
                    T.sync_threads(_LEFT, _GROUP)
                    T.copy(left, halved)
                    T.copy(halved, keys_s[last, :, :_HALF])
                    T.sync_threads(_LEFT, _GROUP)
                    for step in T.unroll(8, unroll_factor=1):
                        for u in T.unroll(2):
                            head = step * 8 + u * 4 + tx // 32
                            for v in T.vectorized(8):
                                eight[v] = keys_s[last, head, tx % 32 * 8 + v]
                            from_key_order(eight, reordered)
                            for v in T.vectorized(8):
                                out[block + r * blocks, head, tx % 32 * 8 + v] = reordered[v]
                    T.barrier_arrive(keys_free[last * 2])
            elif tx < 2 * _GROUP:
                T.set_max_nreg(_REGISTERS[1], 1)
                ahead[1] = divide_down(_AHEAD, tiles)
                ahead[0] = _AHEAD - ahead[1] * tiles
                load_ahead(
                    window_slots, selected_slots, window_width, selected_width, block, blocks, rows,
                    ahead, tx % TILE, slot,
                )  # fmt: skip
                for r in T.serial(rows):
                    T.fill(right, 0)
                    for i in T.serial(tiles):
                        g = r * tiles + i
                        # Places of a later tile, while there is nothing to multiply.
                        keep_place(
                            window_entries, window_stride, window_offset, selected_entries,
                            selected_stride, selected_offset, ahead[0] < window_tiles, starts,
                            masks, g + _AHEAD, slot[0], tx % TILE,
                        )  # fmt: skip
                        advance(ahead, tiles)
                        load_ahead(
                            window_slots, selected_slots, window_width, selected_width, block,
                            blocks, rows, ahead, tx % TILE, slot,
                        )  # fmt: skip
                        T.barrier_wait(powers_ready, g & 1)
                        for k in T.unroll(2):
                            alpha[k] = alpha_s[(tx - _GROUP) // 32 * 16 + k * 8 + tx % 32 // 4]
                        multiply_rows(right, alpha)
                        T.wgmma_gemm(powers_s, keys_s[g & 1, :, _HALF:], right)
                        T.wait_wgmma(0)
                        if i != tiles - 1:
                            T.barrier_arrive(keys_free[(g & 1) * 2 + 1])
                        T.barrier_arrive(powers_free)
                    last = (r * tiles + tiles - 1) & 1
                    for k in T.unroll(2):
                        alpha[k] = inverse_s[(tx - _GROUP) // 32 * 16 + k * 8 + tx % 32 // 4]
                    multiply_rows(right, alpha)
                    T.sync_threads(_RIGHT, _GROUP)
                    T.copy(right, other_halved)
                    T.copy(other_halved, keys_s[last, :, _HALF:])
                    T.sync_threads(_RIGHT, _GROUP)
                    if rotates != 0 and tx % 32 >= (_PASSED - _HALF) // 8:
                        load_angles(cosines, sines, block + r * blocks, tx % 8 * 8, cosine, sine)
                    for step in T.unroll(8, unroll_factor=1):
                        for u in T.unroll(2):
                            head = step * 8 + u * 4 + (tx - _GROUP) // 32
                            for v in T.vectorized(8):
                                eight[v] = keys_s[last, head, _HALF + tx % 32 * 8 + v]
                            from_key_order(eight, reordered)
                            if rotates != 0 and tx % 32 >= (_PASSED - _HALF) // 8:
                                rotate(reordered, 0, cosine, sine, -1)
                            for v in T.vectorized(8):
                                out[block + r * blocks, head, _HALF + tx % 32 * 8 + v] = reordered[
                                    v
                                ]
                    T.barrier_arrive(keys_free[last * 2 + 1])
            else:
                T.set_max_nreg(_REGISTERS[2], 0)
                copy_first(
                    window, selected, staged, starts, begin, 0, window_tiles > 0, tx - 2 * _GROUP
                )  # fmt: skip
                for r in T.serial(rows):
                    for i in T.serial(tiles):
                        g = r * tiles + i
                        wait_copies(_GATHER)
                        if i < window_tiles or selected_format == "mxfp8":
                            take_mxfp8(staged, codes, scales, tx - 2 * _GROUP)
                            T.call_extern("handle", "di_sync", _GATHER, _GROUP)
                            copy_last(
                                window, selected, staged, starts, begin, g, i < window_tiles,
                                tx - 2 * _GROUP,
                            )  # fmt: skip
                            for half in T.unroll(2):
                                T.barrier_wait(keys_free[(g & 1) * 2 + half], ((g // 2) & 1) ^ 1)
                                store_mxfp8(
                                    codes, scales, keys_s, values, g & 1, 0, half, tx - 2 * _GROUP
                                )
                            wait_copies(_GATHER)
                            take_mxfp8(staged, codes, scales, tx - 2 * _GROUP)
                            T.call_extern("handle", "di_sync", _GATHER, _GROUP)
                            copy_first(
                                window, selected, staged, starts, begin, g + 1,
                                following(i, 1, tiles) < window_tiles, tx - 2 * _GROUP,
                            )  # fmt: skip
                            for half in T.unroll(2):
                                store_mxfp8(
                                    codes, scales, keys_s, values, g & 1, 1, half, tx - 2 * _GROUP
                                )
                                T.fence_proxy_async()
                                T.barrier_arrive(keys_ready[(g & 1) * 2 + half])
                        else:
                            take_nvfp4(staged, codes, scales, tx - 2 * _GROUP)
                            T.call_extern("handle", "di_sync", _GATHER, _GROUP)
                            copy_first(
                                window, selected, staged, starts, begin, g + 1,
                                following(i, 1, tiles) < window_tiles, tx - 2 * _GROUP,
                            )  # fmt: skip
                            for half in T.unroll(2):
                                T.barrier_wait(keys_free[(g & 1) * 2 + half], ((g // 2) & 1) ^ 1)
                                store_nvfp4(
                                    codes, scales, keys_s, values, g & 1, half, tx - 2 * _GROUP
                                )
                                T.fence_proxy_async()
                                T.barrier_arrive(keys_ready[(g & 1) * 2 + half])

    return kernel
