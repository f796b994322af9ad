# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Hyper-connections where nothing has to be summed over columns but one norm: collapse and expand.

Sums over copies are rounded after every step, in the order of the reference with
`batch_invariant=True`, so `hc_expand` and the collapsed rows have its bits.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.hyper import COPIES, MAX_HIDDEN
from di_kernels.tile.hyper_connection_source import STORE

_EXPAND_THREADS = 128
_COLLAPSE_THREADS = 640
_STEPS = -(-MAX_HIDDEN // 8 // _COLLAPSE_THREADS)


def expand() -> object:
    """New streams: copy j is post[j] * y + sum over i of residual[i, j] * x[i]."""
    num_rows, units = T.dynamic("num_rows, units")

    @T.prim_func
    def kernel(
        y: T.Tensor((num_rows, units, 8), "bfloat16"),
        x: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        post: T.Tensor((num_rows, COPIES), "float32"),
        residual: T.Tensor((num_rows, COPIES, COPIES), "float32"),
        streams: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(units, _EXPAND_THREADS), num_rows, threads=_EXPAND_THREADS) as (
            bx,
            row,
        ):
            T.import_source(STORE)
            values = T.alloc_local((COPIES + 1, 8), "bfloat16")
            rounded = T.alloc_local((8,), "bfloat16")
            total = T.alloc_local((8,), "float32")
            unit = bx * _EXPAND_THREADS + T.get_thread_binding()
            if unit < units:
                for v in T.vectorized(8):
                    values[COPIES, v] = y[row, unit, v]
                for copy in T.unroll(COPIES):
                    for v in T.vectorized(8):
                        values[copy, v] = x[row, copy, unit, v]
                for copy in T.unroll(COPIES):
                    for v in T.unroll(8):
                        total[v] = T.ieee_mul(post[row, copy], T.cast(values[COPIES, v], "float32"))
                    for source in T.unroll(COPIES):
                        for v in T.unroll(8):
                            total[v] = T.ieee_add(
                                total[v],
                                T.ieee_mul(
                                    residual[row, source, copy],
                                    T.cast(values[source, v], "float32"),
                                ),
                            )
                    for v in T.vectorized(8):
                        rounded[v] = T.cast(total[v], "bfloat16")
                    T.call_extern(
                        "handle",
                        "di_store<8>",
                        T.address_of(streams[row, copy, unit, 0]),
                        T.access_ptr(rounded, "r"),
                    )

    return kernel


def collapse_norm() -> object:
    """Weighted sum of the copies, rounded to bfloat16, then RMSNorm; one block per row."""
    num_rows, units = T.dynamic("num_rows, units")

    @T.prim_func
    def kernel(
        x: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        pre: T.Tensor((num_rows, COPIES), "float32"),
        norm_weight: T.Tensor((units, 8), "float32"),
        eps: T.float32,
        normed: T.Tensor((num_rows, units, 8), "bfloat16"),
    ):
        with T.Kernel(num_rows, threads=_COLLAPSE_THREADS) as row:
            T.annotate_min_blocks_per_sm(2)
            squares_s = T.alloc_shared((_COLLAPSE_THREADS // 32,), "float32", scope="shared")
            values = T.alloc_local((COPIES, 8), "bfloat16")
            rounded = T.alloc_local((_STEPS, 8), "bfloat16")
            weights = T.alloc_local((_STEPS, 8), "float32")
            total = T.alloc_local((8,), "float32")
            square = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            square[0] = 0
            for step in T.unroll(_STEPS):
                unit = step * _COLLAPSE_THREADS + tx
                if unit < units:
                    for copy in T.unroll(COPIES):
                        for v in T.vectorized(8):
                            values[copy, v] = x[row, copy, unit, v]
                    for u in T.unroll(2):
                        for v in T.vectorized(4):
                            weights[step, u * 4 + v] = norm_weight[unit, u * 4 + v]
                    for v in T.unroll(8):
                        total[v] = T.ieee_mul(pre[row, 0], T.cast(values[0, v], "float32"))
                    for copy in T.unroll(1, COPIES):
                        for v in T.unroll(8):
                            total[v] = T.ieee_add(
                                total[v],
                                T.ieee_mul(pre[row, copy], T.cast(values[copy, v], "float32")),
                            )
                    for v in T.unroll(8):
                        rounded[step, v] = T.cast(total[v], "bfloat16")
                        total[v] = T.cast(rounded[step, v], "float32")
                        square[0] += total[v] * total[v]
            square[0] = T.warp_reduce_sum(square[0])
            if tx % 32 == 0:
                squares_s[tx // 32] = square[0]
            T.sync_threads()
            square[0] = 0
            for warp in T.unroll(_COLLAPSE_THREADS // 32):
                square[0] += squares_s[warp]
            square[0] = T.rsqrt(square[0] / T.cast(8 * units, "float32") + eps)
            for step in T.unroll(_STEPS):
                unit = step * _COLLAPSE_THREADS + tx
                if unit < units:
                    for v in T.unroll(8):
                        rounded[step, v] = T.cast(
                            T.cast(rounded[step, v], "float32") * square[0] * weights[step, v],
                            "bfloat16",
                        )
                    for v in T.vectorized(8):
                        normed[row, unit, v] = rounded[step, v]

    return kernel
