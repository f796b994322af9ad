# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Products and sums of squares of the hyper-connections' coefficients, by parts of the columns.

A thread block has 320 of the flattened streams' columns and 32 rows at a time, each of its ten
warps 32 columns: the factors stay in the registers that they were loaded to. What the warps have is
added up in order and left as a share of the row, whose bits depend on no other row. `of_transition`
makes the streams first, from the sub-layer's output, in the order of the batch-invariant reference.

The product is in float32: a float32 factor is the sum of three bfloat16 numbers without remainder
(8 + 8 + 8 bits), bfloat16 streams are exact, so three matrix instructions multiply exactly and sum
in float32. Measured times: `docs/performance/kernels.md`.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.hyper import COPIES, MIXES, PART_UNITS, ROWS, SHARES
from di_kernels.tile.hyper_connection_source import STORE
from di_kernels.tile.hyper_product_source import PRODUCT

_WARPS = PART_UNITS // 4
_THREADS = 32 * _WARPS
_GROUPS = MIXES // 8
_PIECES = 3 * _GROUPS * 4
_ADDING = ROWS * MIXES // 4
# Units of a copy; a row of a tile in shared memory, filled up so that neighbours meet other banks.
_COPY_UNITS = PART_UNITS // COPIES
_ROW_COLUMNS = 8 * PART_UNITS + 16


@T.macro
def _wait_for_kernel_before(overlaps_launch):
    """Only then may the next one start: it reads what others wrote."""
    if overlaps_launch:
        T.pdl_sync()
        T.pdl_trigger()


@T.macro
def _multiply_rows(values, first, pieces, products_s, half, tx):
    """A warp's products of 16 rows, from the lane's values of two of them."""
    sums = T.alloc_local((_GROUPS, 4), "float32")
    T.call_extern(
        "handle",
        "di_multiply",
        T.access_ptr(values[first, 0], "r", 8),
        T.access_ptr(values[first + 1, 0], "r", 8),
        T.access_ptr(pieces, "r"),
        T.access_ptr(sums, "w"),
    )
    for group in T.unroll(_GROUPS):
        for i in T.unroll(2):
            for v in T.vectorized(2):
                products_s[
                    (tx // 32 * ROWS + half * 16 + i * 8 + tx % 32 // 4) * MIXES
                    + group * 8
                    + tx % 4 * 2
                    + v
                ] = sums[group, i * 2 + v]


@T.macro
def _square_rows(values, first, squares, squares_s, half, tx):
    """A warp's sums of squares of the same rows."""
    T.call_extern(
        "handle",
        "di_square",
        T.access_ptr(values[first, 0], "r", 8),
        T.access_ptr(values[first + 1, 0], "r", 8),
        tx % 32 // 4,
        T.access_ptr(squares, "w"),
    )
    if tx % 4 == tx % 32 // 8:
        for i in T.unroll(2):
            squares_s[tx // 32, half * 16 + i * 8 + tx % 32 // 4] = squares[i]


@T.macro
def _store_shares(products_s, squares_s, shares, total, part, tile, num_rows, tx):
    """Sums over the warps."""
    sums = T.alloc_local((4,), "float32")
    addend = T.alloc_local((4,), "float32")
    row, quad = tx // (MIXES // 4), tx % (MIXES // 4)
    if tx < _ADDING:
        for v in T.unroll(4):
            sums[v] = 0
        for warp in T.unroll(_WARPS):
            for v in T.vectorized(4):
                addend[v] = products_s[warp * ROWS * MIXES + tx * 4 + v]
            for v in T.unroll(4):
                sums[v] += addend[v]
        if tile * ROWS + row < num_rows:
            for v in T.vectorized(4):
                shares[tile * ROWS + row, part, quad * 4 + v] = sums[v]
    elif tx < _ADDING + ROWS:
        total[0] = 0
        for warp in T.unroll(_WARPS):
            total[0] += squares_s[warp, tx - _ADDING]
        if tile * ROWS + tx - _ADDING < num_rows:
            shares[tile * ROWS + tx - _ADDING, part, MIXES] = total[0]


def of_streams(*, overlaps_launch: bool, blocks_at_once: int) -> object:
    """Shares of the 24 products and of the sum of squares.

    Registers are shared out so that `blocks_at_once` fit a multiprocessor: one where there are no
    more blocks than multiprocessors. The bits are the same.
    """
    num_rows, units, num_parts = T.dynamic("num_rows, units, num_parts")

    @T.macro
    def load_rows(x, values, tile, unit, num_rows, units, tx):
        for i in T.unroll(4):
            for v in T.vectorized(8):
                values[i, v] = T.cast(0, "bfloat16")
            if unit < units and tile * ROWS + i * 8 + tx % 32 // 4 < num_rows:
                for v in T.vectorized(8):
                    values[i, v] = x[tile * ROWS + i * 8 + tx % 32 // 4, unit, v]

    @T.prim_func
    def kernel(
        x: T.Tensor((num_rows, units, 8), "bfloat16"),
        fn: T.Tensor((MIXES, units, 8), "float32"),
        num_blocks: T.int32,
        shares: T.Tensor((num_rows, num_parts, SHARES), "float32"),
    ):
        with T.Kernel(num_parts, num_blocks, threads=_THREADS) as (part, block):
            T.import_source(PRODUCT)
            T.annotate_min_blocks_per_sm(blocks_at_once)
            products_s = T.alloc_shared((_WARPS * ROWS * MIXES,), "float32", scope="shared")
            squares_s = T.alloc_shared((_WARPS, ROWS), "float32", scope="shared")
            factors = T.alloc_local((_GROUPS, 8), "float32")
            pieces = T.alloc_local((_PIECES,), "uint32")
            values = T.alloc_local((4, 8), "bfloat16")
            squares = T.alloc_local((2,), "float32")
            total = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            unit = part * PART_UNITS + tx // 32 * 4 + tx % 4
            _wait_for_kernel_before(overlaps_launch)
            for group in T.unroll(_GROUPS):
                for u in T.unroll(2):
                    for v in T.vectorized(4):
                        factors[group, u * 4 + v] = 0
                    if unit < units:
                        for v in T.vectorized(4):
                            factors[group, u * 4 + v] = fn[
                                group * 8 + tx % 32 // 4, unit, u * 4 + v
                            ]
            load_rows(x, values, block, unit, num_rows, units, tx)
            T.call_extern(
                "handle", "di_split_factors", T.access_ptr(factors, "r"), T.access_ptr(pieces, "w")
            )
            for turn in T.serial(T.ceildiv(T.ceildiv(num_rows, ROWS) - block, num_blocks)):
                tile = block + turn * num_blocks
                for half in T.unroll(2):
                    if tile * ROWS + half * 16 < num_rows:
                        _multiply_rows(values, half * 2, pieces, products_s, half, tx)
                        _square_rows(values, half * 2, squares, squares_s, half, tx)
                if (tile + num_blocks) * ROWS < num_rows:
                    load_rows(x, values, tile + num_blocks, unit, num_rows, units, tx)
                T.sync_threads()
                _store_shares(products_s, squares_s, shares, total, part, tile, num_rows, tx)
                T.sync_threads()

    return kernel


@T.macro
def _expand_unit(
    values, weights, stream, squares_s, x_s, streams, collapsed, tile, part, num_rows, units, tx
):
    """New streams of a row's eight columns, their squares, and their sum weighted by `pre`."""
    total = T.alloc_local((8,), "float32")
    sum_of_copies = T.alloc_local((8,), "float32")
    square = T.alloc_local((1,), "float32")
    square[0] = 0
    item = tx // _COPY_UNITS
    row, unit = tile * ROWS + item, part * _COPY_UNITS + tx % _COPY_UNITS
    for copy in T.unroll(COPIES):
        for v in T.unroll(8):
            total[v] = T.ieee_mul(weights[COPIES, copy], T.cast(values[COPIES, v], "float32"))
        for source in T.unroll(COPIES):
            for v in T.unroll(8):
                total[v] = T.ieee_add(
                    total[v],
                    T.ieee_mul(weights[source, copy], T.cast(values[source, v], "float32")),
                )
        for v in T.vectorized(8):
            stream[0, v] = T.cast(total[v], "bfloat16")
        for v in T.vectorized(8):
            x_s[item, (copy * _COPY_UNITS + tx % _COPY_UNITS) * 8 + v] = stream[0, v]
        if row < num_rows and unit < units:
            T.call_extern(
                "handle",
                "di_store<8>",
                T.address_of(streams[row, copy, unit, 0]),
                T.access_ptr(stream, "r"),
            )
        for v in T.unroll(8):
            total[v] = T.cast(stream[0, v], "float32")
            square[0] += total[v] * total[v]
            # The first product is added to zero: its bits, but for the sign of a zero.
            if copy == 0:
                sum_of_copies[v] = T.ieee_mul(weights[COPIES + 1, copy], total[v])
            else:
                sum_of_copies[v] = T.ieee_add(
                    sum_of_copies[v], T.ieee_mul(weights[COPIES + 1, copy], total[v])
                )
    squares_s[tx % _COPY_UNITS, item] = square[0]
    for v in T.vectorized(8):
        stream[0, v] = T.cast(sum_of_copies[v], "bfloat16")
    if row < num_rows and unit < units:
        T.call_extern(
            "handle",
            "di_store<8>",
            T.address_of(collapsed[row, unit, 0]),
            T.access_ptr(stream, "r"),
        )


@T.macro
def _copy_factors(fn, products_s, part, units, tx):
    """Copies a lane's factors to where products will be: expanding leaves no registers for them."""
    spot = T.alloc_local((3,), "int32")
    for step in T.unroll(2):
        # A warp's two steps of 16 columns: which copy, and where in it.
        spot[0] = (tx // 32 * 2 + step) // (_COPY_UNITS // 2)
        spot[1] = part * _COPY_UNITS + (tx // 32 * 2 + step) % (_COPY_UNITS // 2) * 2 + tx % 4 // 2
        spot[2] = 1
        if spot[1] >= units:
            spot[1] = 0
            spot[2] = 0
        for group in T.unroll(_GROUPS):
            T.call_extern(
                "handle",
                "di_copy_four",
                T.address_of(products_s[((group * 2 + step) * _THREADS + tx) * 4]),
                T.address_of(fn[group * 8 + tx % 32 // 4, spot[0], spot[1], tx % 2 * 4]),
                spot[2],
            )


def of_transition(*, overlaps_launch: bool) -> object:
    """New streams, collapsed rows, and the shares of the new streams."""
    num_rows, units, num_parts = T.dynamic("num_rows, units, num_parts")

    @T.prim_func
    def kernel(
        y: T.Tensor((num_rows, units, 8), "bfloat16"),
        x: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        post: T.Tensor((num_rows, COPIES), "float32"),
        residual: T.Tensor((num_rows, COPIES, COPIES), "float32"),
        pre: T.Tensor((num_rows, COPIES), "float32"),
        fn: T.Tensor((MIXES, COPIES, units, 8), "float32"),
        streams: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        collapsed: T.Tensor((num_rows, units, 8), "bfloat16"),
        shares: T.Tensor((num_rows, num_parts, SHARES), "float32"),
    ):
        with T.Kernel(num_parts, T.ceildiv(num_rows, ROWS), threads=_THREADS) as (part, tile):
            T.import_source(STORE + PRODUCT)
            x_s = T.alloc_shared((ROWS, _ROW_COLUMNS), "bfloat16")
            products_s = T.alloc_shared((_WARPS * ROWS * MIXES,), "float32", scope="shared")
            squares_s = T.alloc_shared((_WARPS, ROWS), "float32", scope="shared")
            values = T.alloc_local((COPIES + 1, 8), "bfloat16")
            weights = T.alloc_local((COPIES + 2, COPIES), "float32")
            stream = T.alloc_local((1, 8), "bfloat16")
            factors = T.alloc_local((_GROUPS, 8), "float32")
            pieces = T.alloc_local((_PIECES,), "uint32")
            operands = T.alloc_local((2, 8), "bfloat16")
            total = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            row, unit = tile * ROWS + tx // _COPY_UNITS, part * _COPY_UNITS + tx % _COPY_UNITS
            _wait_for_kernel_before(overlaps_launch)
            for copy in T.unroll(COPIES + 1):
                for v in T.vectorized(8):
                    values[copy, v] = T.cast(0, "bfloat16")
            for i in T.unroll(COPIES + 2):
                for v in T.vectorized(COPIES):
                    weights[i, v] = 0
            if row < num_rows and unit < units:
                for copy in T.unroll(COPIES):
                    for v in T.vectorized(8):
                        values[copy, v] = x[row, copy, unit, v]
                for v in T.vectorized(8):
                    values[COPIES, v] = y[row, unit, v]
                for i in T.unroll(COPIES):
                    for v in T.vectorized(COPIES):
                        weights[i, v] = residual[row, i, v]
                for v in T.vectorized(COPIES):
                    weights[COPIES, v] = post[row, v]
                for v in T.vectorized(COPIES):
                    weights[COPIES + 1, v] = pre[row, v]
            _copy_factors(fn, products_s, part, units, tx)
            _expand_unit(
                values, weights, stream, squares_s, x_s, streams, collapsed, tile, part, num_rows,
                units, tx,
            )  # fmt: skip
            T.call_extern("handle", "di_await_copies")
            for i in T.unroll(2 * _GROUPS):
                for v in T.vectorized(4):
                    factors[i // 2, i % 2 * 4 + v] = products_s[(i * _THREADS + tx) * 4 + v]
            T.call_extern(
                "handle", "di_split_factors", T.access_ptr(factors, "r"), T.access_ptr(pieces, "w")
            )
            T.sync_threads()
            for half in T.unroll(2, unroll_factor=1):
                if tile * ROWS + half * 16 < num_rows:
                    for i in T.unroll(2):
                        for step in T.unroll(2):
                            for v in T.vectorized(4):
                                operands[i, step * 4 + v] = x_s[
                                    half * 16 + i * 8 + tx % 32 // 4,
                                    (tx // 32 * 2 + step) * 16 + tx % 4 * 4 + v,
                                ]
                    _multiply_rows(operands, 0, pieces, products_s, half, tx)
            T.sync_threads()
            _store_shares(products_s, squares_s, shares, total, part, tile, num_rows, tx)

    return kernel
