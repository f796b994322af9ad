# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
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

Builds for sm_90a (wgmma), sm_100a and sm_120a (mma.sync); sm_80 has no e4m3 products.
"""

import tilelang.language as T

from di_kernels.tile.cuda_source import COMMON, SWIGLU
from di_kernels.tile.fp8_source import E4M3_WEIGHTS
from di_kernels.tile.gemm import BLOCK, GemmTile

CODE_WORDS = 512
SCALE_WORDS = 32
# A row of shared memory is 128 bytes of e4m3: two blocks are multiplied at a time.
PAIR = 2 * BLOCK


def _macros(tile: GemmTile):
    rows = tile.weight_rows

    @T.macro
    def multiply_stage(codes_s, scales_s, x_s, fragment, words, values, total):
        tx = T.get_thread_binding()
        for pair in T.unroll(tile.stage_blocks // 2):
            for half in T.unroll(2):
                for v in T.vectorized(4):
                    words[v] = codes_s[tx // 128, pair * 2 + half, (tx % 128) * 4 + v]
                T.call_extern(
                    "handle",
                    "di_unpack_mxfp4_to_e4m3",
                    T.access_ptr(words, "r"),
                    scales_s[tx // 128, pair * 2 + half, (tx % 128) // 4],
                    half,
                    T.access_ptr(values, "w"),
                )
            for i, j in T.Parallel(rows, PAIR):
                fragment[i, j] = T.call_extern(
                    "float8_e4m3fn",
                    "di_at",
                    T.access_ptr(values, "r"),
                    (j // 16) * 8 + (i % 16) // 8 * 4 + j % 4,
                )
            T.gemm(
                fragment,
                x_s[:, pair * PAIR : (pair + 1) * PAIR],
                total,
                transpose_B=True,
                policy=T.GemmWarpPolicy.FullRow,
            )

    return multiply_stage


def routed_gemm_e4m3(tile: GemmTile, *, swiglu: bool) -> object:
    """Rows sorted by expert times their experts' matrices, tile by tile of a list on the device.

    With `swiglu` the gate and up rows are interleaved by 8; y is the activated product, half as
    wide, times the row's weight.
    """
    num_experts, row_blocks, blocks = T.dynamic("num_experts, row_blocks, blocks")
    num_pairs, size, num_tiles = T.dynamic("num_pairs, size, num_tiles")
    rows, tokens, groups, depth = (
        tile.weight_rows,
        tile.tokens,
        tile.warp_groups,
        tile.stage_blocks,
    )
    out_rows = rows // 2 if swiglu else rows
    width = out_rows // groups
    per_thread = rows * tokens // tile.threads
    multiply_stage = _macros(tile)

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
            fragment = T.alloc_fragment((rows, PAIR), "float8_e4m3fn")
            total = T.alloc_fragment((rows, tokens), "float32")
            words = T.alloc_local((4,), "uint32")
            values = T.alloc_local((64,), "float8_e4m3fn")
            factors = T.alloc_local((2,), "float32")
            sums = T.alloc_local((per_thread,), "float32")
            tx = T.get_thread_binding()
            expert = tiles[by, 0]
            first = tiles[by, 1]
            end = tiles[by, 2]
            T.call_extern("handle", "di_exit_if", end <= first)
            T.clear(total)
            for step in T.Pipelined(blocks // depth, num_stages=tile.stages):
                T.copy(
                    codes[
                        expert,
                        bx * groups : (bx + 1) * groups,
                        step * depth : (step + 1) * depth,
                        :,
                    ],
                    codes_s,
                )
                T.copy(
                    scales[
                        expert,
                        bx * groups : (bx + 1) * groups,
                        step * depth : (step + 1) * depth,
                        :,
                    ],
                    scales_s,
                )
                T.copy(x[first, step * depth * BLOCK], x_s)
                multiply_stage(codes_s, scales_s, x_s, fragment, words, values, total)
            for i, j in T.Parallel(rows, tokens):
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
                    expert,
                    bx * groups + tx // 128,
                    tx % 128 // 32 * 16 + tx % 32 // 4 + half * 8,
                ]
            for column in T.unroll(tokens // 8):
                for u in T.unroll(2):
                    token = column * 8 + (tx % 4) * 2 + u
                    if first + token < end:
                        if swiglu:
                            y_s[token, tx // 32 * 8 + tx % 32 // 4] = T.cast(
                                T.call_extern(
                                    "float32",
                                    "di_swiglu",
                                    sums[column * 4 + u] * (factors[0] * x_scales[first + token]),
                                    sums[column * 4 + 2 + u]
                                    * (factors[1] * x_scales[first + token]),
                                    limit,
                                    row_weights[first + token],
                                ),
                                "bfloat16",
                            )
                        else:
                            for half in T.unroll(2):
                                y_s[token, tx // 32 * 16 + tx % 32 // 4 + half * 8] = T.cast(
                                    sums[column * 4 + half * 2 + u]
                                    * (factors[half] * x_scales[first + token]),
                                    "bfloat16",
                                )
            for j, i in T.Parallel(tokens, out_rows):
                if first + j < end:
                    y[first + j, bx * groups + i // width, i % width] = y_s[j, i]

    return kernel
