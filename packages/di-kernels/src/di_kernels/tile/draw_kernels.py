# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""Drawing a token from every row of logits: noise, temperature, mask and maximum at once.

Formulas: `di_kernels.ops.sampling`. A row is a cluster's of eight blocks, or one block's. Its
logits are read once from memory, then from shared memory (`row_source`): largest logits, then the
screen and the exact choice (`draw_row_source`).

| buffer | shape | dtype |
|---|---|---|
| logits | (rows, vocabulary), rows apart by any stride | float32 or float64 |
| mask | (rows or 1, words) | uint32 |
| temperature | (rows,) | float64 |
| seed, position, token_ids | (rows,) | int64 |
| status | (rows,) | uint8 |

Builds for sm_80, sm_90a, sm_100a and sm_120a; the cluster not for sm_80, nor with float64 for
sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.best_source import BEST
from di_kernels.tile.draw_row_source import DRAW_ROW
from di_kernels.tile.row_source import row_source
from di_kernels.tile.row_steps import STEP, RowShape, keeping


def draw_tokens(shape: RowShape) -> object:
    """Token and status of every row."""
    num_rows, vocab_size, row_stride, mask_rows, words = T.dynamic(
        "num_rows, vocab_size, row_stride, mask_rows, words"
    )
    blocks, keep = shape.blocks, keeping(shape)

    @T.prim_func
    def kernel(
        logits: T.StridedTensor((num_rows, vocab_size), (row_stride, 1), shape.dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        has_mask: T.int32,
        temperature: T.Tensor((num_rows,), "float64"),
        seed: T.Tensor((num_rows,), "int64"),
        position: T.Tensor((num_rows,), "int64"),
        purpose: T.int32,
        token_ids: T.Tensor((num_rows,), "int64"),
        status: T.Tensor((num_rows,), "uint8"),
    ):
        with T.Kernel(
            num_rows * blocks,
            threads=shape.threads,
            cluster_dims=blocks if blocks > 1 else None,
        ) as bx:
            T.annotate_min_blocks_per_sm(shape.blocks_per_sm)
            T.import_source(row_source(shape) + BEST + DRAW_ROW)
            part = T.alloc_shared((shape.part,), shape.dtype)
            of_warps = T.alloc_shared((shape.warps * 3,), "float64", scope="shared")
            of_blocks = T.alloc_shared((blocks * 3,), "int64", scope="shared")
            winners = T.alloc_shared((blocks * 2,), "float64", scope="shared")
            best = T.alloc_shared((1,), "uint32", scope="shared")
            state = T.alloc_local((3,), "float64")
            tx = T.get_thread_binding()
            row = bx // blocks
            rank = bx % blocks
            run = T.ceildiv(vocab_size, STEP * shape.warps * blocks) * STEP
            first = (rank * shape.warps + tx // 32) * run
            T.call_extern("handle", "di_arrive")
            keep(
                logits, mask, row, has_mask, words, first, run, vocab_size, rank, part, of_warps,
                of_blocks, state,
            )  # fmt: skip
            T.call_extern(
                "handle",
                f"di_draw_part<{blocks}>",
                T.address_of(part[tx // 32 * run]),
                first,
                run,
                rank,
                T.access_ptr(state, "r"),
                temperature[row],
                seed[row],
                position[row],
                purpose,
                T.address_of(best[0]),
                T.address_of(of_warps[0]),
                T.address_of(winners[0]),
            )
            T.call_extern("handle", "di_meet")
            if rank == 0:
                T.call_extern(
                    "handle",
                    f"di_write_drawn<{blocks}>",
                    T.access_ptr(state, "r"),
                    T.address_of(winners[0]),
                    T.address_of(token_ids[row]),
                    T.address_of(status[row]),
                )

    return kernel
