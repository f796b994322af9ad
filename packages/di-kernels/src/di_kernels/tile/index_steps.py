# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Steps of the index scores: queries into shared memory, keys to the fragment, scores of a tile."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

HEADS = 32
DIM = 128
TILE = 64
"""Places of a product."""
CANDIDATE_BLOCK = 8
THREADS = 128


@dataclass(frozen=True)
class Scoring:
    """One kernel of the family.

    Args:
        rows_per_block: Rows of a request that a thread block scores at most.
        is_candidate: Whether places are those of candidate blocks.
    """

    rows_per_block: int
    is_candidate: bool

    @property
    def run(self) -> int:
        """Places whose keys lie one behind the other."""
        return CANDIDATE_BLOCK if self.is_candidate else TILE

    @property
    def together(self) -> int:
        """Rows of a product, whose fragment of keys the tensor core reads once."""
        return min(2, self.rows_per_block)

    @property
    def products(self) -> int:
        """Products of a tile."""
        return -(-self.rows_per_block // 2)


def query_steps(shape: Scoring) -> tuple[Callable[..., None], ...]:
    """Macros that load a row's queries, and stage queries and weights of a group."""
    together = shape.together

    @T.macro
    def load_queries(q, channels, row):
        tx = T.get_thread_binding()
        for g in T.unroll(4):
            for v in T.vectorized(8):
                channels[g * 8 + v] = q[row, tx // 4, g * 32 + tx % 4 * 8 + v]

    @T.macro
    def stage_queries(q, q_s, channels, ordered, count, row):
        """Queries in the order of the keys' channels; those of `row` are in `channels`."""
        tx = T.get_thread_binding()
        for r in T.serial(count):
            T.call_extern(
                "handle",
                "di_order_channels",
                T.access_ptr(channels, "r"),
                T.access_ptr(ordered, "w"),
            )
            if r + 1 < count:
                load_queries(q, channels, row + r + 1)
            for p in T.unroll(4):
                for v in T.vectorized(8):
                    q_s[r // together, r % together * HEADS + tx // 4, tx % 4 * 32 + p * 8 + v] = (
                        ordered[p * 8 + v]
                    )

    @T.macro
    def stage_weights(weights, weights_s, count, row, factor):
        """Weights in the order of a thread's heads: those of t are 2t, 2t + 1, 2t + 8 and so on."""
        tx = T.get_thread_binding()
        words = weights.shape[1] // HEADS
        for i in T.unroll(T.ceildiv(shape.rows_per_block * HEADS, THREADS)):
            r = (i * THREADS + tx) // HEADS
            head = tx % 8 // 2 * 8 + tx % HEADS // 8 * 2 + tx % 2
            if r < count:
                weights_s[r, tx % HEADS] = factor * T.call_extern(
                    "float32", "di_weight", T.access_ptr(weights[row + r, head * words], "r"), words
                )

    return load_queries, stage_queries, stage_weights


def key_steps(shape: Scoring) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros that load and unpack a tile's keys, of which a thread has a group of two."""

    @T.macro
    def load_keys(starts_s, lane_bytes, tile, codes, scales):
        """Codes and scales of keys 8 places apart."""
        for key in T.unroll(2):
            T.call_extern(
                "handle",
                "di_load_index_key",
                T.access_ptr(
                    starts_s[tile * 8 + T.get_thread_binding() // 32 * 2 + key, 0]
                    if shape.is_candidate
                    else starts_s[tile, 0],
                    "r",
                ),
                lane_bytes[0] + (0 if shape.is_candidate else key * 512),
                lane_bytes[1] + (0 if shape.is_candidate else key * 32),
                T.address_of(codes[key * 4]),
                T.address_of(scales[key]),
            )

    @T.macro
    def unpack_keys(codes, scales, values, fragment):
        T.call_extern(
            "handle",
            "di_unpack_index_keys",
            T.access_ptr(codes, "r"),
            T.access_ptr(scales, "r"),
            T.access_ptr(values, "w"),
        )
        for i, j in T.Parallel(TILE, DIM):
            fragment[i, j] = T.call_extern(
                "bfloat16",
                "di_at",
                T.access_ptr(values, "r"),
                (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2,
            )

    return load_keys, unpack_keys


def score_steps(shape: Scoring) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros that weigh a product's heads and write the score a thread is left with."""
    together = shape.together

    @T.macro
    def weigh(total, products, weights_s, pair, score):
        lane = T.get_thread_binding() % 32
        for i, h in T.Parallel(TILE, together * HEADS):
            T.call_extern(
                "handle",
                "di_put_positive",
                T.access_ptr(products, "w"),
                (h // 8) * 4 + (i % 16) // 8 * 2 + h % 2,
                total[i, h],
            )
        score[0] = T.call_extern(
            "float32",
            f"di_weigh_heads<{together}>",
            T.access_ptr(products, "r"),
            T.access_ptr(weights_s[pair * together, lane % 4 * 8], "r"),
        )

    @T.macro
    def write_score(entries_s, visible_s, own, group, target, stride, tile, pair, score):
        warp, lane = T.get_thread_binding() // 32, T.get_thread_binding() % 32
        r = pair * together + lane % 4 // 2 * (together - 1)
        if lane % 4 < 2 * together and r < group[0] and tile * TILE < own[1]:
            if shape.is_candidate:
                is_seen = entries_s[tile * 8 + warp * 2 + lane % 2] + lane // 4 < group[1]
            elif shape.rows_per_block == 1:
                is_seen = tile * TILE < own[2]
            else:
                is_seen = tile * TILE < own[2] - group[1] + visible_s[r]
            T.call_extern(
                "handle",
                "di_store_score",
                target[0],
                tile * TILE,
                pair * together,
                stride,
                score[0],
                is_seen,
            )

    return weigh, write_score
