# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
# (TileLang parses the macros below as its own language.)
"""Steps of the attention kernel that works on rows one after the other."""

import tilelang.language as T

from di_kernels.tile.attention_shapes import (
    DIM,
    HEADS,
    KEY_SCALE,
    LOG2_E,
    ROTARY,
    TILE,
    finite_sink,
    load_angles,
    rotate,
    to_key_order,
)

_PASSED = DIM - ROTARY


@T.macro
def copy_queries(q, q_s, row, tx):
    """Starts the copies of the channels that do not rotate."""
    if tx % 64 < _PASSED // 8:
        for step in T.unroll(32):
            T.call_extern(
                "handle",
                "di_copy_unit",
                T.access_ptr(q_s[step * 2 + tx // 64, tx % 64 * 8], "w", 8),
                T.access_ptr(q[row, step * 2 + tx // 64, tx % 64 * 8], "r", 8),
                True,
            )


@T.macro
def finish_queries(
    q, q_s, cosines, sines, rotates, row, turned, eight, reordered, cosine, sine, tx
):
    """Loads and rotates the last channels, then brings all into the order of the keys.

    A thread reorders what it copied itself.
    """
    for step in T.unroll(4):
        for v in T.vectorized(8):
            turned[step * 8 + v] = q[row, step * 16 + tx // 8, _PASSED + tx % 8 * 8 + v]
    if rotates != 0:
        load_angles(cosines, sines, row, tx % 8 * 8, cosine, sine)
        for step in T.unroll(4):
            rotate(turned, step, cosine, sine, 1)
    T.call_extern("handle", "di_wait_copies")
    if tx % 64 < _PASSED // 8:
        for step in T.unroll(32):
            for v in T.vectorized(8):
                eight[v] = q_s[step * 2 + tx // 64, tx % 64 * 8 + v]
            to_key_order(eight, 0, reordered)
            for v in T.vectorized(8):
                q_s[step * 2 + tx // 64, tx % 64 * 8 + v] = reordered[v]
    for step in T.unroll(4):
        to_key_order(turned, step, reordered)
        for v in T.vectorized(8):
            q_s[step * 16 + tx // 8, _PASSED + tx % 8 * 8 + v] = reordered[v]
    T.fence_proxy_async()


@T.macro
def take_softmax(scores, peak, last_peak, alpha, total, tile_total, factor):
    """Exponentials of a tile relative to the largest score so far; `alpha` scales earlier ones."""
    T.copy(peak, last_peak)
    T.reduce_max(scores, peak, dim=1, clear=False)
    for h in T.Parallel(HEADS):
        peak[h] = T.max(peak[h], last_peak[h])
    for h in T.Parallel(HEADS):
        alpha[h] = T.exp2((last_peak[h] - peak[h]) * factor)
    for h, b in T.Parallel(HEADS, TILE):
        scores[h, b] = T.exp2(scores[h, b] * factor - peak[h] * factor)
    T.reduce_sum(scores, tile_total, dim=1)
    for h in T.Parallel(HEADS):
        total[h] = total[h] * alpha[h] + tile_total[h]


@T.macro
def divide(total, peak, sinks, inverse, factor):
    """Inverse of the sum of all exponentials and the sink; zero without any key."""
    for h in T.Parallel(HEADS):
        inverse[h] = T.if_then_else(
            total[h] > 0,
            T.float32(KEY_SCALE)
            / (total[h] + T.exp2(finite_sink(sinks[h]) * T.float32(LOG2_E) - peak[h] * factor)),
            0,
        )
