# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Drafts accepted by the ratio test: the laws of the drafts' rows, then a decision per request.

Formulas: `di_kernels.ops.ratio`. `draft_laws` leaves the largest logit of every row with a draft
and the logarithm of its masses. `decide_drafts` goes through the drafts of a request until one is
refused, and draws what stands for it (`ratio_source`). Both give a row to a cluster of eight
blocks, or to one block.

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| token_ids, drafts, seed, position | (rows,) | int64 |
| status | (rows,) | uint8 |
| temperature | (rows,) | float64 |
| offsets | (requests + 1,) | int64 |
| laws | (rows, 2) | float64 |
| q32 or q64 (the other has one number) | (requests x drafts x size,) | float32, float64 |
| q_token_ids | (requests x drafts x size,) or (1,) | int64 |
| emitted | (requests, width) | int64 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80, nor with float64 for
sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.best_source import BEST
from di_kernels.tile.cut_source import CUT
from di_kernels.tile.draw_row_source import DRAW_ROW
from di_kernels.tile.log_prob_source import LOG_PROBS
from di_kernels.tile.ratio_source import RATIO
from di_kernels.tile.row_source import row_source
from di_kernels.tile.row_steps import LAW, STEP, RowShape, keeping


def draft_laws(shape: RowShape) -> object:
    """Largest logit and logarithm of masses of every row that has a draft."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    num_requests = T.dynamic("num_requests")
    blocks, keep = shape.blocks, keeping(shape)

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        has_mask: T.int32,
        status: T.Tensor((num_rows,), "uint8"),
        temperature: T.Tensor((num_rows,), "float64"),
        offsets: T.Tensor((num_requests + 1,), "int64"),
        places: T.int32,
        laws: T.Tensor((num_rows, 2), "float64"),
    ):
        with T.Kernel(
            num_requests * places * blocks,
            threads=shape.threads,
            cluster_dims=blocks if blocks > 1 else None,
        ) as bx:
            T.annotate_min_blocks_per_sm(shape.blocks_per_sm)
            T.import_source(row_source(shape) + CUT + LOG_PROBS + BEST + DRAW_ROW + RATIO)
            part = T.alloc_shared((shape.part,), shape.dtype)
            law = T.alloc_shared((LAW,), "float64", scope="shared")
            of_warps = T.alloc_shared((shape.warps * 3,), "float64", scope="shared")
            of_blocks = T.alloc_shared((blocks * 3,), "int64", scope="shared")
            sums_of_blocks = T.alloc_shared((blocks * 3,), "int64", scope="shared")
            state = T.alloc_local((3,), "float64")
            total = T.alloc_local((1,), "int64")
            tx = T.get_thread_binding()
            request = bx // blocks // places
            place = bx // blocks % places
            rank = bx % blocks
            run = T.ceildiv(vocab_size, STEP * shape.warps * blocks) * STEP
            first = (rank * shape.warps + tx // 32) * run
            if T.call_extern(
                "bool",
                "di_is_tested",
                T.address_of(offsets[0]),
                request,
                place,
                T.address_of(status[0]),
                T.address_of(temperature[0]),
            ):
                row = T.cast(offsets[request], "int32") + place
                T.call_extern("handle", "di_arrive")
                keep(
                    logits, mask, row, has_mask, words, first, run, vocab_size, rank, part,
                    of_warps, of_blocks, state,
                )  # fmt: skip
                T.call_extern(
                    "handle",
                    f"di_set_plain_law<{shape.c_type}>",
                    T.access_ptr(state, "r"),
                    temperature[row],
                    0,
                    vocab_size,
                    T.address_of(law[0]),
                )
                T.sync_threads()
                T.call_extern(
                    "handle",
                    f"di_row_mass<{blocks}>",
                    T.address_of(part[0]),
                    run,
                    rank,
                    T.address_of(law[0]),
                    T.address_of(of_warps[0]),
                    T.address_of(sums_of_blocks[0]),
                )
                # Also keeps a block here while others send to it.
                T.call_extern("handle", "di_meet")
                if rank == 0:
                    total[0] = T.call_extern(
                        "int64", f"di_sum_of<{blocks}>", T.address_of(sums_of_blocks[0]), 0
                    )
                    T.call_extern(
                        "handle",
                        "di_write_law",
                        T.address_of(law[0]),
                        total[0],
                        T.address_of(laws[row, 0]),
                    )

    return kernel


def decide_drafts(shape: RowShape, blocks_per_sm: int = 1) -> object:
    """Emitted tokens, their number, accepted drafts and status of every request."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    num_requests, width, size32, size64, num_listed = T.dynamic(
        "num_requests, width, size32, size64, num_listed"
    )
    blocks = shape.blocks

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        has_mask: T.int32,
        token_ids: T.Tensor((num_rows,), "int64"),
        status: T.Tensor((num_rows,), "uint8"),
        temperature: T.Tensor((num_rows,), "float64"),
        seed: T.Tensor((num_rows,), "int64"),
        position: T.Tensor((num_rows,), "int64"),
        drafts: T.Tensor((num_rows,), "int64"),
        offsets: T.Tensor((num_requests + 1,), "int64"),
        laws: T.Tensor((num_rows, 2), "float64"),
        q32: T.Tensor((size32,), "float32"),
        q64: T.Tensor((size64,), "float64"),
        q_token_ids: T.Tensor((num_listed,), "int64"),
        q_kind: T.int32,
        q_is_double: T.int32,
        q_places: T.int32,
        q_size: T.int32,
        emitted: T.Tensor((num_requests, width), "int64"),
        num_accepted: T.Tensor((num_requests,), "int64"),
        num_emitted: T.Tensor((num_requests,), "int64"),
        code: T.Tensor((num_requests,), "uint8"),
    ):
        with T.Kernel(
            num_requests * blocks,
            threads=shape.threads,
            cluster_dims=blocks if blocks > 1 else None,
        ) as bx:
            T.annotate_min_blocks_per_sm(blocks_per_sm)
            T.import_source(row_source(shape) + BEST + DRAW_ROW + RATIO)
            part = T.alloc_shared((shape.part,), shape.dtype)
            best = T.alloc_shared((1,), "uint32", scope="shared")
            of_warps = T.alloc_shared((shape.warps * 2,), "float64", scope="shared")
            of_blocks = T.alloc_shared((blocks * 4,), "float64", scope="shared")
            drafted = T.alloc_shared((1,), "float64", scope="shared")
            request = bx // blocks
            T.call_extern(
                "handle",
                f"di_decide_request<{blocks}>",
                T.address_of(logits[0, 0]),
                T.cast(row_stride, "int64"),
                T.address_of(mask[0, 0]),
                has_mask,
                words,
                T.address_of(token_ids[0]),
                T.address_of(status[0]),
                T.address_of(temperature[0]),
                T.address_of(seed[0]),
                T.address_of(position[0]),
                T.address_of(drafts[0]),
                T.address_of(offsets[0]),
                T.address_of(laws[0, 0]),
                T.address_of(q32[0]),
                T.address_of(q64[0]),
                T.address_of(q_token_ids[0]),
                q_kind,
                q_is_double,
                q_places,
                q_size,
                request,
                bx % blocks,
                T.ceildiv(vocab_size, STEP * shape.warps * blocks) * STEP,
                vocab_size,
                width,
                T.address_of(part[0]),
                T.address_of(best[0]),
                T.address_of(of_warps[0]),
                T.address_of(of_blocks[0]),
                T.address_of(drafted[0]),
                T.address_of(emitted[request, 0]),
                T.address_of(num_accepted[request]),
                T.address_of(num_emitted[request]),
                T.address_of(code[request]),
            )

    return kernel
