# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the kernels below as its own language.)
"""Products with weights in fragment order: routed experts, linears and grouped linears.

y[t, m] = sum over k of w[m, k] * x[t, k], weights MXFP4 or MXFP8, rows bfloat16, sums float32. The
weight is the first operand of the tensor core (64 rows per warp group) and goes shared memory ->
registers -> tensor core, the rows are the second: tiles of 8 to 256 rows, never padded to 64.

| buffer | shape | dtype |
|---|---|---|
| codes | (matrices, rows / 64, columns / 64, 512 or 1024) | uint32, see `di_kernels.fragments` |
| scales | (matrices, rows / 64, columns / 64, 32 or 8) | uint32 |
| x | (pairs, columns), or (rows, groups * columns) | bfloat16 |
| tiles | (tiles, 3): expert, first row, row past the last; 0 0 0 for no tile | int32 |
| y | (pairs, rows / 64, 64), half as wide with SwiGLU | bfloat16 |
| y of a grouped product | (parts, rows, groups, rows / 64, 64) | bfloat16; float32 if split |

Builds for sm_80, sm_90a, sm_100a and sm_120a; wgmma on sm_90a alone, mma.sync elsewhere. Measured
times: `docs/performance/kernels.md`.
"""

import tilelang.language as T

from di_kernels.tile.cuda_source import COMMON, SWIGLU, WEIGHTS
from di_kernels.tile.gemm_tile import BLOCK, CODE_WORDS, SCALE_WORDS, GemmTile

MAX_PARTS = 8
"""Most parts that `sum_of_parts` adds."""


def unpack_macro(tile: GemmTile):
    """Conversion of a block of every warp group, whose codes start at place `first`.

    Without a fragment they stay in `values`, in the same order.
    """
    words_per_thread = CODE_WORDS[tile.weight] // 128
    rows = BLOCK * tile.warp_groups

    @T.macro
    def unpack(codes_s, scales_s, first, block, fragment, words, values):
        tx = T.get_thread_binding()
        for part in T.unroll(words_per_thread // 4):
            for v in T.vectorized(4):
                words[part * 4 + v] = codes_s[
                    first + tx // 128, block, part * 512 + (tx % 128) * 4 + v
                ]
        if tile.weight == "mxfp4":
            T.call_extern(
                "handle",
                "di_unpack_mxfp4",
                T.access_ptr(words, "r"),
                scales_s[first + tx // 128, block, (tx % 128) // 4],
                T.access_ptr(values, "w"),
            )
        else:
            T.call_extern(
                "handle",
                "di_unpack_mxfp8",
                T.access_ptr(words, "r"),
                scales_s[first + tx // 128, block, (tx % 128) // 32],
                T.access_ptr(values, "w"),
            )
        if fragment is not None:
            for i, j in T.Parallel(rows, BLOCK):
                fragment[i, j] = T.call_extern(
                    "bfloat16",
                    "di_at",
                    T.access_ptr(values, "r"),
                    (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2,
                )

    return unpack


def stage_loader(tile: GemmTile):
    """A macro that copies the codes and scales of one stage into shared memory."""
    groups, depth = tile.warp_groups, tile.stage_blocks

    @T.macro
    def load_stage(codes, scales, matrix, bx, step, codes_s, scales_s):
        T.copy(
            codes[matrix, bx * groups : (bx + 1) * groups, step * depth : (step + 1) * depth, :],
            codes_s,
        )
        T.copy(
            scales[matrix, bx * groups : (bx + 1) * groups, step * depth : (step + 1) * depth, :],
            scales_s,
        )

    return load_stage


def stage_multiplier(tile: GemmTile, unpack, columns: int):
    """A macro of the products of one stage; `unpack` converts so many columns at a time.

    Two fragments take turns when products overlap: columns are converted while those before are
    multiplied.
    """
    num_blocks = tile.stage_blocks * BLOCK // columns

    @T.macro
    def multiply(codes_s, scales_s, x_s, block, fragment, words, values, total):
        unpack(codes_s, scales_s, 0, block, fragment, words, values)
        if tile.overlaps:
            T.wgmma_gemm(
                fragment,
                x_s[:, block * columns : (block + 1) * columns],
                total,
                transpose_B=True,
                policy=T.GemmWarpPolicy.FullRow,
            )
            T.wait_wgmma(1)
        else:
            T.gemm(
                fragment,
                x_s[:, block * columns : (block + 1) * columns],
                total,
                transpose_B=True,
                policy=T.GemmWarpPolicy.FullRow,
            )

    # One statement, so that a stage has one barrier: TileLang gives every statement its own.
    @T.macro
    def multiply_stage(codes_s, scales_s, x_s, fragments, words, values, total):
        staged = (codes_s, scales_s, x_s)
        if tile.overlaps:
            for turn in T.unroll(num_blocks // 2):
                multiply(*staged, 2 * turn, fragments[0], words, values, total)
                multiply(*staged, 2 * turn + 1, fragments[1], words, values, total)
            T.wait_wgmma(0)
        else:
            for block in T.unroll(num_blocks):
                multiply(*staged, block, fragments[0], words, values, total)

    return multiply_stage


def _swiglu_epilogue(tile: GemmTile):
    """A macro that activates the sums of the weight rows into shared memory."""
    per_thread = BLOCK * tile.tokens // 128

    @T.macro
    def activate(total, row_weights, limit, first, end, y_s):
        tx = T.get_thread_binding()
        sums = T.alloc_local((per_thread,), "float32")
        for i, j in T.Parallel(BLOCK * tile.warp_groups, tile.tokens):
            T.call_extern(
                "handle",
                "di_put",
                T.access_ptr(sums, "w"),
                (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2,
                total[i, j],
            )
        for column in T.unroll(tile.tokens // 8):
            for u in T.unroll(2):
                token = column * 8 + (tx % 4) * 2 + u
                if first + token < end:
                    y_s[token, tx // 32 * 8 + tx % 32 // 4] = T.cast(
                        T.call_extern(
                            "float32",
                            "di_swiglu",
                            sums[column * 4 + u],
                            sums[column * 4 + 2 + u],
                            limit,
                            row_weights[first + token],
                        ),
                        "bfloat16",
                    )

    return activate


def routed_gemm(tile: GemmTile, *, swiglu: bool) -> object:
    """Rows sorted by expert times their experts' matrices, tile by tile of a list on the device.

    Serves all architectures but Hopper, whose kernel is `di_kernels.tile.routed`. With `swiglu` the
    gate and up rows are interleaved by 8 (`fragments.interleave_gate_up`), so a thread holds both
    of a pair; y is the activated product, half as wide, times the row's weight. `partial` and
    `ready` are of use to Hopper's kernel alone.
    """
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    num_sums, num_flags = T.dynamic("num_sums, num_flags")
    code_words, scale_words = CODE_WORDS[tile.weight], SCALE_WORDS[tile.weight]
    tokens, depth, rows = tile.tokens, tile.stage_blocks, BLOCK * tile.warp_groups
    groups = tile.warp_groups
    out_rows = tile.weight_rows // 2 if swiglu else tile.weight_rows
    width = out_rows // groups
    load_stage, activate = stage_loader(tile), _swiglu_epilogue(tile)
    multiply_stage = stage_multiplier(tile, unpack_macro(tile), BLOCK)

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_experts, row_blocks, blocks, code_words), "uint32"),
        scales: T.Tensor((num_experts, row_blocks, blocks, scale_words), "uint32"),
        x: T.Tensor((num_pairs, size), "bfloat16"),
        tiles: T.Tensor((num_tiles, 3), "int32"),
        row_weights: T.Tensor((num_pairs,), "float32"),
        limit: T.float32,
        y: T.Tensor((num_pairs, row_blocks, width), "bfloat16"),
        partial: T.Tensor((num_sums,), "float32"),
        ready: T.Tensor((num_flags,), "int32"),
    ):
        with T.Kernel(row_blocks // groups, num_tiles, threads=tile.threads) as (bx, by):
            T.import_source(COMMON + WEIGHTS + SWIGLU)
            if tile.blocks_per_sm > 1:
                T.annotate_min_blocks_per_sm(tile.blocks_per_sm)
                T.disable_warp_group_reg_alloc()
            codes_s = T.alloc_shared((groups, depth, code_words), "uint32")
            scales_s = T.alloc_shared((groups, depth, scale_words), "uint32")
            x_s = T.alloc_shared((tokens, depth * BLOCK), "bfloat16")
            y_s = T.alloc_shared((tokens, out_rows), "bfloat16")
            fragment = T.alloc_fragment((rows, BLOCK), "bfloat16")
            total = T.alloc_fragment((rows, tokens), "float32")
            words = T.alloc_local((code_words // 128,), "uint32")
            values = T.alloc_local((32,), "bfloat16")
            expert = tiles[by, 0]
            first = tiles[by, 1]
            end = tiles[by, 2]
            T.call_extern("handle", "di_exit_if", end <= first)
            T.clear(total)
            for step in T.Pipelined(blocks // depth, num_stages=tile.stages):
                load_stage(codes, scales, expert, bx, step, codes_s, scales_s)
                T.copy(x[first, step * depth * BLOCK], x_s)
                multiply_stage(codes_s, scales_s, x_s, [fragment], words, values, total)
            if swiglu:
                activate(total, row_weights, limit, first, end, y_s)
            else:
                for i, j in T.Parallel(rows, tokens):
                    y_s[j, i] = total[i, j]
            for j, i in T.Parallel(tokens, out_rows):
                if first + j < end:
                    y[first + j, bx * groups + i // width, i % width] = y_s[j, i]

    return kernel


def grouped_gemm(tile: GemmTile, *, is_split: bool) -> object:
    """Block-diagonal product: group g of every row with matrix g; one group is a plain linear.

    With `is_split` the columns are cut into parts, each with its own float32 sums, which
    `sum_of_parts` adds in order.
    """
    num_groups, row_blocks, blocks = T.dynamic("num_groups, row_blocks, blocks")
    num_rows, size, num_parts = T.dynamic("num_rows, size, num_parts")
    code_words, scale_words = CODE_WORDS[tile.weight], SCALE_WORDS[tile.weight]
    rows, tokens, groups, depth = (
        tile.weight_rows,
        tile.tokens,
        tile.warp_groups,
        tile.stage_blocks,
    )
    out_dtype = "float32" if is_split else "bfloat16"
    load_stage = stage_loader(tile)
    multiply_stage = stage_multiplier(tile, unpack_macro(tile), BLOCK)

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_groups, row_blocks, blocks, code_words), "uint32"),
        scales: T.Tensor((num_groups, row_blocks, blocks, scale_words), "uint32"),
        x: T.Tensor((num_rows, size), "bfloat16"),
        part_steps: T.int32,
        y: T.Tensor((num_parts, num_rows, num_groups, row_blocks, BLOCK), out_dtype),
    ):
        with T.Kernel(
            row_blocks // groups,
            T.ceildiv(num_rows, tokens),
            num_groups * num_parts,
            threads=tile.threads,
        ) as (bx, by, bz):
            T.import_source(COMMON + WEIGHTS)
            if tile.blocks_per_sm > 1:
                T.annotate_min_blocks_per_sm(tile.blocks_per_sm)
                T.disable_warp_group_reg_alloc()
            codes_s = T.alloc_shared((groups, depth, code_words), "uint32")
            scales_s = T.alloc_shared((groups, depth, scale_words), "uint32")
            x_s = T.alloc_shared((tokens, depth * BLOCK), "bfloat16")
            y_s = T.alloc_shared((tokens, rows), out_dtype)
            fragments = [
                T.alloc_fragment((rows, BLOCK), "bfloat16")
                for _ in range(2 if tile.overlaps else 1)
            ]
            total = T.alloc_fragment((rows, tokens), "float32")
            words = T.alloc_local((code_words // 128,), "uint32")
            values = T.alloc_local((32,), "bfloat16")
            group = bz // num_parts
            part = bz % num_parts
            begin = part * part_steps
            count = T.min(part_steps, blocks // depth - begin)
            T.clear(total)
            for step in T.Pipelined(count, num_stages=tile.stages):
                load_stage(codes, scales, group, bx, begin + step, codes_s, scales_s)
                T.copy(x[by * tokens, (group * blocks + (begin + step) * depth) * BLOCK], x_s)
                multiply_stage(codes_s, scales_s, x_s, fragments, words, values, total)
            for i, j in T.Parallel(rows, tokens):
                y_s[j, i] = total[i, j]
            for j, i in T.Parallel(tokens, rows):
                if by * tokens + j < num_rows:
                    y[part, by * tokens + j, group, bx * groups + i // BLOCK, i % BLOCK] = y_s[j, i]

    return kernel


def sum_of_parts(*, overlaps_launch: bool) -> object:
    """Sum over the first dimension of (up to 8 parts, values / 4, 4) float32, as bfloat16.

    First to last, in fours, so that a load is known to be aligned to 16 bytes. With
    `overlaps_launch` the launch overlaps the kernel before it (sm_90 and later).
    """
    num_parts, num_quads = T.dynamic("num_parts, num_quads")

    @T.prim_func
    def kernel(
        parts: T.Tensor((num_parts, num_quads, 4), "float32"),
        y: T.Tensor((num_quads, 4), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(num_quads, 128), threads=128) as bx:
            loaded = T.alloc_local((MAX_PARTS * 4,), "float32")
            total = T.alloc_local((4,), "float32")
            place = bx * 128 + T.get_thread_binding()
            if overlaps_launch:
                T.pdl_trigger()
                T.pdl_sync()
            if place < num_quads:
                # All loads before the first sum: their latency is paid once.
                for part in T.unroll(MAX_PARTS):
                    if part < num_parts:
                        for v in T.vectorized(4):
                            loaded[part * 4 + v] = parts[part, place, v]
                    else:
                        for v in T.vectorized(4):
                            loaded[part * 4 + v] = 0
                T.clear(total)
                for part in T.unroll(MAX_PARTS):
                    for v in T.unroll(4):
                        total[v] += loaded[part * 4 + v]
                for v in T.vectorized(4):
                    y[place, v] = total[v]

    return kernel
