# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Hyper-connections: coefficients of a sub-layer from shares of their products.

Formulas: `di_kernels.ops.hyper_connections`; the shares: `di_kernels.tile.hyper_products`. They are
added up in an order that depends on their number alone, so no bit depends on other rows.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.hyper import COPIES, MAX_HIDDEN, MIXES, SHARES
from di_kernels.tile.hyper_connection_source import SINKHORN

# Warps that add shares up; the first makes the residual mix, the second the gates, those from there
# on norm the row.
_ADDING = 8
_FINISHING = 64
_NORMING = 640
_NORM_STEPS = -(-MAX_HIDDEN // 8 // _NORMING)
_LANES = SHARES // 4
# Shares that a thread has under way at a time; with the release's width they are all.
_LOADS = 2
_TURN = 32 * _ADDING // _LANES * _LOADS


@T.macro
def _add_shares(shares, sums_s, loaded, total, row, num_parts, tx):
    """Sums over the parts: those of a thread, then over the threads of a warp."""
    lane = tx % _LANES
    for v in T.unroll(4):
        total[v] = 0
    for turn in T.unroll(T.ceildiv(num_parts, _TURN), unroll_factor=1):
        for u in T.unroll(_LOADS):
            part = turn * _TURN + tx // _LANES * _LOADS + u
            for v in T.vectorized(4):
                loaded[u, v] = 0
            if part < num_parts:
                for v in T.vectorized(4):
                    loaded[u, v] = shares[row, part, lane, v]
        for u in T.unroll(_LOADS):
            for v in T.unroll(4):
                total[v] += loaded[u, v]
    for v in T.unroll(4):
        total[v] += T.shfl_xor(total[v], 8)
        total[v] += T.shfl_xor(total[v], 16)
    if tx % 32 < _LANES:
        for v in T.vectorized(4):
            sums_s[tx // 32, lane * 4 + v] = total[v]


def finish(*, has_norm: bool, overlaps_launch: bool) -> object:
    """Coefficients from the shares; with `has_norm` the collapsed rows at unit size too.

    The first warp makes the residual mix while the second makes the gates and the others norm the
    row. With `overlaps_launch` the launch overlaps the kernel before it (sm_90 and later).
    """
    num_rows, units, num_parts = T.dynamic("num_rows, units, num_parts")
    threads = _FINISHING + _NORMING if has_norm else 32 * _ADDING

    @T.prim_func
    def kernel(
        shares: T.Tensor((num_rows, num_parts, _LANES, 4), "float32"),
        collapsed: T.Tensor((num_rows, units, 8), "bfloat16"),
        norm_weight: T.Tensor((units, 8), "float32"),
        scale: T.Tensor((3,), "float32"),
        base: T.Tensor((MIXES,), "float32"),
        iterations: T.int32,
        eps: T.float32,
        norm_eps: T.float32,
        collapse_eps: T.float32,
        pre: T.Tensor((num_rows, COPIES), "float32"),
        post: T.Tensor((num_rows, COPIES), "float32"),
        residual: T.Tensor((num_rows, COPIES * COPIES), "float32"),
        normed: T.Tensor((num_rows, units, 8), "bfloat16"),
    ):
        with T.Kernel(num_rows, threads=threads) as row:
            T.import_source(SINKHORN)
            sums_s = T.alloc_shared((_ADDING, SHARES), "float32", scope="shared")
            squares_s = T.alloc_shared((_NORMING // 32,), "float32", scope="shared")
            loaded = T.alloc_local((_LOADS, 4), "float32")
            total = T.alloc_local((4,), "float32")
            coefficient = T.alloc_local((2,), "float32")
            norm = T.alloc_local((_NORM_STEPS, 8), "float32")
            values = T.alloc_local((_NORM_STEPS, 8), "bfloat16")
            tx = T.get_thread_binding()
            mix = tx % 32
            coefficient[0] = 0
            coefficient[1] = 0
            if tx < _FINISHING and mix < MIXES:
                coefficient[0] = scale[T.min(mix // COPIES, 2)]
                coefficient[1] = base[mix]
            if has_norm:
                for step in T.unroll(_NORM_STEPS):
                    unit = step * _NORMING + tx - _FINISHING
                    if tx >= _FINISHING and unit < units:
                        for u in T.unroll(2):
                            for v in T.vectorized(4):
                                norm[step, u * 4 + v] = norm_weight[unit, u * 4 + v]
            if overlaps_launch:
                T.pdl_sync()
            if has_norm:
                for step in T.unroll(_NORM_STEPS):
                    unit = step * _NORMING + tx - _FINISHING
                    if tx >= _FINISHING and unit < units:
                        for v in T.vectorized(8):
                            values[step, v] = collapsed[row, unit, v]
            if tx < 32 * _ADDING:
                _add_shares(shares, sums_s, loaded, total, row, num_parts, tx)
            if has_norm and tx >= _FINISHING:
                total[0] = 0
                for step in T.unroll(_NORM_STEPS):
                    if step * _NORMING + tx - _FINISHING < units:
                        for v in T.unroll(8):
                            total[0] += T.cast(values[step, v], "float32") * T.cast(
                                values[step, v], "float32"
                            )
                total[0] = T.warp_reduce_sum(total[0])
                if tx % 32 == 0:
                    squares_s[tx // 32 - _FINISHING // 32] = total[0]
            T.sync_threads()
            if tx < _FINISHING:
                total[0] = 0
                for warp in T.unroll(_ADDING):
                    total[0] += sums_s[warp, mix]
                total[1] = T.rsqrt(
                    T.shfl_sync(total[0], MIXES) / T.cast(COPIES * 8 * units, "float32") + norm_eps
                )
                total[0] = total[0] * total[1] * coefficient[0] + coefficient[1]
                if tx < 32:
                    total[1] = T.call_extern(
                        "float32", "di_sinkhorn", total[0], tx, iterations, eps
                    )
                    if tx >= 2 * COPIES and tx < MIXES:
                        residual[row, tx - 2 * COPIES] = total[1]
                else:
                    total[1] = 1.0 / (1.0 + T.exp(-total[0]))
                    if mix < COPIES:
                        pre[row, mix] = total[1] + eps
                    elif mix < 2 * COPIES:
                        post[row, mix - COPIES] = 2.0 * total[1]
            elif has_norm:
                total[0] = 0
                for warp in T.unroll(_NORMING // 32):
                    total[0] += squares_s[warp]
                total[1] = T.rsqrt(total[0] / T.cast(8 * units, "float32") + collapse_eps)
                for step in T.unroll(_NORM_STEPS):
                    unit = step * _NORMING + tx - _FINISHING
                    if unit < units:
                        for v in T.unroll(8):
                            values[step, v] = T.cast(
                                T.cast(values[step, v], "float32") * total[1] * norm[step, v],
                                "bfloat16",
                            )
                        for v in T.vectorized(8):
                            normed[row, unit, v] = values[step, v]

    return kernel
