# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (TileLang parses the macros below as its own language.)
"""Results of a routed product: sums scaled, activated, turned and stored, by each warp group alone.

What the rows of x and the weight rows are scaled by is read before the products begin and waits in
registers; behind them it goes to shared memory, where every thread finds what its sums need. A
thread holds sums of neighbouring tokens, memory wants neighbouring weight rows: `stmatrix` turns
them. Eight results lie together, at a place among those of their token that depends on the token:
`stmatrix` and reads of 16 bytes then touch every bank of shared memory once.

| buffer | shape | dtype |
|---|---|---|
| y_s | (warp groups, tokens stored together, results of 64 weight rows) | bfloat16 |
| factors_s | (warp groups, kinds, tokens): scales of x, routing weights | float32 |
"""

import math

import tilelang.language as T

from di_kernels.tile.gemm_tile import BLOCK, RolesTile

_GROUP = 128


def factors_shape(tile: RolesTile, *, swiglu: bool, is_scaled: bool) -> tuple[int, int, int]:
    """Of the factors in shared memory; next to nothing where there are none."""
    kinds = swiglu + is_scaled
    return (tile.warp_groups, kinds, tile.tokens) if kinds else (1, 1, 1)


def results(tile: RolesTile, *, swiglu: bool, is_scaled: bool):
    """Macros: `prepare` reads the factors of a job, `finish` stores what came of its sums."""
    tokens, stored = tile.tokens, tile.stored_tokens
    width = BLOCK // 2 if swiglu else BLOCK
    pieces = stored * width // 8
    # 8 x 8 matrices of a warp among eight tokens, and those that are turned together.
    of_column = 1 if swiglu else 2
    turned = math.gcd(4, of_column * stored // 8)
    columns = turned // of_column
    per_thread = -(-tokens // _GROUP)
    weights = 1 if is_scaled else 0
    eights = width // 8

    def place_of(eight, token):
        """Where eight results of a token lie."""
        return (eight ^ (token % 8 * eights // 8)) * 8

    @T.macro
    def prepare(job, row_factors, x_scales, row_weights, kept, row_scales):
        tx = T.get_thread_binding()
        for step in T.unroll(per_thread):
            # Rows past the end are computed and not stored: no branch keeps loads apart.
            row = T.min(job[1] + step * _GROUP + tx % _GROUP, job[2] - 1)
            if is_scaled:
                kept[step] = x_scales[row]
            if swiglu:
                kept[per_thread + step] = row_weights[row]
        if is_scaled:
            for index in T.unroll(2 * tile.row_tiles):
                row_scales[index] = row_factors[
                    job[0],
                    job[3] + index // 2 * tile.warp_groups + tx // _GROUP,
                    tx % _GROUP // 32 * 16 + tx % 32 // 4 + index % 2 * 8,
                ]

    @T.macro
    def publish(kept, factors_s):
        tx = T.get_thread_binding()
        for step in T.unroll(per_thread):
            token = step * _GROUP + tx % _GROUP
            if token < tokens:
                if is_scaled:
                    factors_s[tx // _GROUP, 0, token] = kept[step]
                if swiglu:
                    factors_s[tx // _GROUP, weights, token] = kept[per_thread + step]

    @T.macro
    def turn(first, part, sums, limit, row_tile, row_scales, factors_s, y_s):
        """Eight-token columns from `first` of a part, scaled and turned into shared memory."""
        tx = T.get_thread_binding()
        group = tx // _GROUP
        out = T.alloc_local((2 * turned,), "float32")
        for column in T.unroll(columns):
            for u in T.unroll(2):
                place = (part * (stored // 8) + first + column) * 8 + (tx % 4) * 2 + u
                index = (part * (stored // 8) + first + column) * 4 + u
                if is_scaled:
                    for half in T.unroll(2):
                        sums[index + half * 2] *= (
                            row_scales[row_tile * 2 + half] * factors_s[group, 0, place]
                        )
                if swiglu:
                    out[column * 2 + u] = T.call_extern(
                        "float32", "di_swiglu", sums[index], sums[index + 2], limit,
                        factors_s[group, weights, place],
                    )  # fmt: skip
                else:
                    for half in T.unroll(2):
                        out[column * 4 + half * 2 + u] = sums[index + half * 2]
        T.call_extern(
            "handle", f"di_store_turned<{turned}>",
            T.access_ptr(
                y_s[
                    group,
                    (first + tx % 32 // 8 // of_column) * 8 + tx % 8,
                    place_of(tx % _GROUP // 32 * of_column + tx % 32 // 8 % of_column, tx),
                ],
                "w",
                8,
            ),
            T.access_ptr(out, "r"),
        )  # fmt: skip

    @T.macro
    def store(first, end, row_block, y_s, y):
        tx = T.get_thread_binding()
        for step in T.unroll(-(-pieces // _GROUP)):
            piece = step * _GROUP + tx % _GROUP
            token = piece // eights
            place = place_of(piece % eights, token)
            if piece < pieces and first + token < end:
                for v in T.vectorized(8):
                    y[first + token, row_block + tx // _GROUP, piece % eights * 8 + v] = y_s[
                        tx // _GROUP, token, place + v
                    ]

    @T.macro
    def sync_group():
        # Barrier 0 is that of the block.
        T.sync_threads(1 + T.get_thread_binding() // _GROUP, _GROUP)

    @T.macro
    def finish_tile(row_tile, job, limit, sums, row_scales, factors_s, y_s, y):
        """Sums of the thread of one tile of weight rows."""
        for part in T.unroll(tokens // stored):
            sync_group()
            for first in T.unroll(stored // 8 // columns):
                turn(first * columns, part, sums, limit, row_tile, row_scales, factors_s, y_s)
            sync_group()
            store(job[1] + part * stored, job[2], job[3] + row_tile * tile.warp_groups, y_s, y)

    return prepare, publish, finish_tile
