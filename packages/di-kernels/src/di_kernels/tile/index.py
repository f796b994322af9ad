# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Index scores: 32 heads of 128 channels over pages of FP4 keys, dense or over candidate blocks.

score[t, j] = sum over heads h of factor * w[t, h] * max(0, q[t, h] . k[j])

A thread block scores a run of places, 64 at a time, for a group of rows of one request. It first
looks up the entries and pages of its places; then keys go from memory to registers, the next 64
while the last are multiplied, are unpacked in place and multiplied with the queries in shared
memory, one product per row. Neither the sum over channels nor that over heads depends on the rows
beside or on how a key was reached.

| buffer | shape | dtype |
|---|---|---|
| q | (rows, 32, 128) | bfloat16 |
| weights | (rows, 32 * words each) | uint16, the weights' bits |
| keys | (units of 16 bytes, 4) | uint32, see `di_kernels.records` |
| tables | (requests, words), rows apart by any stride | int32 |
| row_request, num_visible, candidates | words, `..._step` apart | int32 |
| scores | (rows, places), rows apart by any stride | float32 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; wgmma on sm_90a alone. Measured times:
`docs/performance/kernels.md`.
"""

import tilelang.language as T

from di_kernels.tile.cuda_source import COMMON
from di_kernels.tile.index_source import INDEX_KEYS

HEADS = 32
DIM = 128
TILE = 64
"""Places of a product."""
CANDIDATE_BLOCK = 8
THREADS = 128

_BLOCKS_PER_SM = 4
_NONE = 1 << 30


def score_keys(rows_per_block: int, *, is_candidate: bool, has_async_proxy: bool) -> object:
    """Scores of up to `rows_per_block` rows of one request per thread block, `group_rows` wanted.

    A part is at most 128 runs of places: tiles, or with `is_candidate` candidate blocks of eight
    entries, which every row has of its own. With `has_async_proxy` (sm_90 and later) queries are
    made visible to wgmma.
    """
    num_rows, num_requests, num_units = T.dynamic("num_rows, num_requests, num_units")
    num_weight_words, table_words, table_stride = T.dynamic(
        "num_weight_words, table_words, table_stride"
    )
    request_words, visible_words, candidate_words = T.dynamic(
        "request_words, visible_words, candidate_words"
    )
    num_places, score_stride = T.dynamic("num_places, score_stride")
    run = CANDIDATE_BLOCK if is_candidate else TILE

    @T.macro
    def load_keys(keys, entries_s, pages_s, codes, scales, tile, limit, shift, stride, offset):
        """Codes and scales of the thread's two keys; zeros where there is no visible entry."""
        tx = T.get_thread_binding()
        for key in T.unroll(2):
            place = tile * TILE + tx // 32 * 16 + key * 8 + tx % 32 // 4
            entry = entries_s[place // run] + place % run
            for v in T.vectorized(4):
                codes[key * 4 + v] = T.uint32(0)
            scales[key] = T.uint32(0)
            if entry < limit and pages_s[place // run] >= 0:
                inside = entry & ((1 << shift) - 1)
                for v in T.vectorized(4):
                    codes[key * 4 + v] = keys[
                        pages_s[place // run] * stride + offset + inside * 4 + tx % 4, v
                    ]
                scales[key] = keys[
                    pages_s[place // run] * stride + offset + (4 << shift) + inside // 4, inside % 4
                ]

    @T.macro
    def stage_queries(q, weights, q_s, weights_s, channels, ordered, count, row, factor):
        """Queries in the order of the keys' channels, and the weights of their heads."""
        tx = T.get_thread_binding()
        words = num_weight_words // HEADS
        for r in T.serial(count):
            for g in T.unroll(4):
                for v in T.vectorized(8):
                    channels[g * 8 + v] = q[row + r, tx // 4, g * 32 + tx % 4 * 8 + v]
            T.call_extern(
                "handle",
                "di_order_channels",
                T.access_ptr(channels, "r"),
                T.access_ptr(ordered, "w"),
            )
            for p in T.unroll(4):
                for v in T.vectorized(8):
                    q_s[r, tx // 4, tx % 4 * 32 + p * 8 + v] = ordered[p * 8 + v]
            if tx < HEADS:
                weights_s[r, tx] = factor * T.call_extern(
                    "float32", "di_weight", T.access_ptr(weights[row + r, tx * words], "r"), words
                )

    @T.prim_func
    def kernel(
        q: T.Tensor((num_rows, HEADS, DIM), "bfloat16"),
        weights: T.Tensor((num_rows, num_weight_words), "uint16"),
        keys: T.Tensor((num_units, 4), "uint32"),
        tables: T.StridedTensor((num_requests, table_words), (table_stride, 1), "int32"),
        table_step: T.int32,
        row_request: T.Tensor((request_words,), "int32"),
        request_step: T.int32,
        num_visible: T.Tensor((visible_words,), "int32"),
        visible_step: T.int32,
        candidates: T.Tensor((candidate_words,), "int32"),
        candidate_step: T.int32,
        page_shift: T.int32,
        page_stride: T.int32,
        page_offset: T.int32,
        part_tiles: T.int32,
        group_rows: T.int32,
        factor: T.float32,
        scores: T.StridedTensor((num_rows, num_places), (score_stride, 1), "float32"),
    ):
        with T.Kernel(
            T.ceildiv(T.ceildiv(num_places, TILE), part_tiles), num_rows, threads=THREADS
        ) as (part, row):
            T.import_source(COMMON + INDEX_KEYS)
            T.annotate_min_blocks_per_sm(_BLOCKS_PER_SM)
            q_s = T.alloc_shared((rows_per_block, HEADS, DIM), "bfloat16")
            weights_s = T.alloc_shared((rows_per_block, HEADS), "float32")
            # First entry of every run of places, and its page.
            entries_s = T.alloc_shared((THREADS,), "int32")
            pages_s = T.alloc_shared((THREADS,), "int32")
            visible_s = T.alloc_shared((rows_per_block,), "int32")
            fragment = T.alloc_fragment((TILE, DIM), "bfloat16")
            total = T.alloc_fragment((TILE, HEADS), "float32")
            channels = T.alloc_local((32,), "bfloat16")
            ordered = T.alloc_local((32,), "bfloat16")
            values = T.alloc_local((64,), "bfloat16")
            next_codes = T.alloc_local((8,), "uint32")
            next_scales = T.alloc_local((2,), "uint32")
            products = T.alloc_local((16,), "float32")
            pair = T.alloc_local((2,), "float32")
            found = T.alloc_local((1,), "int32")
            seen = T.alloc_local((1,), "int32")
            # Rows of the block, and the entries that the one of them sees that sees most.
            group = T.alloc_local((2,), "int32")
            tx = T.get_thread_binding()
            request = row_request[row * request_step]

            # A group is the rows from `row` to the next multiple of `group_rows` as long as the
            # request is the same; thread blocks of its other rows have nothing to do.
            group[0] = 1
            group[1] = num_visible[row * visible_step]
            if rows_per_block > 1:
                in_group = row % group_rows
                if in_group != 0 and row_request[T.max(row - 1, 0) * request_step] == request:
                    group[0] = 0
                for other in T.unroll(1, rows_per_block):
                    following = T.min(row + other, num_rows - 1)
                    if (
                        group[0] == other
                        and in_group + other < group_rows
                        and row + other < num_rows
                        and row_request[following * request_step] == request
                    ):
                        group[0] = other + 1
                        group[1] = T.max(group[1], num_visible[following * visible_step])

            if group[0] > 0:
                first = part * part_tiles * TILE
                tiles = T.min(part_tiles, T.ceildiv(num_places - first, TILE))
                found[0] = _NONE
                if tx < tiles * (TILE // run) and first + tx * run < num_places:
                    if is_candidate:
                        found[0] = candidates[
                            (row * (num_places // run) + first // run + tx) * candidate_step
                        ]
                        found[0] = T.if_then_else(found[0] < 0, _NONE, found[0] * run)
                    else:
                        found[0] = first + tx * run
                entries_s[tx] = found[0]
                pages_s[tx] = -1
                if found[0] < group[1]:
                    pages_s[tx] = tables[request, (found[0] >> page_shift) * table_step]
                if tx < group[0]:
                    visible_s[tx] = num_visible[(row + tx) * visible_step]
                # Entries ascend: tiles behind the last visible one are filled at the end.
                seen[0] = T.call_extern("int32", "__syncthreads_count", found[0] < group[1])
                seen[0] = T.ceildiv(seen[0] * run, TILE)

                if seen[0] > 0:
                    load_keys(
                        keys, entries_s, pages_s, next_codes, next_scales, 0, group[1], page_shift,
                        page_stride, page_offset,
                    )  # fmt: skip
                    stage_queries(
                        q, weights, q_s, weights_s, channels, ordered, group[0], row, factor
                    )
                    if has_async_proxy:
                        T.fence_proxy_async()
                T.sync_threads()

                for tile in T.serial(seen[0]):
                    T.call_extern(
                        "handle",
                        "di_unpack_index_keys",
                        T.access_ptr(next_codes, "r"),
                        T.access_ptr(next_scales, "r"),
                        tx % 4,
                        T.access_ptr(values, "w"),
                    )
                    if tile + 1 < seen[0]:
                        load_keys(
                            keys, entries_s, pages_s, next_codes, next_scales, tile + 1, group[1],
                            page_shift, page_stride, page_offset,
                        )  # fmt: skip
                    for i, j in T.Parallel(TILE, DIM):
                        fragment[i, j] = T.call_extern(
                            "bfloat16",
                            "di_at",
                            T.access_ptr(values, "r"),
                            (j // 8) * 4 + (i % 16) // 8 * 2 + j % 2,
                        )
                    for r in T.serial(group[0]):
                        T.gemm(
                            fragment,
                            q_s[r, :, :],
                            total,
                            transpose_B=True,
                            policy=T.GemmWarpPolicy.FullRow,
                            clear_accum=True,
                        )
                        for i, h in T.Parallel(TILE, HEADS):
                            T.call_extern(
                                "handle",
                                "di_put",
                                T.access_ptr(products, "w"),
                                (h // 8) * 4 + (i % 16) // 8 * 2 + h % 2,
                                total[i, h],
                            )
                        T.call_extern(
                            "handle",
                            "di_weigh_heads",
                            T.access_ptr(products, "r"),
                            T.access_ptr(weights_s[r, tx % 4 * 2], "r"),
                            T.access_ptr(pair, "w"),
                        )
                        # Every thread of four has both scores; the first writes key g, the second
                        # key g + 8.
                        inside = tile * TILE + tx // 32 * 16 + tx % 4 * 8 + tx % 32 // 4
                        if tx % 4 < 2 and first + inside < num_places:
                            scores[row + r, first + inside] = T.if_then_else(
                                entries_s[inside // run] + inside % run < visible_s[r],
                                T.if_then_else(tx % 4 == 0, pair[0], pair[1]),
                                -T.infinity("float32"),
                            )
                for r in T.serial(group[0]):
                    for step in T.serial(T.ceildiv((tiles - seen[0]) * TILE, THREADS)):
                        inside = seen[0] * TILE + step * THREADS + tx
                        if inside < tiles * TILE and first + inside < num_places:
                            scores[row + r, first + inside] = -T.infinity("float32")

    return kernel
