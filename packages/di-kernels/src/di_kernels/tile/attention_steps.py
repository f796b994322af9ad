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
def copy_queries(q, q_s, row, q_copied, tx):
    """Starts the copy of a row's queries."""
    if tx < 32:
        T.tma_copy(q[row, :, :], q_s, barrier=q_copied[0], leader_scope_threads=32)
        T.barrier_arrive(q_copied[0])


@T.macro
def finish_queries(
    q_s, cosines, sines, rotates, row, q_copied, phase, natural, reordered, cosine, sine, tx
):  # fmt: skip
    """Rotates the last channels, and brings all into the order of the keys."""
    if rotates != 0:
        load_angles(cosines, sines, row, tx % 8 * 8, cosine, sine)
    T.barrier_wait(q_copied[0], phase)
    for step in T.unroll(8, unroll_factor=1):
        if tx % 64 < _PASSED // 8:
            for u in T.unroll(4):
                for v in T.vectorized(8):
                    natural[u * 8 + v] = q_s[step * 8 + u * 2 + tx // 64, tx % 64 * 8 + v]
            for u in T.unroll(4):
                to_key_order(natural, u, reordered)
                for v in T.vectorized(8):
                    q_s[step * 8 + u * 2 + tx // 64, tx % 64 * 8 + v] = reordered[v]
    for step in T.unroll(4, unroll_factor=1):
        for v in T.vectorized(8):
            natural[v] = q_s[step * 16 + tx // 8, _PASSED + tx % 8 * 8 + v]
        if rotates != 0:
            rotate(natural, 0, cosine, sine, 1)
        to_key_order(natural, 0, reordered)
        for v in T.vectorized(8):
            q_s[step * 16 + tx // 8, _PASSED + tx % 8 * 8 + v] = reordered[v]
    T.fence_proxy_async()


@T.macro
def take_softmax(scores, accumulated, factor, reference, highs, alpha, totals):
    """Exponentials of a tile relative to the references of a thread's two heads.

    A thread has every fourth pair of columns of rows g and g + 8 of its warp's 16; `totals` are its
    part of the sums. A reference moves to the largest score only when an exponential would be
    large, for the first tile and rarely after that: their precision does not depend on it. Earlier
    sums are multiplied by `alpha` then.
    """
    for k in T.unroll(2):
        highs[k] = -T.infinity("float32")
        alpha[k] = T.float32(1)
    for h, b in T.Parallel(HEADS, TILE):
        T.call_extern("handle", "di_raise", T.access_ptr(highs, "rw"), h // 8 % 2, scores[h, b])
    if (
        T.call_extern(
            "int32", "di_are_large", T.access_ptr(highs, "r"), factor, T.access_ptr(reference, "r")
        )
        != 0
    ):
        T.call_extern(
            "handle", "di_move_references", T.access_ptr(highs, "r"), factor,
            T.access_ptr(reference, "rw"), T.access_ptr(alpha, "w"), T.access_ptr(totals, "rw"),
        )  # fmt: skip
        multiply_rows(accumulated, alpha)
    for h, b in T.Parallel(HEADS, TILE):
        scores[h, b] = T.call_extern(
            "float32", "di_power", scores[h, b], factor, T.access_ptr(reference, "r"),
            T.access_ptr(totals, "rw"), h // 8 % 2,
        )  # fmt: skip


@T.macro
def multiply_rows(accumulated, factors):
    """Multiplies the rows of an accumulator by the factors of a thread's two heads, if not 1."""
    if T.call_extern("int32", "di_scale_any", T.access_ptr(factors, "r")) != 0:
        for h, c in T.Parallel(HEADS, DIM // 2):
            accumulated[h, c] *= T.call_extern(
                "float32", "di_at", T.access_ptr(factors, "r"), h // 8 % 2
            )


@T.macro
def hand_over(rounded, powers_s, alpha, alpha_s, powers_free, tile, tx):
    """Gives the exponentials of a tile to the other half, in a place that is free again."""
    T.barrier_wait(powers_free, (tile & 1) ^ 1)
    if tx % 4 == 0:
        for k in T.unroll(2):
            alpha_s[tx // 32 * 16 + k * 8 + tx % 32 // 4] = alpha[k]
    T.copy(rounded, powers_s)
    T.fence_proxy_async()


@T.macro
def divide(totals, reference, sinks, inverse):
    """Inverse of the sum of all exponentials and the sink; zero without any key."""
    T.call_extern("handle", "di_add_up", T.access_ptr(totals, "rw"))
    for k in T.unroll(2):
        inverse[k] = T.if_then_else(
            totals[k] > 0,
            T.float32(KEY_SCALE)
            / (totals[k] + T.exp2(finite_sink(sinks[k]) * T.float32(LOG2_E) - reference[k])),
            0,
        )
