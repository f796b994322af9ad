# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Rows to experts and back: the plan, the copies in expert order, the sum over experts.

A pair is a row and one of its experts, number row * k + place. The plan sorts pairs by expert and
cuts each expert's pairs into tiles of two sizes; pairs of one expert stand in no particular order,
and no result depends on it. Everything is built on the device, so a captured graph serves any
routing; the number of tiles launched is the most any routing needs. Columns come in eights, a
dimension of known size, without which TileLang does not copy 16 bytes at a time.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

MAX_EXPERTS = 1024
THREADS = 1024

_SCAN = r"""
// Sum over the lanes of a warp up to this one.
__device__ __forceinline__ int di_warp_scan(int value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int lower = __shfl_up_sync(0xFFFFFFFFu, value, distance);
    if ((threadIdx.x & 31) >= distance) value += lower;
  }
  return value;
}
"""


def plan() -> object:
    """Order of the pairs and two lists of tiles, by one thread block.

    An expert's pairs fill large tiles; what is left takes a small tile where it fits, else one more
    large tile. With `small_rows` = 0 every tile is large. Experts outside 0 .. num_experts - 1 are
    nobody: their pairs get position -1. The flags of the products (`di_kernels.tile.shares`) are
    cleared along the way.
    """
    num_pairs, num_small, num_large = T.dynamic("num_pairs, num_small, num_large")
    num_flags = T.dynamic("num_flags")

    @T.macro
    def write_tiles(tiles, last, count, rows, first, end):
        """`count` tiles of this thread's expert, ending before `last`."""
        tx = T.get_thread_binding()
        for index in T.serial(count):
            tiles[last - count + index, 0] = tx
            tiles[last - count + index, 1] = first + index * rows
            tiles[last - count + index, 2] = end

    @T.macro
    def clear_tiles(tiles, capacity, used):
        tx = T.get_thread_binding()
        for step in T.serial(T.ceildiv(capacity, THREADS)):
            unused = used + step * THREADS + tx
            if unused < capacity:
                for column in T.unroll(3):
                    tiles[unused, column] = 0

    @T.prim_func
    def kernel(
        experts: T.Tensor((num_pairs,), "int32"),
        num_experts: T.int32,
        small_rows: T.int32,
        large_rows: T.int32,
        order: T.Tensor((num_pairs,), "int32"),
        position: T.Tensor((num_pairs,), "int32"),
        small_tiles: T.Tensor((num_small, 3), "int32"),
        large_tiles: T.Tensor((num_large, 3), "int32"),
        ready: T.Tensor((num_flags,), "int32"),
    ):
        with T.Kernel(1, threads=THREADS):
            T.import_source(_SCAN)
            pairs_of = T.alloc_shared((MAX_EXPERTS,), "int32", scope="shared")
            # Sums of warps of pairs, small and large tiles, then of all warps up to each.
            totals = T.alloc_shared((3, THREADS // 32), "int32", scope="shared")
            mine = T.alloc_local((3,), "int32")
            sum_to_here = T.alloc_local((3,), "int32")
            expert = T.alloc_local((1,), "int32")
            slot = T.alloc_local((1,), "int32")
            tx = T.get_thread_binding()
            pairs_of[tx] = 0
            for step in T.serial(T.ceildiv(num_flags, THREADS)):
                if step * THREADS + tx < num_flags:
                    ready[step * THREADS + tx] = 0
            T.sync_threads()
            for step in T.serial(T.ceildiv(num_pairs, THREADS)):
                if step * THREADS + tx < num_pairs:
                    expert[0] = experts[step * THREADS + tx]
                    if expert[0] >= 0 and expert[0] < num_experts:
                        T.atomic_add(pairs_of[expert[0]], 1)
                    order[step * THREADS + tx] = -1
            T.sync_threads()
            mine[0] = pairs_of[tx]
            left = mine[0] % large_rows
            mine[1] = T.if_then_else(left > 0 and left <= small_rows, 1, 0)
            mine[2] = mine[0] // large_rows + T.if_then_else(left > small_rows, 1, 0)
            for kind in T.unroll(3):
                sum_to_here[kind] = T.call_extern("int32", "di_warp_scan", mine[kind])
                if tx % 32 == 31:
                    totals[kind, tx // 32] = sum_to_here[kind]
            T.sync_threads()
            if tx < 96:
                totals[tx // 32, tx % 32] = T.call_extern(
                    "int32", "di_warp_scan", totals[tx // 32, tx % 32]
                )
            T.sync_threads()
            if tx >= 32:
                for kind in T.unroll(3):
                    sum_to_here[kind] += totals[kind, tx // 32 - 1]
            end = sum_to_here[0]
            begin = end - mine[0]
            write_tiles(large_tiles, sum_to_here[2], mine[2], large_rows, begin, end)
            write_tiles(
                small_tiles, sum_to_here[1], mine[1], small_rows, begin + mine[2] * large_rows, end
            )
            clear_tiles(large_tiles, num_large, totals[2, THREADS // 32 - 1])
            clear_tiles(small_tiles, num_small, totals[1, THREADS // 32 - 1])
            pairs_of[tx] = begin
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


def permute(*, overlaps_launch: bool) -> object:
    """Rows and routing weights in the order of the plan; places without a pair stay unwritten.

    With `overlaps_launch` the launch overlaps those around it (sm_90 and later); the next kernel
    may read the plan at once.
    """
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
            if overlaps_launch:
                # In this order: when the next kernel begins, the plan is there.
                T.pdl_sync()
                T.pdl_trigger()
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


def combine(*, has_shared: bool, overlaps_launch: bool) -> object:
    """Sum of each row's experts in their order, and of the shared expert, rounded once.

    With `overlaps_launch` the launch overlaps the kernel before it (sm_90 and later).
    """
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
            if overlaps_launch:
                T.pdl_sync()
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
