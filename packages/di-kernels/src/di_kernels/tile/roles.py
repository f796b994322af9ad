# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the macros below as its own language.)
"""Roles of a thread block that multiplies: one warp copies, the others convert and multiply.

The copying warp fills the pipeline with weights, which no kernel writes, before it waits for the
kernel before it (programmatic dependent launch), then copies its rows of x too. A stage is given
back once per multiplying warp. sm_90 and later.

Buffers of a pipeline, with `groups` tiles of 64 weight rows, `depth` blocks of 64 columns and rows
of x that are 128 bytes wide (`columns` values). A stage comes by three copies: codes as rows of 256
words, the most that a dimension of a copy takes, scales, and x as blocks of its columns:

| buffer | shape |
|---|---|
| codes | (matrices, weight rows / 64, blocks * 2, 256) |
| codes_s | (stages * groups, depth * 2, 256), to those that convert (.., depth, 512) |
| scales_s | (stages * groups, depth, words) |
| x | (blocks of columns, rows, columns) |
| x_s | (stages * depth * 64 / columns, tokens, columns) |
| full, free | barriers of every stage |

Steps are stages full of columns: `count` is their number, `base` how many went through the pipeline
before.
"""

import tilelang.language as T

from di_kernels.tile.gemm_tile import BLOCK, CODE_WORDS, RolesTile

WARP = 32
COPIED_WORDS = 256


def num_copying(tile: RolesTile) -> int:
    """Threads beside those that multiply: a warp, or a warp group that gives away registers."""
    return 128 if tile.moves_registers else WARP


def for_each(macro, buffers):
    """Runs a macro on every buffer; of a `for` in a kernel TileLang makes a loop of the kernel."""
    for buffer in buffers:
        macro(buffer)


def producer(tile: RolesTile, columns: int):
    """Macros of the copying warp: `fill` the pipeline with weights, `produce` all steps."""
    groups, depth = tile.warp_groups * tile.row_tiles, tile.stage_blocks
    stages, tokens = tile.stages, tile.tokens
    num_blocks = depth * BLOCK // columns
    parts = CODE_WORDS[tile.weight] // COPIED_WORDS

    @T.macro
    def load_weights(codes, scales, codes_s, scales_s, full, matrix, first_block, step, stage):
        T.tma_copy(
            codes[
                matrix,
                first_block : first_block + groups,
                step * depth * parts : (step + 1) * depth * parts,
                :,
            ],
            codes_s[stage * groups : (stage + 1) * groups, :, :],
            barrier=full[stage],
            leader_scope_threads=WARP,
            eviction_policy="evict_first",
        )
        T.tma_copy(
            scales[
                matrix, first_block : first_block + groups, step * depth : (step + 1) * depth, :
            ],
            scales_s[stage * groups : (stage + 1) * groups, :, :],
            barrier=full[stage],
            leader_scope_threads=WARP,
        )

    @T.macro
    def fill(codes, scales, codes_s, scales_s, full, matrix, first_block, count):
        for step in T.serial(T.min(count, stages)):
            load_weights(codes, scales, codes_s, scales_s, full, matrix, first_block, step, step)

    @T.macro
    def produce(
        codes, scales, x, codes_s, scales_s, x_s, full, free,
        matrix, first_block, first_row, first_step, count, base,
    ):  # fmt: skip
        for step in T.serial(count):
            place = base + step
            stage = place % stages
            if place >= stages:
                T.barrier_wait(free[stage], (place // stages - 1) & 1)
            # The first steps of all are those that `fill` loaded.
            if step >= stages or base > 0:
                load_weights(
                    codes, scales, codes_s, scales_s, full, matrix, first_block,
                    first_step + step, stage,
                )  # fmt: skip
            block = (first_step + step) * num_blocks
            T.tma_copy(
                x[block : block + num_blocks, first_row : first_row + tokens, :],
                x_s[stage * num_blocks : (stage + 1) * num_blocks, :, :],
                barrier=full[stage],
                leader_scope_threads=WARP,
            )
            T.barrier_arrive(full[stage])

    return fill, produce


@T.macro
def _release(free, stage):
    T.sync_warp()
    if T.get_thread_binding() % WARP == 0:
        T.barrier_arrive(free[stage])


def consumer(tile: RolesTile, unpack, columns: int):
    """A macro of the multiplying warps; `unpack` converts so many columns at a time.

    Two fragments take turns when products overlap: columns are converted while those before are
    multiplied. A tile that TileLang would cut into products of 8 tokens has none (`wgmma_source`).
    """
    groups, stages = tile.warp_groups * tile.row_tiles, tile.stages
    num_blocks = tile.stage_blocks * BLOCK // columns
    policy = T.GemmWarpPolicy.FullRow
    turns = [(block, row) for block in range(num_blocks) for row in range(tile.row_tiles)]

    @T.macro
    def multiply(codes_s, scales_s, x_s, stage, row_tile, block, fragment, words, values, total):
        first = stage * groups + row_tile * tile.warp_groups
        unpack(codes_s, scales_s, first, block, fragment, words, values)
        if tile.uses_own_wgmma:
            T.call_extern(
                "handle", "di_own_wgmma",
                T.access_ptr(x_s[stage * num_blocks + block, 0, 0], "r", tile.tokens * columns),
                T.access_ptr(values, "r"), T.access_ptr(total, "rw"),
            )  # fmt: skip
        elif tile.overlaps:
            T.wgmma_gemm(
                fragment, x_s[stage * num_blocks + block, :, :], total,
                transpose_B=True, policy=policy,
            )  # fmt: skip
            T.wait_wgmma(1)
        else:
            T.gemm(
                fragment, x_s[stage * num_blocks + block, :, :], total,
                transpose_B=True, policy=policy,
            )  # fmt: skip

    def multiply_stage(staged, stage, fragments, words, values, totals):
        for turn, (block, row) in enumerate(turns):
            fragment = fragments[turn % len(fragments)]
            multiply(*staged, stage, row, block, fragment, words, values, totals[row])

    @T.macro
    def keep(total):
        """Keeps the compiler from reading sums before the last wait."""
        T.warpgroup_fence_operand(total, 0, BLOCK * tile.tokens // 128)

    @T.macro
    def consume(codes_s, scales_s, x_s, full, free, count, base, fragments, words, values, totals):
        staged = (codes_s, scales_s, x_s)
        for step in T.serial(count):
            place = base + step
            T.barrier_wait(full[place % stages], (place // stages) & 1)
            multiply_stage(staged, place % stages, fragments, words, values, totals)
            if tile.overlaps:
                T.wait_wgmma(0)
            _release(free, place % stages)
        if tile.overlaps:
            for_each(keep, totals)

    return consume


def mma_sync_consumer(tile: RolesTile):
    """A macro of the multiplying warps for few tokens in bfloat16.

    wgmma would leave the tensor core idle and needs fences. `sums` are in its fragment's order.
    """
    groups, stages, depth = tile.warp_groups, tile.stages, tile.stage_blocks

    @T.macro
    def consume(codes_s, scales_s, x_s, full, free, count, base, words, values, sums):
        tx = T.get_thread_binding()
        offset = T.alloc_local((1,), "int32")
        offset[0] = T.call_extern("int32", "di_lane_offset")
        for step in T.serial(count):
            place = base + step
            stage = place % stages
            T.barrier_wait(full[stage], (place // stages) & 1)
            for block in T.unroll(depth):
                for v in T.vectorized(4):
                    words[v] = codes_s[stage * groups + tx // 128, block, (tx % 128) * 4 + v]
                T.call_extern(
                    "handle", "di_unpack_mxfp4", T.access_ptr(words, "r"),
                    scales_s[stage * groups + tx // 128, block, (tx % 128) // 4],
                    T.access_ptr(values, "w"),
                )  # fmt: skip
                T.call_extern(
                    "handle", f"di_multiply_few<{tile.tokens}>",
                    T.access_ptr(x_s[stage * depth + block, 0, 0], "r", tile.tokens * BLOCK),
                    offset[0], T.access_ptr(values, "r"), T.access_ptr(sums, "rw"),
                )  # fmt: skip
            _release(free, stage)

    return consume
