# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""RMSNorm and rotation of rows.

Rows are read as units of 8 bfloat16 at a stride, so that columns of a wider matrix serve without a
copy. Sums of squares run in a fixed order: 8 neighbouring channels, units at distance 128, pairs of
such sums at distance 1, 2, 4, 8 and 16, the sums of warps in turn. So a row has the same bits among
any other rows, and, up to 512 channels, in the kernels of `entry_writers`.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.lane_source import LANES, ROWS

NORM_UNITS = 5
"""Units of 8 channels that a thread of `rms_norm` holds at most."""

NORM_THREADS = 128
_ROPE_THREADS = 128


def rms_norm(out_dtype: str, *, has_weight: bool) -> object:
    """One row per thread block, read once; statistics and weight product in float32.

    Args:
        out_dtype: `bfloat16` or `float32`.
        has_weight: Multiply by `weight`; otherwise it is not read.
    """
    num_rows, num_units, weight_units, out_units = T.dynamic(
        "num_rows, num_units, weight_units, out_units"
    )
    store = 8 if out_dtype == "bfloat16" else 4

    @T.prim_func
    def kernel(
        x: T.Tensor((num_units, 8), "bfloat16"),
        row_units: T.int32,
        width: T.int32,  # units of a row
        weight: T.Tensor((weight_units, 4), "float32"),
        eps: T.float32,
        y: T.Tensor((num_rows, out_units, 8), out_dtype),
    ):
        with T.Kernel(num_rows, threads=NORM_THREADS) as row:
            T.import_source(LANES + ROWS)
            tx = T.get_thread_binding()
            halves = T.alloc_local((NORM_UNITS * 8,), "bfloat16")
            weights = T.alloc_local((NORM_UNITS * 8,), "float32")
            values = T.alloc_local((8,), "float32")
            sums = T.alloc_shared((NORM_THREADS // 32,), "float32", scope="shared")
            total = T.alloc_local((1,), "float32")
            out = T.alloc_local((8,), out_dtype)
            for step in T.unroll(NORM_UNITS):
                if step * NORM_THREADS + tx < width:
                    for v in T.vectorized(8):
                        halves[step * 8 + v] = x[row * row_units + step * NORM_THREADS + tx, v]
                    if has_weight:
                        for part in T.unroll(2):
                            for v in T.vectorized(4):
                                weights[step * 8 + part * 4 + v] = weight[
                                    (step * NORM_THREADS + tx) * 2 + part, v
                                ]
            total[0] = 0
            for step in T.unroll(NORM_UNITS):
                if step * NORM_THREADS + tx < width:
                    for v in T.unroll(8):
                        values[v] = T.cast(halves[step * 8 + v], "float32")
                    total[0] += T.call_extern("float32", "di_squares", T.access_ptr(values, "r"))
            total[0] = T.call_extern("float32", "di_sum_over_warp", total[0])
            if tx % 32 == 0:
                sums[tx // 32] = total[0]
            T.sync_threads()
            total[0] = sums[0]
            for warp in T.unroll(1, NORM_THREADS // 32):
                total[0] += sums[warp]
            total[0] = T.call_extern("float32", "di_inverse_rms", total[0], width * 8, eps)
            for step in T.unroll(NORM_UNITS):
                if step * NORM_THREADS + tx < width:
                    for v in T.unroll(8):
                        values[v] = T.cast(halves[step * 8 + v], "float32") * total[0]
                        if has_weight:
                            values[v] = values[v] * weights[step * 8 + v]
                        out[v] = T.cast(values[v], out_dtype)
                    for part in T.unroll(8 // store):
                        for v in T.vectorized(store):
                            y[row, step * NORM_THREADS + tx, part * store + v] = out[
                                part * store + v
                            ]

    return kernel


def apply_rope() -> object:
    """Copy of rows of heads whose last channels are rotated, two units of 8 channels per thread."""
    num_rows, num_units, width = T.dynamic("num_rows, num_units, width")
    rotary_units = T.dynamic("rotary_units")

    @T.prim_func
    def kernel(
        x: T.Tensor((num_units, 8), "bfloat16"),
        row_units: T.int32,
        head_units: T.int32,
        cosine: T.Tensor((num_rows, rotary_units, 4), "float32"),
        sine: T.Tensor((num_rows, rotary_units, 4), "float32"),
        y: T.Tensor((num_rows, width, 8), "bfloat16"),
    ):
        with T.Kernel(num_rows, T.ceildiv(width, 2 * _ROPE_THREADS), threads=_ROPE_THREADS) as (
            row,
            block,
        ):
            T.import_source(LANES + ROWS)
            halves = T.alloc_local((2, 8), "bfloat16")
            values = T.alloc_local((8,), "float32")
            cosines = T.alloc_local((2, 8), "float32")
            sines = T.alloc_local((2, 8), "float32")
            # Where the tables have the unit's first pair.
            turned = T.alloc_local((2,), "int32")
            first = block * 2 * _ROPE_THREADS + T.get_thread_binding()
            for u in T.unroll(2):
                unit = first + u * _ROPE_THREADS
                turned[u] = -1
                if unit < width:
                    for v in T.vectorized(8):
                        halves[u, v] = x[row * row_units + unit, v]
                    turned[u] = (T.truncmod(unit, head_units) - head_units) * 2 + rotary_units
                if turned[u] >= 0:
                    for part in T.unroll(2):
                        for v in T.vectorized(4):
                            cosines[u, part * 4 + v] = cosine[row, turned[u] + part, v]
                        for v in T.vectorized(4):
                            sines[u, part * 4 + v] = sine[row, turned[u] + part, v]
            for u in T.unroll(2):
                if turned[u] >= 0:
                    for v in T.unroll(8):
                        values[v] = T.cast(halves[u, v], "float32")
                    T.call_extern(
                        "handle",
                        "di_rotate<8>",
                        T.access_ptr(values, "rw"),
                        T.access_ptr(cosines[u, 0], "r", 8),
                        T.access_ptr(sines[u, 0], "r", 8),
                    )
                    for v in T.unroll(8):
                        halves[u, v] = T.cast(values[v], "bfloat16")
                if first + u * _ROPE_THREADS < width:
                    for v in T.vectorized(8):
                        y[row, first + u * _ROPE_THREADS, v] = halves[u, v]

    return kernel
