# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Rows to experts and back: the plan, the copies in expert order, the sum over experts.

A pair is a row and one of its experts, number row * k + place. The plan sorts pairs by expert and
cuts each expert's pairs into tiles; pairs of one expert stand in no particular order, and no result
depends on it. Everything is built on the device, so a captured graph serves any routing; the number
of tiles launched is the bound `min(experts, pairs) + pairs // tile`. Columns come in eights, a
dimension of known size, without which TileLang does not copy 16 bytes at a time.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

MAX_EXPERTS = 1024
THREADS = 1024


def plan() -> object:
    """Order of the pairs and list of tiles, by one thread block.

    Experts outside 0 .. num_experts - 1 are nobody: their pairs get position -1.
    """
    num_pairs, num_tiles = T.dynamic("num_pairs, num_tiles")

    @T.prim_func
    def kernel(
        experts: T.Tensor((num_pairs,), "int32"),
        num_experts: T.int32,
        tile_rows: T.int32,
        order: T.Tensor((num_pairs,), "int32"),
        position: T.Tensor((num_pairs,), "int32"),
        tiles: T.Tensor((num_tiles, 3), "int32"),
    ):
        with T.Kernel(1, threads=THREADS):
            pairs_of = T.alloc_shared((MAX_EXPERTS,), "int32", scope="shared")
            pair_sum = T.alloc_shared((2, MAX_EXPERTS), "int32", scope="shared")
            tile_sum = T.alloc_shared((2, MAX_EXPERTS), "int32", scope="shared")
            mine = T.alloc_local((4,), "int32")
            expert = T.alloc_local((1,), "int32")
            slot = T.alloc_local((1,), "int32")
            tx = T.get_thread_binding()
            pairs_of[tx] = 0
            T.sync_threads()
            for step in T.serial(T.ceildiv(num_pairs, THREADS)):
                if step * THREADS + tx < num_pairs:
                    expert[0] = experts[step * THREADS + tx]
                    if expert[0] >= 0 and expert[0] < num_experts:
                        T.atomic_add(pairs_of[expert[0]], 1)
                    order[step * THREADS + tx] = -1
            T.sync_threads()
            mine[0] = pairs_of[tx]
            mine[1] = (mine[0] + tile_rows - 1) // tile_rows
            pair_sum[0, tx] = mine[0]
            tile_sum[0, tx] = mine[1]
            T.sync_threads()
            for level in T.unroll(10):
                mine[2] = pair_sum[level % 2, tx]
                mine[3] = tile_sum[level % 2, tx]
                if tx >= (1 << level):
                    mine[2] += pair_sum[level % 2, tx - (1 << level)]
                    mine[3] += tile_sum[level % 2, tx - (1 << level)]
                pair_sum[(level + 1) % 2, tx] = mine[2]
                tile_sum[(level + 1) % 2, tx] = mine[3]
                T.sync_threads()
            for index in T.serial(mine[1]):
                tiles[mine[3] - mine[1] + index, 0] = tx
                tiles[mine[3] - mine[1] + index, 1] = mine[2] - mine[0] + index * tile_rows
                tiles[mine[3] - mine[1] + index, 2] = mine[2]
            for step in T.serial(T.ceildiv(num_tiles, THREADS)):
                unused = tile_sum[0, MAX_EXPERTS - 1] + step * THREADS + tx
                if unused < num_tiles:
                    for column in T.unroll(3):
                        tiles[unused, column] = 0
            pairs_of[tx] = mine[2] - mine[0]
            T.sync_threads()
            for step in T.serial(T.ceildiv(num_pairs, THREADS)):
                if step * THREADS + tx < num_pairs:
                    expert[0] = experts[step * THREADS + tx]
                    if expert[0] >= 0 and expert[0] < num_experts:
                        slot[0] = T.atomic_add(pairs_of[expert[0]], 1, return_prev=True)
                        order[slot[0]] = step * THREADS + tx
                        position[step * THREADS + tx] = slot[0]
                    else:
                        position[step * THREADS + tx] = -1

    return kernel


def permute() -> object:
    """Rows and routing weights in the order of the plan; places without a pair stay unwritten."""
    num_rows, eighths, num_pairs = T.dynamic("num_rows, eighths, num_pairs")

    @T.prim_func
    def kernel(
        x: T.Tensor((num_rows, eighths, 8), "bfloat16"),
        weights: T.Tensor((num_pairs,), "float32"),
        order: T.Tensor((num_pairs,), "int32"),
        experts_per_row: T.int32,
        sorted_x: T.Tensor((num_pairs, eighths, 8), "bfloat16"),
        sorted_weights: T.Tensor((num_pairs,), "float32"),
    ):
        with T.Kernel(num_pairs, threads=128) as place:
            tx = T.get_thread_binding()
            pair = order[place]
            if pair >= 0:
                if tx == 0:
                    sorted_weights[place] = weights[pair]
                for step in T.serial(T.ceildiv(eighths, 128)):
                    if step * 128 + tx < eighths:
                        for v in T.vectorized(8):
                            sorted_x[place, step * 128 + tx, v] = x[
                                pair // experts_per_row, step * 128 + tx, v
                            ]

    return kernel


def combine(*, has_shared: bool) -> object:
    """Sum of each row's experts in their order, and of the shared expert, rounded once."""
    num_rows, eighths, num_pairs, k = T.dynamic("num_rows, eighths, num_pairs, k")

    @T.prim_func
    def kernel(
        outputs: T.Tensor((num_pairs, eighths, 8), "bfloat16"),
        position: T.Tensor((num_rows, k), "int32"),
        shared: T.Tensor((num_rows, eighths, 8), "bfloat16"),
        y: T.Tensor((num_rows, eighths, 8), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(eighths, 128), num_rows, threads=128) as (bx, row):
            tx = T.get_thread_binding()
            total = T.alloc_local((8,), "float32")
            values = T.alloc_local((8,), "bfloat16")
            column = bx * 128 + tx
            if column < eighths:
                for v in T.unroll(8):
                    total[v] = 0
                for place in T.serial(k):
                    slot = position[row, place]
                    if slot >= 0:
                        for v in T.vectorized(8):
                            values[v] = outputs[slot, column, v]
                        for v in T.unroll(8):
                            total[v] += T.cast(values[v], "float32")
                if has_shared:
                    for v in T.vectorized(8):
                        values[v] = shared[row, column, v]
                    for v in T.unroll(8):
                        total[v] += T.cast(values[v], "float32")
                for v in T.unroll(8):
                    values[v] = T.cast(total[v], "bfloat16")
                for v in T.vectorized(8):
                    y[row, column, v] = values[v]

    return kernel
