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
from di_kernels.tile.results import factors_shape, results
from di_kernels.tile.results_source import RESULTS
from di_kernels.tile.roles import (
    COPIED_WORDS,
    WARP,
    consumer,
    mma_sync_consumer,
    num_copying,
    producer,
)
from di_kernels.tile.shares import LEAST_STEPS, hand_over
from di_kernels.tile.shares_source import SHARES
from di_kernels.tile.wgmma_source import own_wgmma

# Registers of a copying thread where they are moved.
_FEWER_REGISTERS = 40

_CODE_WORDS, _SCALE_WORDS = CODE_WORDS["mxfp4"], SCALE_WORDS["mxfp4"]


def routed_gemm(tile: RolesTile, *, swiglu: bool) -> object:
    """Rows in bfloat16."""
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    num_sums, num_flags = T.dynamic("num_sums, num_flags")
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
        partial: T.Tensor((num_sums,), "float32"),
        ready: T.Tensor((num_flags,), "int32"),
    ):
        body(codes, scales, x, tiles, (None, None, row_weights, limit), y, partial, ready)

    return kernel


def routed_gemm_e4m3(tile: RolesTile, *, swiglu: bool) -> object:
    """Rows in e4m3, with one scale each."""
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    num_sums, num_flags = T.dynamic("num_sums, num_flags")
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
        partial: T.Tensor((num_sums,), "float32"),
        ready: T.Tensor((num_flags,), "int32"),
    ):
        body(
            codes, scales, x, tiles, (row_factors, x_scales, row_weights, limit), y, partial, ready
        )

    return kernel


def _more_registers(tile: RolesTile) -> int:
    """Of a multiplying thread: what the copying warp group left of those at entry, in eights."""
    groups = tile.warp_groups
    at_entry = (1 << 16) // (128 * (groups + 1)) // 8 * 8
    return (at_entry * (groups + 1) - _FEWER_REGISTERS) // groups // 8 * 8


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
    prepare, publish, finish_tile = results(tile, swiglu=swiglu, is_scaled=is_e4m3)
    num_threads = threads + num_copying(tile)
    is_shared, num_fragments = tile.grid > 0, 2 if tile.overlaps else 1
    width = BLOCK // 2 if swiglu else BLOCK
    source = (
        COMMON + (E4M3_WEIGHTS if is_e4m3 else WEIGHTS) + SWIGLU + FEW_TOKENS + SHARES + RESULTS
    )
    if tile.uses_own_wgmma:
        source += own_wgmma(tokens, dtype)
    take_out, save, load = hand_over(tile)
    factor_sizes = factors_shape(tile, swiglu=swiglu, is_scaled=is_e4m3)
    more_registers = _more_registers(tile)

    @T.macro
    def clear(total):
        T.clear(total)

    @T.macro
    def pick(tiles, count, row_tiles, steps, turn, job):
        """A job of the block, or one without rows; and the number of its jobs."""
        if is_shared:
            job[6] = T.call_extern(
                "int32", "di_job", count[0] * row_tiles, steps, LEAST_STEPS, tile.grid, turn,
                T.access_ptr(job, "w"),
            )  # fmt: skip
            job[4] = job[1]
            job[5] = job[2]
        else:
            job[0] = T.get_block_binding()
            job[4] = 0
            job[5] = steps
            job[6] = 1
        place = T.truncdiv(job[0], row_tiles)
        job[3] = (job[0] - place * row_tiles) * groups
        if turn < job[6]:
            for field in T.unroll(3):
                job[field] = tiles[place, field]
        else:
            for field in T.unroll(3):
                job[field] = 0

    @T.macro
    def count_tiles(tiles, count):
        if is_shared:
            count[0] = T.call_extern("int32", "di_count_tiles", tiles.data, tiles.shape[0])

    def finish(totals, job, limit, sums, row_scales, kept, factors_s, y_s, y):
        publish(kept, factors_s)
        for row_tile, total in enumerate(totals):
            if total is not None:
                take_out(total, sums)
            finish_tile(row_tile, job, limit, sums, row_scales, factors_s, y_s, y)

    def clear_all(totals, sums):
        for total in totals:
            clear(sums if total is None else total)

    @T.macro
    def start(totals, sums, job, partial, ready):
        if is_shared:
            if job[4] > 0:
                load(totals, sums, partial, ready, T.get_block_binding())
            else:
                clear_all(totals, sums)
        else:
            clear_all(totals, sums)

    @T.macro
    def end(totals, sums, job, steps, limit, row_scales, kept, factors_s, y_s, y, partial, ready):
        if is_shared:
            if job[4] + job[5] < steps:
                save(totals, sums, partial, ready, T.get_block_binding())
            else:
                finish(totals, job, limit, sums, row_scales, kept, factors_s, y_s, y)
        else:
            finish(totals, job, limit, sums, row_scales, kept, factors_s, y_s, y)

    @T.macro
    def kernel(codes, scales, x, tiles, factors, y, partial, ready):
        row_tiles = codes.shape[1] // groups
        steps = scales.shape[2] // depth
        grid = tile.grid if is_shared else row_tiles * tiles.shape[0]
        with T.Kernel(grid, threads=num_threads):
            T.import_source(source)
            if tile.blocks_per_sm > 1:
                T.annotate_min_blocks_per_sm(tile.blocks_per_sm)
            codes_s = T.alloc_shared(
                (stages * groups, depth * _CODE_WORDS // COPIED_WORDS, COPIED_WORDS), "uint32"
            )
            # As one copy of a stage takes them, see `di_kernels.tile.roles`.
            code_rows = T.view(
                codes,
                (*codes.shape[:2], codes.shape[2] * _CODE_WORDS // COPIED_WORDS, COPIED_WORDS),
            )
            num_pairs, size = x.shape
            x_blocks = T.StridedTensor(
                (size // columns, num_pairs, columns), (columns, size, 1), dtype, data=x.data
            )
            staged_codes = T.view(codes_s, (stages * groups, depth, _CODE_WORDS))
            scales_s = T.alloc_shared((stages * groups, depth, _SCALE_WORDS), "uint32")
            x_s = T.alloc_shared((stages * depth * BLOCK // columns, tokens, columns), dtype)
            y_s = T.alloc_shared((tile.warp_groups, tile.stored_tokens, width), "bfloat16")
            factors_s = T.alloc_shared(factor_sizes, "float32")
            kept = T.alloc_local((-(-tokens // 128) * 2,), "float32")
            row_scales = T.alloc_local((2 * tile.row_tiles,), "float32")
            words = T.alloc_local((4,), "uint32")
            values = T.alloc_local((BLOCK * columns // 128,), dtype)
            sums = T.alloc_local((BLOCK * tokens // 128,), "float32")
            full = T.alloc_barrier(arrive_count=[WARP] * stages)
            free = T.alloc_barrier(arrive_count=[threads // WARP] * stages)
            # Expert, first row, row past the last, first tile of 64 weight rows, first step, steps;
            # last the number of jobs.
            job = T.alloc_local((7,), "int32")
            count = T.alloc_local((1,), "int32")
            # Steps that went through the pipeline.
            done = T.alloc_local((1,), "int32")
            done[0] = 0
            tx = T.get_thread_binding()
            if tile.uses_mma_sync or tile.uses_own_wgmma:
                # Without TileLang's products: sums stay in `sums`.
                T.annotate_layout({x_s: make_wgmma_swizzled_layout(x_s)})
                fragments, totals = [None], [None]
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
                    count_tiles(tiles, count)
                    pick(tiles, count, row_tiles, steps, 0, job)
                    if job[1] < job[2]:
                        fill(code_rows, scales, codes_s, scales_s, full, job[0], job[3], job[5])
                    # Also without work: what follows counts on the kernel before being done.
                    T.pdl_sync()
                    for turn in T.serial(job[6]):
                        pick(tiles, count, row_tiles, steps, turn, job)
                        T.call_extern("handle", "di_exit_if", job[2] <= job[1])
                        produce(
                            code_rows, scales, x_blocks, codes_s, scales_s, x_s, full, free,
                            job[0], job[3], job[1], job[4], job[5], done[0],
                        )  # fmt: skip
                        done[0] += job[5]
            else:
                if tile.moves_registers:
                    T.set_max_nreg(more_registers, 1)
                count_tiles(tiles, count)
                pick(tiles, count, row_tiles, steps, 0, job)
                # What the kernel before wrote: rows of x, which the products wait for, and factors.
                T.pdl_sync()
                for turn in T.serial(job[6]):
                    pick(tiles, count, row_tiles, steps, turn, job)
                    T.call_extern("handle", "di_exit_if", job[2] <= job[1])
                    prepare(job, *factors[:3], kept, row_scales)
                    start(totals, sums, job, partial, ready)
                    staged = (staged_codes, scales_s, x_s, full, free, job[5], done[0])
                    if tile.uses_mma_sync:
                        consume(*staged, words, values, sums)
                    else:
                        own = [sums] if tile.uses_own_wgmma else totals
                        consume(*staged, fragments, words, values, own)
                    done[0] += job[5]
                    end(
                        totals, sums, job, steps, factors[3], row_scales, kept, factors_s, y_s, y,
                        partial, ready,
                    )  # fmt: skip

    return kernel
