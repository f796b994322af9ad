# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Index scores: 32 heads of 128 channels over pages of FP4 keys, dense or over candidate blocks.

score[t, j] = sum over heads h of factor * w[t, h] * max(0, q[t, h] . k[j])

A thread block scores a run of places, 64 at a time, for a group of rows of one request. It first
looks up where the keys of its places lie; then keys go from memory to registers, the next 64
while the last are multiplied, are unpacked in place and multiplied with the queries in shared
memory, two rows per product. Neither the sum over channels nor that over heads depends on the rows
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
from di_kernels.tile.index_steps import (
    DIM,
    HEADS,
    THREADS,
    TILE,
    Scoring,
    key_steps,
    query_steps,
    score_steps,
)

_NONE = 1 << 30


def score_keys(
    rows_per_block: int, blocks_per_sm: int, *, is_candidate: bool, has_async_proxy: bool
) -> object:
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
    shape = Scoring(rows_per_block, is_candidate)
    run, together, products_each = shape.run, shape.together, shape.products
    load_keys, unpack_keys = key_steps(shape)
    load_queries, stage_queries, stage_weights = query_steps(shape)
    weigh, write_score = score_steps(shape)

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
            T.annotate_min_blocks_per_sm(blocks_per_sm)
            q_s = T.alloc_shared((products_each, together * HEADS, DIM), "bfloat16")
            weights_s = T.alloc_shared((rows_per_block, HEADS), "float32")
            # First entry of every run of places; addresses of its codes and scales.
            entries_s = T.alloc_shared((THREADS,), "int32")
            starts_s = T.alloc_shared((THREADS, 2), "int64")
            visible_s = T.alloc_shared((rows_per_block,), "int32")
            fragment = T.alloc_fragment((TILE, DIM), "bfloat16")
            total = T.alloc_fragment((TILE, together * HEADS), "float32")
            channels = T.alloc_local((32,), "bfloat16")
            ordered = T.alloc_local((32,), "bfloat16")
            values = T.alloc_local((64,), "bfloat16")
            next_codes = T.alloc_local((8,), "uint32")
            next_scales = T.alloc_local((2,), "uint32")
            products = T.alloc_local((16 * together,), "float32")
            score = T.alloc_local((1,), "float32")
            found = T.alloc_local((1,), "int32")
            start = T.alloc_local((1,), "int64")
            seen = T.alloc_local((1,), "int32")
            # Bytes from the start of a run to the thread's codes and to its scale.
            lane_bytes = T.alloc_local((2,), "uint32")
            # Place in a tile of the score that the thread writes, and how many places and how many
            # visible entries there are from it on; the score's address in the first tile.
            own = T.alloc_local((3,), "int32")
            target = T.alloc_local((1,), "int64")
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
                load_queries(q, channels, row)
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
                # Keys that nobody sees are read in a page that is there, and not scored.
                start[0] = T.int64(0)
                if found[0] < group[1]:
                    start[0] = T.cast(
                        T.max(tables[request, (found[0] >> page_shift) * table_step], 0), "int64"
                    )
                start[0] = T.call_extern("int64", "di_address", T.access_ptr(keys, "r")) + 16 * (
                    start[0] * page_stride + page_offset
                )
                inside = found[0] & ((1 << page_shift) - 1)
                starts_s[tx, 0] = start[0] + inside * 64
                starts_s[tx, 1] = start[0] + (64 << page_shift) + inside * 4
                if tx < group[0]:
                    visible_s[tx] = num_visible[(row + tx) * visible_step]
                # Entries ascend: tiles behind the last visible one are filled at the end.
                seen[0] = T.call_extern("int32", "__syncthreads_count", found[0] < group[1])
                seen[0] = T.call_extern("int32", "di_same", T.ceildiv(seen[0] * run, TILE))

                warp, lane = tx // 32, tx % 32
                run_key = lane // 4 if is_candidate else warp * 16 + lane // 4
                lane_bytes[0] = T.call_extern("uint32", "di_keep", run_key * 64 + lane % 4 * 16)
                lane_bytes[1] = T.call_extern("uint32", "di_keep", run_key * 4 + lane % 4)
                own[0] = T.call_extern("int32", "di_keep", warp * 16 + lane % 2 * 8 + lane // 4)
                own[1] = T.call_extern("int32", "di_keep", num_places - first - own[0])
                own[2] = T.call_extern("int32", "di_keep", group[1] - first - own[0])
                own_row = row + lane % 4 // 2 * (together - 1)
                target[0] = T.call_extern(
                    "int64", "di_address", T.address_of(scores[own_row, first + own[0]])
                )
                if seen[0] > 0:
                    load_keys(starts_s, lane_bytes, 0, next_codes, next_scales)
                    stage_queries(q, q_s, channels, ordered, group[0], row)
                    stage_weights(weights, weights_s, group[0], row, factor)
                    if has_async_proxy:
                        T.fence_proxy_async()
                T.sync_threads()

                for tile in T.serial(seen[0]):
                    unpack_keys(next_codes, next_scales, values, fragment)
                    load_keys(
                        starts_s, lane_bytes, T.min(tile + 1, seen[0] - 1), next_codes, next_scales
                    )
                    for pair in T.unroll(products_each):
                        if products_each == 1 or pair * together < group[0]:
                            T.gemm(
                                fragment,
                                q_s[pair, :, :],
                                total,
                                transpose_B=True,
                                policy=T.GemmWarpPolicy.FullRow,
                                clear_accum=True,
                            )
                            weigh(total, products, weights_s, pair, score)
                            write_score(
                                entries_s, visible_s, own, group, target, score_stride, tile, pair,
                                score,
                            )  # fmt: skip
                for r in T.serial(group[0]):
                    for step in T.serial(T.ceildiv((tiles - seen[0]) * TILE, THREADS)):
                        inside = seen[0] * TILE + step * THREADS + tx
                        if inside < tiles * TILE and first + inside < num_places:
                            scores[row + r, first + inside] = -T.infinity("float32")

    return kernel
