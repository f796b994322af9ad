# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Hyper-connections: the coefficients of a sub-layer, and the step from one sub-layer to the next.

Formulas: `di_kernels.ops.hyper_connections`. Two launches. In the first a thread block takes 64
rows and some chunks of 32 columns of all four copies: it may spread the sub-layer's output over the
streams first (`has_expand`), and leaves its share of the 24 products and of the sums of squares. In
the second a block per row adds the shares in order, finishes the coefficients and, with
`has_norm`, scales the collapsed row to unit size. No share depends on other rows.

The product is in float32: a float32 factor is the sum of three bfloat16 numbers without remainder
(8 + 8 + 8 bits), bfloat16 streams are exact, so three matrix instructions per block of columns
multiply exactly and sum in float32. Elementwise sums are rounded after every step, in the order of
the reference with `batch_invariant=True`.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.hyper import COLUMNS, COPIES, MAX_HIDDEN, ROWS, SHARES
from di_kernels.tile.hyper_connection_source import SINKHORN, STORE

MIXES = (2 + COPIES) * COPIES
_WIDTH = COPIES * COLUMNS
_CHUNKS = COLUMNS // 8
_THREADS = 256
# The product's columns, filled up to 32 that nobody reads.
_PIECE = 32
# Coefficients of a row in shared memory, in an order without bank conflicts.
_WEIGHTS = 28
_QUADS = MIXES * _WIDTH // 4 // _THREADS
_REDUCING = 512
_GROUPS = _REDUCING // SHARES
_LOADS = 10
_NORMING = _REDUCING - 32
_NORM_STEPS = -(-MAX_HIDDEN // 8 // _NORMING)


@T.macro
def _load_factors(fn, quads, chunk, tx):
    """A block's columns of the 24 factors, four values at a time."""
    for step in T.unroll(_QUADS):
        index = step * _THREADS + tx
        column = index % (_WIDTH // 4) * 4
        for v in T.vectorized(4):
            quads[step, v] = fn[
                index // (_WIDTH // 4),
                column // COLUMNS,
                chunk * _CHUNKS + column % COLUMNS // 8,
                column % 8 + v,
            ]


@T.macro
def _split_factors(quads, pieces_s, tx):
    """The same as three bfloat16 numbers each."""
    for step in T.unroll(_QUADS):
        index = step * _THREADS + tx
        for piece in T.unroll(3):
            for v in T.vectorized(4):
                pieces_s[piece, index // (_WIDTH // 4), index % (_WIDTH // 4) * 4 + v] = T.cast(
                    quads[step, v], "bfloat16"
                )
            for v in T.unroll(4):
                quads[step, v] = quads[step, v] - T.cast(
                    T.cast(quads[step, v], "bfloat16"), "float32"
                )


@T.macro
def _multiply(x_s, pieces_s, piece, product):
    T.gemm(
        x_s,
        pieces_s[piece, :, :],
        product,
        transpose_B=True,
        policy=T.GemmWarpPolicy.FullRow,
    )


@T.macro
def _add_weighted(total, weight, values, copy):
    """Adds weight * values[copy] to the total, both steps rounded."""
    for v in T.unroll(8):
        total[v] = T.ieee_add(total[v], T.ieee_mul(weight, T.cast(values[copy, v], "float32")))


@T.macro
def _stage_weights(residual, post, pre, weights_s, row, num_rows, item, lane):
    """Coefficients of the block's rows."""
    weights = T.alloc_local((2, COPIES), "float32")
    for i in T.unroll(2):
        for v in T.vectorized(COPIES):
            weights[i, v] = 0
    if row < num_rows:
        for v in T.vectorized(COPIES):
            weights[0, v] = residual[row, lane, v]
        if lane == 0:
            for v in T.vectorized(COPIES):
                weights[1, v] = post[row, v]
        if lane == 1:
            for v in T.vectorized(COPIES):
                weights[1, v] = pre[row, v]
    for v in T.vectorized(COPIES):
        weights_s[item, lane * COPIES + v] = weights[0, v]
    if lane < 2:
        for v in T.vectorized(COPIES):
            weights_s[item, (COPIES + lane) * COPIES + v] = weights[1, v]


def partial_mixes(*, has_expand: bool, overlaps_launch: bool) -> object:
    """Shares of products and squares; with `has_expand` new streams and collapsed rows too."""
    num_rows, units, num_parts = T.dynamic("num_rows, units, num_parts")

    @T.prim_func
    def kernel(
        y: T.Tensor((num_rows, units, 8), "bfloat16"),
        x: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        post: T.Tensor((num_rows, COPIES), "float32"),
        residual: T.Tensor((num_rows, COPIES, COPIES), "float32"),
        pre: T.Tensor((num_rows, COPIES), "float32"),
        fn: T.Tensor((MIXES, COPIES, units, 8), "float32"),
        part_chunks: T.int32,
        streams: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        collapsed: T.Tensor((num_rows, units, 8), "bfloat16"),
        shares: T.Tensor((num_rows, num_parts, SHARES), "float32"),
    ):
        with T.Kernel(num_parts, T.ceildiv(num_rows, ROWS), threads=_THREADS) as (part, tile):
            T.import_source(STORE)
            T.annotate_min_blocks_per_sm(2)
            x_s = T.alloc_shared((ROWS, _WIDTH), "bfloat16")
            pieces_s = T.alloc_shared((3, _PIECE, _WIDTH), "bfloat16")
            # One chain of sums for each piece of the factors.
            product = T.alloc_fragment((ROWS, _PIECE), "float32")
            product_middle = T.alloc_fragment((ROWS, _PIECE), "float32")
            product_low = T.alloc_fragment((ROWS, _PIECE), "float32")
            values = T.alloc_local((COPIES + 1, 8), "bfloat16")
            stream = T.alloc_local((1, 8), "bfloat16")
            weights_s = T.alloc_shared((ROWS, _WEIGHTS), "float32", scope="shared")
            total = T.alloc_local((8,), "float32")
            sum_of_copies = T.alloc_local((8,), "float32")
            quads = T.alloc_local((_QUADS, 4), "float32")
            square = T.alloc_local((2,), "float32")
            tx = T.get_thread_binding()
            if overlaps_launch:
                T.pdl_trigger()
            item, lane = tx // _CHUNKS, tx % _CHUNKS
            row = tile * ROWS + item
            square[0] = 0
            square[1] = 0
            for copy in T.unroll(COPIES + 1):
                for v in T.vectorized(8):
                    values[copy, v] = T.cast(0, "bfloat16")
            T.clear(product)
            T.clear(product_middle)
            T.clear(product_low)
            # Expanding leaves no registers for a loop.
            for step in T.serial(1 if has_expand else part_chunks):
                chunk = part if has_expand else part * part_chunks + step
                unit = chunk * _CHUNKS + lane
                if row < num_rows:
                    for copy in T.unroll(COPIES):
                        for v in T.vectorized(8):
                            values[copy, v] = x[row, copy, unit, v]
                    if has_expand:
                        for v in T.vectorized(8):
                            values[COPIES, v] = y[row, unit, v]
                _load_factors(fn, quads, chunk, tx)
                if has_expand:
                    _stage_weights(residual, post, pre, weights_s, row, num_rows, item, lane)
                    T.sync_threads()
                for v in T.unroll(8):
                    sum_of_copies[v] = 0
                for copy in T.unroll(COPIES, unroll_factor=1 if has_expand else COPIES):
                    if not has_expand:
                        for v in T.vectorized(8):
                            stream[0, v] = values[copy, v]
                    else:
                        for v in T.unroll(8):
                            total[v] = T.ieee_mul(
                                weights_s[item, COPIES * COPIES + copy],
                                T.cast(values[COPIES, v], "float32"),
                            )
                        for source in T.unroll(COPIES):
                            _add_weighted(
                                total, weights_s[item, source * COPIES + copy], values, source
                            )
                        for v in T.vectorized(8):
                            stream[0, v] = T.cast(total[v], "bfloat16")
                        if row < num_rows:
                            T.call_extern(
                                "handle",
                                "di_store<8>",
                                T.address_of(streams[row, copy, unit, 0]),
                                T.access_ptr(stream, "r"),
                            )
                        # The first product is added to zero: its bits, but for the sign of a zero.
                        _add_weighted(
                            sum_of_copies, weights_s[item, (COPIES + 1) * COPIES + copy], stream, 0
                        )
                    for v in T.unroll(8):
                        total[v] = T.cast(stream[0, v], "float32")
                        square[0] += total[v] * total[v]
                    for v in T.vectorized(8):
                        x_s[item, copy * COLUMNS + lane * 8 + v] = stream[0, v]
                if has_expand:
                    for v in T.vectorized(8):
                        stream[0, v] = T.cast(sum_of_copies[v], "bfloat16")
                    for v in T.unroll(8):
                        total[v] = T.cast(stream[0, v], "float32")
                        square[1] += total[v] * total[v]
                    if row < num_rows:
                        T.call_extern(
                            "handle",
                            "di_store<8>",
                            T.address_of(collapsed[row, unit, 0]),
                            T.access_ptr(stream, "r"),
                        )
                _split_factors(quads, pieces_s, tx)
                _multiply(x_s, pieces_s, 0, product)
                _multiply(x_s, pieces_s, 1, product_middle)
                _multiply(x_s, pieces_s, 2, product_low)
                T.sync_threads()
            for s in T.unroll(2):
                square[s] += T.shfl_xor(square[s], 1)
                square[s] += T.shfl_xor(square[s], 2)
                if lane == s and row < num_rows:
                    shares[row, part, MIXES + s] = square[s]
            for i, mix in T.Parallel(ROWS, _PIECE):
                if mix < MIXES and tile * ROWS + i < num_rows:
                    shares[tile * ROWS + i, part, mix] = product[i, mix] + (
                        product_middle[i, mix] + product_low[i, mix]
                    )

    return kernel


def finish_mixes(*, has_norm: bool, overlaps_launch: bool) -> object:
    """Coefficients from the shares; with `has_norm` the collapsed rows at unit size too.

    The first warp finishes the coefficients while the others norm the row. With `overlaps_launch`
    the launch overlaps the kernel before it (sm_90 and later).
    """
    num_rows, units, num_parts = T.dynamic("num_rows, units, num_parts")

    @T.prim_func
    def kernel(
        shares: T.Tensor((num_rows, num_parts, SHARES), "float32"),
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
        with T.Kernel(num_rows, threads=_REDUCING) as row:
            T.import_source(SINKHORN)
            sums_s = T.alloc_shared((_GROUPS, SHARES), "float32", scope="shared")
            total = T.alloc_local((2,), "float32")
            loaded = T.alloc_local((_LOADS,), "float32")
            coefficient = T.alloc_local((2,), "float32")
            norm = T.alloc_local((_NORM_STEPS, 8), "float32")
            values = T.alloc_local((_NORM_STEPS, 8), "bfloat16")
            tx = T.get_thread_binding()
            group, mix = tx // SHARES, tx % SHARES
            coefficient[0] = 0
            coefficient[1] = 0
            if tx < MIXES:
                coefficient[0] = scale[T.min(tx // COPIES, 2)]
                coefficient[1] = base[tx]
            if has_norm:
                for step in T.unroll(_NORM_STEPS):
                    unit = step * _NORMING + tx - 32
                    if tx >= 32 and unit < units:
                        for u in T.unroll(2):
                            for v in T.vectorized(4):
                                norm[step, u * 4 + v] = norm_weight[unit, u * 4 + v]
            if overlaps_launch:
                T.pdl_sync()
            if has_norm:
                for step in T.unroll(_NORM_STEPS):
                    unit = step * _NORMING + tx - 32
                    if tx >= 32 and unit < units:
                        for v in T.vectorized(8):
                            values[step, v] = collapsed[row, unit, v]
            total[0] = 0
            for step in T.serial(T.ceildiv(num_parts, _GROUPS * _LOADS)):
                for u in T.unroll(_LOADS):
                    part = (step * _LOADS + u) * _GROUPS + group
                    loaded[u] = 0
                    if part < num_parts:
                        loaded[u] = shares[row, part, mix]
                for u in T.unroll(_LOADS):
                    total[0] += loaded[u]
            sums_s[group, mix] = total[0]
            T.sync_threads()
            total[0] = 0
            if tx < 32:
                for g in T.unroll(_GROUPS):
                    total[0] += sums_s[g, tx]
                total[1] = T.rsqrt(
                    T.shfl_sync(total[0], MIXES) / T.cast(COPIES * 8 * units, "float32") + norm_eps
                )
                total[0] = total[0] * total[1] * coefficient[0] + coefficient[1]
                total[1] = 1.0 / (1.0 + T.exp(-total[0]))
                if tx < COPIES:
                    pre[row, tx] = total[1] + eps
                elif tx < 2 * COPIES:
                    post[row, tx - COPIES] = 2.0 * total[1]
                total[1] = T.call_extern("float32", "di_sinkhorn", total[0], tx, iterations, eps)
                if tx >= 2 * COPIES and tx < MIXES:
                    residual[row, tx - 2 * COPIES] = total[1]
            elif has_norm:
                for g in T.unroll(_GROUPS):
                    total[0] += sums_s[g, MIXES + 1]
                total[1] = T.rsqrt(total[0] / T.cast(8 * units, "float32") + collapse_eps)
                for step in T.unroll(_NORM_STEPS):
                    unit = step * _NORMING + tx - 32
                    if unit < units:
                        for v in T.unroll(8):
                            values[step, v] = T.cast(
                                T.cast(values[step, v], "float32") * total[1] * norm[step, v],
                                "bfloat16",
                            )
                        for v in T.vectorized(8):
                            normed[row, unit, v] = values[step, v]

    return kernel
