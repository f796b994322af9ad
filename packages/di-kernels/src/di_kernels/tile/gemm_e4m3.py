# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the kernels below as its own language.)
"""Products of MXFP4 weights and e4m3 rows, for routed experts with FP8 activations.

y[t, m] = row_factors[m] * x_scales[t] * sum over k of w[m, k] * x[t, k]. The codes become e4m3 in
registers, scaled to the largest scale of their row (`di_kernels.fragments_e4m3`), so the sum runs
on e4m3 tensor cores and is exact up to their accumulation. Design otherwise as `tile.gemm`.

| buffer | shape | dtype |
|---|---|---|
| codes | (experts, rows / 64, columns / 64, 512) | uint32 |
| scales | (experts, rows / 64, columns / 64, 32) | uint32 |
| row_factors | (experts, rows / 64, 64) | float32 |
| x | (pairs, columns) | float8_e4m3fn |
| x_scales, row_weights | (pairs,) | float32 |
| tiles | (tiles, 3): expert, first row, row past the last; 0 0 0 for no tile | int32 |
| y | (pairs, rows / 64, 64), half as wide with SwiGLU | bfloat16 |
| partial, ready | Hopper's kernel alone uses them, see `di_kernels.tile.shares` | float32, int32 |

Builds for sm_100a and sm_120a (mma.sync); sm_80 has no e4m3 products.
"""

import tilelang.language as T

from di_kernels.tile.cuda_source import COMMON, SWIGLU
from di_kernels.tile.fp8_source import E4M3_WEIGHTS
from di_kernels.tile.gemm import stage_loader, stage_multiplier
from di_kernels.tile.gemm_tile import BLOCK, GemmTile

CODE_WORDS = 512
SCALE_WORDS = 32
# A row of shared memory is 128 bytes of e4m3: two blocks are multiplied at a time.
PAIR = 2 * BLOCK


def unpack_macro(tile: GemmTile):
    """Conversion of two blocks of every warp group, whose codes start at place `first`.

    Without a fragment they stay in `values`, in the same order.
    """
    rows = BLOCK * tile.warp_groups

    @T.macro
    def unpack(codes_s, scales_s, first, pair, fragment, words, values):
        tx = T.get_thread_binding()
        for half in T.unroll(2):
            for v in T.vectorized(4):
                words[v] = codes_s[first + tx // 128, pair * 2 + half, (tx % 128) * 4 + v]
            T.call_extern(
                "handle",
                "di_unpack_mxfp4_to_e4m3",
                T.access_ptr(words, "r"),
                scales_s[first + tx // 128, pair * 2 + half, (tx % 128) // 4],
                half,
                T.access_ptr(values, "w"),
            )
        if fragment is not None:
            for i, j in T.Parallel(rows, PAIR):
                fragment[i, j] = T.call_extern(
                    "float8_e4m3fn",
                    "di_at",
                    T.access_ptr(values, "r"),
                    (j // 16) * 8 + (i % 16) // 8 * 4 + j % 4,
                )

    return unpack


def _epilogue(tile: GemmTile, *, swiglu: bool):
    """A macro that scales the sums of the weight rows and puts them into shared memory."""
    per_thread = BLOCK * tile.tokens // 128

    @T.macro
    def scale_and_put(
        total,
        row_factors,
        x_scales,
        row_weights,
        limit,
        expert,
        row_block,
        first,
        end,
        y_s,
    ):
        tx = T.get_thread_binding()
        sums = T.alloc_local((per_thread,), "float32")
        factors = T.alloc_local((2,), "float32")
        for i, j in T.Parallel(BLOCK * tile.warp_groups, tile.tokens):
            T.call_extern(
                "handle",
                "di_put",
                T.access_ptr(sums, "w"),
                (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2,
                total[i, j],
            )
        # Rows g and g + 8 of the warp's 16 are this thread's.
        for half in T.unroll(2):
            factors[half] = row_factors[
                expert, row_block + tx // 128, tx % 128 // 32 * 16 + tx % 32 // 4 + half * 8
            ]
        for column in T.unroll(tile.tokens // 8):
            for u in T.unroll(2):
                token = column * 8 + (tx % 4) * 2 + u
                if first + token < end:
                    scale = x_scales[first + token]
                    if swiglu:
                        y_s[token, tx // 32 * 8 + tx % 32 // 4] = T.cast(
                            T.call_extern(
                                "float32",
                                "di_swiglu",
                                sums[column * 4 + u] * (factors[0] * scale),
                                sums[column * 4 + 2 + u] * (factors[1] * scale),
                                limit,
                                row_weights[first + token],
                            ),
                            "bfloat16",
                        )
                    else:
                        for half in T.unroll(2):
                            y_s[token, tx // 32 * 16 + tx % 32 // 4 + half * 8] = T.cast(
                                sums[column * 4 + half * 2 + u] * (factors[half] * scale),
                                "bfloat16",
                            )

    return scale_and_put


def routed_gemm_e4m3(tile: GemmTile, *, swiglu: bool) -> object:
    """Rows sorted by expert times their experts' matrices, tile by tile of a list on the device.

    With `swiglu` the gate and up rows are interleaved by 8; y is the activated product, half as
    wide, times the row's weight. Serves all architectures but Hopper, whose kernel is
    `di_kernels.tile.routed`.
    """
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    num_sums, num_flags = T.dynamic("num_sums, num_flags")
    tokens, depth = tile.tokens, tile.stage_blocks
    groups = tile.warp_groups
    out_rows = tile.weight_rows // 2 if swiglu else tile.weight_rows
    width = out_rows // groups
    load_stage, scale_and_put = stage_loader(tile), _epilogue(tile, swiglu=swiglu)
    multiply_stage = stage_multiplier(tile, unpack_macro(tile), PAIR)

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_experts, row_blocks, blocks, CODE_WORDS), "uint32"),
        scales: T.Tensor((num_experts, row_blocks, blocks, SCALE_WORDS), "uint32"),
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
        with T.Kernel(row_blocks // groups, num_tiles, threads=tile.threads) as (bx, by):
            T.import_source(COMMON + E4M3_WEIGHTS + SWIGLU)
            if tile.blocks_per_sm > 1:
                T.annotate_min_blocks_per_sm(tile.blocks_per_sm)
                T.disable_warp_group_reg_alloc()
            codes_s = T.alloc_shared((groups, depth, CODE_WORDS), "uint32")
            scales_s = T.alloc_shared((groups, depth, SCALE_WORDS), "uint32")
            x_s = T.alloc_shared((tokens, depth * BLOCK), "float8_e4m3fn")
            y_s = T.alloc_shared((tokens, out_rows), "bfloat16")
            fragment = T.alloc_fragment((tile.weight_rows, PAIR), "float8_e4m3fn")
            total = T.alloc_fragment((tile.weight_rows, tokens), "float32")
            words = T.alloc_local((4,), "uint32")
            values = T.alloc_local((64,), "float8_e4m3fn")
            expert = tiles[by, 0]
            first = tiles[by, 1]
            end = tiles[by, 2]
            T.call_extern("handle", "di_exit_if", end <= first)
            T.clear(total)
            for step in T.Pipelined(blocks // depth, num_stages=tile.stages):
                load_stage(codes, scales, expert, bx, step, codes_s, scales_s)
                T.copy(x[first, step * depth * BLOCK], x_s)
                multiply_stage(codes_s, scales_s, x_s, [fragment], words, values, total)
            scale_and_put(
                total, row_factors, x_scales, row_weights, limit, expert, bx * groups, first, end,
                y_s,
            )  # fmt: skip
            for j, i in T.Parallel(tokens, out_rows):
                if first + j < end:
                    y[first + j, bx * groups + i // width, i % width] = y_s[j, i]

    return kernel
