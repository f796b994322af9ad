# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernel below as its own language.)
"""MXFP8 products of few rows, written so that consecutive launches overlap.

At few rows a product is a stream of weights, and a third of its time would be the launch, the first
load and the last. So the launch does not wait for the kernel before it: a producer warp first fills
the pipeline with weights, which nobody writes, then waits (programmatic dependent launch), then
loads its rows of x. The next kernel may start once every block of this one runs.

Parts of the columns are the blocks of a cluster. Their float32 sums stay in shared memory, and
every block adds a share of all parts' sums, first to last: a fixed order without a second launch.

Buffers as in `di_kernels.tile.gemm`. sm_90 and later.
"""

import tilelang.language as T

from di_kernels.tile.cuda_source import COMMON, PEERS, WEIGHTS
from di_kernels.tile.gemm import unpack_macro
from di_kernels.tile.gemm_tile import BLOCK, CODE_WORDS, SCALE_WORDS, GemmTile

_PRODUCERS = 32


def _multiply_macro(tile: GemmTile):
    unpack = unpack_macro(tile)
    rows, groups = tile.weight_rows, tile.warp_groups
    policy = T.GemmWarpPolicy.FullRow

    @T.macro
    def one_after_another(codes_s, scales_s, x_s, stage, fragment, words, values, total):
        for block in T.unroll(tile.stage_blocks):
            unpack(codes_s, scales_s, stage * groups, block, fragment, words, values)
            T.gemm(
                fragment,
                x_s[stage, :, block * BLOCK : (block + 1) * BLOCK],
                total,
                transpose_B=True,
                policy=policy,
            )

    @T.macro
    def overlapped(codes_s, scales_s, x_s, stage, fragment, words, values, total):
        other = T.alloc_fragment((rows, BLOCK), "bfloat16")
        for pair in T.unroll(tile.stage_blocks // 2):
            unpack(codes_s, scales_s, stage * groups, pair * 2, fragment, words, values)
            T.wgmma_gemm(
                fragment,
                x_s[stage, :, pair * 2 * BLOCK : (pair * 2 + 1) * BLOCK],
                total,
                transpose_B=True,
                policy=policy,
            )
            T.wait_wgmma(1)
            unpack(codes_s, scales_s, stage * groups, pair * 2 + 1, other, words, values)
            T.wgmma_gemm(
                other,
                x_s[stage, :, (pair * 2 + 1) * BLOCK : (pair * 2 + 2) * BLOCK],
                total,
                transpose_B=True,
                policy=policy,
            )
            T.wait_wgmma(1)
        T.wait_wgmma(0)

    return overlapped if tile.overlaps else one_after_another


def few_rows_linear(tile: GemmTile, cluster: int = 1, *, overlaps_launch: bool = True) -> object:
    """Block-diagonal product: group g of every row with matrix g; one group is a plain linear.

    Args:
        tile: How the work is cut; `tile.threads` threads multiply.
        cluster: Parts of the columns, as blocks of a cluster; 1 for none.
        overlaps_launch: Start before the kernel before it is done. False to measure what it gains.
    """
    num_groups, row_blocks, blocks = T.dynamic("num_groups, row_blocks, blocks")
    num_rows, size = T.dynamic("num_rows, size")
    code_words, scale_words = CODE_WORDS[tile.weight], SCALE_WORDS[tile.weight]
    rows, tokens, groups = tile.weight_rows, tile.tokens, tile.warp_groups
    depth, stages, consumers = tile.stage_blocks, tile.stages, tile.threads
    multiply_stage = _multiply_macro(tile)
    share = rows // cluster
    quads = tokens * share // 4

    @T.macro
    def load_weights(codes, scales, codes_s, scales_s, full, group, first_block, column, stage):
        for g in T.unroll(groups):
            T.tma_copy(
                codes[group, first_block + g, column : column + depth, :],
                codes_s[stage * groups + g, :, :],
                barrier=full[stage],
            )
            T.tma_copy(
                scales[group, first_block + g, column : column + depth, :],
                scales_s[stage * groups + g, :, :],
                barrier=full[stage],
            )

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_groups, row_blocks, blocks, code_words), "uint32"),
        scales: T.Tensor((num_groups, row_blocks, blocks, scale_words), "uint32"),
        x: T.Tensor((num_rows, size), "bfloat16"),
        part_steps: T.int32,
        y: T.Tensor((1, num_rows, num_groups, row_blocks, BLOCK), "bfloat16"),
    ):
        with T.Kernel(
            row_blocks // groups,
            T.ceildiv(num_rows, tokens),
            num_groups * cluster,
            threads=consumers + _PRODUCERS,
            cluster_dims=(1, 1, cluster) if cluster > 1 else None,
        ) as (bx, by, bz):
            T.import_source(COMMON + WEIGHTS + PEERS)
            if tile.blocks_per_sm > 1:
                T.annotate_min_blocks_per_sm(tile.blocks_per_sm)
            codes_s = T.alloc_shared((stages * groups, depth, code_words), "uint32")
            scales_s = T.alloc_shared((stages * groups, depth, scale_words), "uint32")
            x_s = T.alloc_shared((stages, tokens, depth * BLOCK), "bfloat16")
            sums_s = T.alloc_shared((tokens, rows), "float32")
            fragment = T.alloc_fragment((rows, BLOCK), "bfloat16")
            total = T.alloc_fragment((rows, tokens), "float32")
            words = T.alloc_local((code_words // 128,), "uint32")
            values = T.alloc_local((32,), "bfloat16")
            quad = T.alloc_local((4,), "float32")
            full = T.alloc_barrier(arrive_count=[_PRODUCERS] * stages)
            free = T.alloc_barrier(arrive_count=[consumers] * stages)
            tx = T.get_thread_binding()
            group = bz // cluster
            part = bz % cluster
            first_block = bx * groups
            begin = part * part_steps
            count = T.min(part_steps, blocks // depth - begin)
            if overlaps_launch:
                T.pdl_trigger()
            if tx >= consumers:
                for step in T.serial(T.min(count, stages)):
                    load_weights(
                        codes, scales, codes_s, scales_s, full, group, first_block,
                        (begin + step) * depth, step,
                    )  # fmt: skip
                if overlaps_launch:
                    T.pdl_sync()
                for step in T.serial(count):
                    if step >= stages:
                        T.barrier_wait(free[step % stages], (step // stages - 1) & 1)
                        load_weights(
                            codes, scales, codes_s, scales_s, full, group, first_block,
                            (begin + step) * depth, step % stages,
                        )  # fmt: skip
                    T.tma_copy(
                        x[
                            by * tokens : by * tokens + tokens,
                            (group * blocks + (begin + step) * depth) * BLOCK : (
                                group * blocks + (begin + step + 1) * depth
                            )
                            * BLOCK,
                        ],
                        x_s[step % stages, :, :],
                        barrier=full[step % stages],
                    )
                    T.barrier_arrive(full[step % stages])
            else:
                T.clear(total)
                for step in T.serial(count):
                    T.barrier_wait(full[step % stages], (step // stages) & 1)
                    multiply_stage(
                        codes_s, scales_s, x_s, step % stages, fragment, words, values, total
                    )
                    T.barrier_arrive(free[step % stages])
            if tx < consumers:
                for i, j in T.Parallel(rows, tokens):
                    sums_s[j, i] = total[i, j]
            if cluster > 1:
                T.call_extern("handle", "di_sync_peers")
            else:
                T.sync_threads()
            for step in T.serial(T.ceildiv(quads, consumers)):
                place = step * consumers + tx
                token = place // (share // 4)
                row = part * share + place % (share // 4) * 4
                if tx < consumers and place < quads and by * tokens + token < num_rows:
                    for v in T.unroll(4):
                        quad[v] = sums_s[token, row + v]
                    if cluster > 1:
                        T.call_extern(
                            "handle",
                            "di_sum_of_peers",
                            T.access_ptr(sums_s[token, row], "r", 4),
                            cluster,
                            T.access_ptr(quad, "w"),
                        )
                    for v in T.vectorized(4):
                        y[
                            0,
                            by * tokens + token,
                            group,
                            first_block + row // BLOCK,
                            row % BLOCK + v,
                        ] = quad[v]
            if cluster > 1:
                T.call_extern("handle", "di_sync_peers")

    return kernel
