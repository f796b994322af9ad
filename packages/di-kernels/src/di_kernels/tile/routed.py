# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Products of routed experts on Hopper, by the roles of `di_kernels.tile.roles`.

Rows sorted by expert times their experts' matrices, tile by tile of a list on the device. With
SwiGLU the gate and up rows are interleaved by 8 (`fragments.interleave_gate_up`), so a thread holds
both of a pair; y is the activated product, half as wide, times the row's weight.

Launches overlap: the list must have been written before the kernel before this one began, and its
tiles stand before its empty places.

Buffers as in `di_kernels.tile.gemm` and `di_kernels.tile.gemm_e4m3`.
"""

import tilelang.language as T
from tilelang.layout import make_wgmma_swizzled_layout

from di_kernels.tile.cuda_source import COMMON, FEW_TOKENS, SWIGLU, WEIGHTS
from di_kernels.tile.fp8_source import E4M3_WEIGHTS
from di_kernels.tile.gemm import unpack_macro
from di_kernels.tile.gemm_e4m3 import PAIR
from di_kernels.tile.gemm_e4m3 import unpack_macro as e4m3_unpack_macro
from di_kernels.tile.gemm_tile import BLOCK, CODE_WORDS, SCALE_WORDS, RolesTile
from di_kernels.tile.roles import (
    WARP,
    consumer,
    for_each,
    mma_sync_consumer,
    num_copying,
    producer,
)

# Values by which a token's results are apart in shared memory beyond their number: 16 bytes, so
# that the four tokens of a warp's threads lie in different banks.
_PADDING = 8

# Registers of a copying and of a multiplying thread where they are moved.
_FEWER_REGISTERS, _MORE_REGISTERS = 40, 232

_CODE_WORDS, _SCALE_WORDS = CODE_WORDS["mxfp4"], SCALE_WORDS["mxfp4"]


def routed_gemm(tile: RolesTile, *, swiglu: bool) -> object:
    """Rows in bfloat16."""
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    width = BLOCK // 2 if swiglu else BLOCK
    body = _body(tile, swiglu=swiglu, is_e4m3=False)

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_experts, row_blocks, blocks, _CODE_WORDS), "uint32"),
        scales: T.Tensor((num_experts, row_blocks, blocks, _SCALE_WORDS), "uint32"),
        x: T.Tensor((num_pairs, size), "bfloat16"),
        tiles: T.Tensor((num_tiles, 3), "int32"),
        row_weights: T.Tensor((num_pairs,), "float32"),
        limit: T.float32,
        y: T.Tensor((num_pairs, row_blocks, width), "bfloat16"),
    ):
        body(codes, scales, x, tiles, (None, None, row_weights, limit), y)

    return kernel


def routed_gemm_e4m3(tile: RolesTile, *, swiglu: bool) -> object:
    """Rows in e4m3, with one scale each."""
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    width = BLOCK // 2 if swiglu else BLOCK
    body = _body(tile, swiglu=swiglu, is_e4m3=True)

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_experts, row_blocks, blocks, _CODE_WORDS), "uint32"),
        scales: T.Tensor((num_experts, row_blocks, blocks, _SCALE_WORDS), "uint32"),
        row_factors: T.Tensor((num_experts, row_blocks, BLOCK), "float32"),
        x: T.Tensor((num_pairs, size), "float8_e4m3fn"),
        x_scales: T.Tensor((num_pairs,), "float32"),
        tiles: T.Tensor((num_tiles, 3), "int32"),
        row_weights: T.Tensor((num_pairs,), "float32"),
        limit: T.float32,
        y: T.Tensor((num_pairs, row_blocks, width), "bfloat16"),
    ):
        body(codes, scales, x, tiles, (row_factors, x_scales, row_weights, limit), y)

    return kernel


def _body(tile: RolesTile, *, swiglu: bool, is_e4m3: bool):
    """A macro of the whole kernel; `factors` are what sums are multiplied and clamped by."""
    tokens, depth, rows = tile.tokens, tile.stage_blocks, BLOCK * tile.warp_groups
    groups, stages, threads = tile.warp_groups * tile.row_tiles, tile.stages, tile.threads
    columns, dtype = (PAIR, "float8_e4m3fn") if is_e4m3 else (BLOCK, "bfloat16")
    fill, produce = producer(tile, columns)
    if tile.uses_mma_sync:
        consume = mma_sync_consumer(tile)
    else:
        consume = consumer(tile, (e4m3_unpack_macro if is_e4m3 else unpack_macro)(tile), columns)
    finish = _finish(tile, swiglu=swiglu, is_scaled=is_e4m3)
    num_threads = threads + num_copying(tile)
    is_persistent, num_fragments = tile.grid > 0, 2 if tile.overlaps else 1
    out_rows = rows // 2 if swiglu else rows
    source = COMMON + (E4M3_WEIGHTS if is_e4m3 else WEIGHTS) + SWIGLU + FEW_TOKENS

    @T.macro
    def clear(total):
        T.clear(total)

    @T.macro
    def locate(tiles, row_tiles, place, job):
        job[0] = T.truncdiv(place, row_tiles)
        job[3] = (place - job[0] * row_tiles) * groups
        job[1] = tiles[job[0], 1]
        job[2] = tiles[job[0], 2]
        job[0] = tiles[job[0], 0]

    def finish_all(totals, job, factors, sums, y_s, y):
        for row, total in enumerate(totals):
            finish(total, row * tile.warp_groups, job, *factors, sums, y_s, y)

    @T.macro
    def kernel(codes, scales, x, tiles, factors, y):
        row_tiles = codes.shape[1] // groups
        steps = codes.shape[2] // depth
        num_places = row_tiles * tiles.shape[0]
        grid = tile.grid if is_persistent else num_places
        with T.Kernel(grid, threads=num_threads) as block:
            T.import_source(source)
            if tile.blocks_per_sm > 1:
                T.annotate_min_blocks_per_sm(tile.blocks_per_sm)
            codes_s = T.alloc_shared((stages * groups, depth, _CODE_WORDS), "uint32")
            scales_s = T.alloc_shared((stages * groups, depth, _SCALE_WORDS), "uint32")
            x_s = T.alloc_shared((stages * depth * BLOCK // columns, tokens, columns), dtype)
            y_s = T.alloc_shared((tile.stored_tokens, out_rows + _PADDING), "bfloat16")
            words = T.alloc_local((4,), "uint32")
            values = T.alloc_local((BLOCK * columns // 128,), dtype)
            sums = T.alloc_local((BLOCK * tokens // 128,), "float32")
            full = T.alloc_barrier(arrive_count=[WARP] * stages)
            free = T.alloc_barrier(arrive_count=[threads // WARP] * stages)
            # Expert, first row, row past the last, first tile of 64 weight rows.
            job = T.alloc_local((4,), "int32")
            tx = T.get_thread_binding()
            turns = T.ceildiv(num_places - block, grid) if is_persistent else 1
            if tile.uses_mma_sync:
                T.annotate_layout({x_s: make_wgmma_swizzled_layout(x_s)})
                totals = [None]
            else:
                fragments = [T.alloc_fragment((rows, columns), dtype) for _ in range(num_fragments)]
                totals = [
                    T.alloc_fragment((rows, tokens), "float32") for _ in range(tile.row_tiles)
                ]
            T.pdl_trigger()
            if tx >= threads:
                if tile.moves_registers:
                    T.set_max_nreg(_FEWER_REGISTERS, 0)
                if tx < threads + WARP:
                    job[1] = 0
                    job[2] = 0
                    if block < num_places:
                        locate(tiles, row_tiles, block, job)
                    if job[1] < job[2]:
                        fill(codes, scales, codes_s, scales_s, full, job[0], job[3], steps)
                    # Also without work: what follows counts on the kernel before being done.
                    T.pdl_sync()
                    for turn in T.serial(turns):
                        locate(tiles, row_tiles, block + turn * grid, job)
                        T.call_extern("handle", "di_exit_if", job[2] <= job[1])
                        produce(
                            codes, scales, x, codes_s, scales_s, x_s, full, free,
                            job[0], job[3], job[1], steps, turn * steps,
                        )  # fmt: skip
            else:
                if tile.moves_registers:
                    T.set_max_nreg(_MORE_REGISTERS, 1)
                for turn in T.serial(turns):
                    locate(tiles, row_tiles, block + turn * grid, job)
                    T.call_extern("handle", "di_exit_if", job[2] <= job[1])
                    staged = (codes_s, scales_s, x_s, full, free, steps, turn * steps)
                    if tile.uses_mma_sync:
                        consume(*staged, words, values, sums)
                    else:
                        for_each(clear, totals)
                        consume(*staged, fragments, words, values, totals)
                    T.pdl_sync()
                    finish_all(totals, job, factors, sums, y_s, y)

    return kernel


def _finish(tile: RolesTile, *, swiglu: bool, is_scaled: bool):
    """A macro that stores the results of a tile of weight rows, a few tokens at a time.

    The sums of the thread are in `total`, or in `sums` where there is no `total`.
    """
    out_rows = BLOCK * tile.warp_groups // (2 if swiglu else 1)
    width = BLOCK // 2 if swiglu else BLOCK
    stored, threads = tile.stored_tokens, tile.threads
    pieces = stored * out_rows // 8

    @T.macro
    def take_out(total, sums):
        for i, j in T.Parallel(BLOCK * tile.warp_groups, tile.tokens):
            T.call_extern(
                "handle", "di_put", T.access_ptr(sums, "w"),
                (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2, total[i, j],
            )  # fmt: skip

    @T.macro
    def put(column, token, row, sums, row_scales, x_scales, row_weights, limit, y_s):
        """A pair of weight rows, g and g + 8 of the warp's 16, of one token into shared memory."""
        tx = T.get_thread_binding()
        if is_scaled:
            for half in T.unroll(2):
                sums[column + half * 2] *= row_scales[half] * x_scales[row]
        if swiglu:
            y_s[token, tx // 32 * 8 + tx % 32 // 4] = T.cast(
                T.call_extern(
                    "float32", "di_swiglu", sums[column], sums[column + 2], limit, row_weights[row]
                ),
                "bfloat16",
            )
        else:
            for half in T.unroll(2):
                y_s[token, tx // 32 * 16 + tx % 32 // 4 + half * 8] = T.cast(
                    sums[column + half * 2], "bfloat16"
                )

    @T.macro
    def store(first, end, row_block, y_s, y):
        tx = T.get_thread_binding()
        for step in T.unroll(T.ceildiv(pieces, threads)):
            piece = step * threads + tx
            token = piece // (out_rows // 8)
            row = piece % (out_rows // 8) * 8
            if piece < pieces and first + token < end:
                for v in T.vectorized(8):
                    y[first + token, row_block + row // width, row % width + v] = y_s[
                        token, row + v
                    ]

    @T.macro
    def finish(
        total, first_tile, job, row_factors, x_scales, row_weights, limit, sums, y_s, y
    ):  # fmt: skip
        tx = T.get_thread_binding()
        row_scales = T.alloc_local((2,), "float32")
        row_block = job[3] + first_tile
        if total is not None:
            take_out(total, sums)
        if is_scaled:
            for half in T.unroll(2):
                row_scales[half] = row_factors[
                    job[0], row_block + tx // 128, tx % 128 // 32 * 16 + tx % 32 // 4 + half * 8
                ]
        for part in T.unroll(tile.tokens // stored):
            first = job[1] + part * stored
            T.sync_threads(1, threads)
            for column in T.unroll(stored // 8):
                for u in T.unroll(2):
                    token = column * 8 + (tx % 4) * 2 + u
                    # Rows past the end are computed and not stored: no branch keeps loads apart.
                    put(
                        (part * (stored // 8) + column) * 4 + u, token,
                        T.min(first + token, job[2] - 1), sums, row_scales, x_scales, row_weights,
                        limit, y_s,
                    )  # fmt: skip
            T.sync_threads(1, threads)
            store(first, job[2], row_block, y_s, y)

    return finish
