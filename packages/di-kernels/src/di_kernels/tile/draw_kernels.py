# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Drawing a token from every row of logits: noise, temperature, mask and maximum in one pass.

Formulas: `di_kernels.ops.sampling`. `screen` reads the logits once. Each thread block takes a part
of a row and leaves its best token by approximate noise, the second best score and the largest
logits. `decide` knows the row's largest logit, scores exactly the best tokens of parts that could
win, and looks through a part token by token where two of its tokens could. So the token does not
depend on the approximation or on how the row was cut.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.draw import MAX_PARTS, STATE, THREADS
from di_kernels.tile.draw_source import DRAW

_WARPS = THREADS // 32


def screen(dtype: str) -> object:
    """States of the parts of every row: best, second, largest allowed, largest, token."""
    num_rows, blocks, mask_rows, words, num_parts = T.dynamic(
        "num_rows, blocks, mask_rows, words, num_parts"
    )

    @T.prim_func
    def kernel(
        logits: T.Tensor((num_rows, blocks, 4), dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        mask_step: T.int32,
        temperature: T.Tensor((num_rows,), "float64"),
        seed: T.Tensor((num_rows,), "int64"),
        position: T.Tensor((num_rows,), "int64"),
        purpose: T.int32,
        part_blocks: T.int32,
        states: T.Tensor((num_rows, num_parts, STATE), "float64"),
    ):
        with T.Kernel(num_parts, num_rows, threads=THREADS) as (part, row):
            T.import_source(DRAW)
            states_s = T.alloc_shared((_WARPS, 4), "float64", scope="shared")
            tokens_s = T.alloc_shared((_WARPS,), "int32", scope="shared")
            values = T.alloc_local((4,), dtype)
            state = T.alloc_local((4,), "float64")
            other = T.alloc_local((4,), "float64")
            token = T.alloc_local((1,), "int32")
            of_row = T.alloc_local((2,), "float64")
            keys = T.alloc_local((2,), "int64")
            tx = T.get_thread_binding()
            of_row[1] = temperature[row]
            of_row[0] = T.call_extern("float64", "di_factor", of_row[1])
            keys[0] = seed[row]
            keys[1] = position[row]
            T.call_extern("handle", "di_clear", T.access_ptr(state, "w"), T.access_ptr(token, "w"))
            for step in T.serial(T.ceildiv(part_blocks, THREADS)):
                block = part * part_blocks + step * THREADS + tx
                if step * THREADS + tx < part_blocks and block < blocks:
                    for v in T.vectorized(4):
                        values[v] = logits[row, block, v]
                    T.call_extern(
                        "handle",
                        "di_screen",
                        T.access_ptr(values, "r"),
                        mask[row * mask_step, block // 8],
                        block,
                        of_row[0],
                        of_row[1],
                        keys[0],
                        keys[1],
                        purpose,
                        T.access_ptr(state, "rw"),
                        T.access_ptr(token, "rw"),
                    )
            T.call_extern(
                "handle",
                "di_merge_over_warp",
                T.access_ptr(state, "rw"),
                T.access_ptr(token, "rw"),
            )
            if tx % 32 == 0:
                for v in T.unroll(4):
                    states_s[tx // 32, v] = state[v]
                tokens_s[tx // 32] = token[0]
            T.sync_threads()
            if tx == 0:
                for warp in T.serial(1, _WARPS):
                    for v in T.unroll(4):
                        other[v] = states_s[warp, v]
                    T.call_extern(
                        "handle",
                        "di_merge",
                        T.access_ptr(state, "rw"),
                        T.access_ptr(token, "rw"),
                        T.access_ptr(other, "r"),
                        tokens_s[warp],
                    )
                for v in T.unroll(4):
                    states[row, part, v] = state[v]
                states[row, part, 4] = T.cast(token[0], "float64")

    return kernel


def decide(dtype: str) -> object:
    """Token and status of every row from the states of its parts; a block per row."""
    num_rows, blocks, mask_rows, words, num_parts = T.dynamic(
        "num_rows, blocks, mask_rows, words, num_parts"
    )

    @T.prim_func
    def kernel(
        logits: T.Tensor((num_rows, blocks, 4), dtype),
        mask: T.Tensor((mask_rows, words), "uint32"),
        mask_step: T.int32,
        temperature: T.Tensor((num_rows,), "float64"),
        seed: T.Tensor((num_rows,), "int64"),
        position: T.Tensor((num_rows,), "int64"),
        purpose: T.int32,
        part_blocks: T.int32,
        states: T.Tensor((num_rows, num_parts, STATE), "float64"),
        tokens: T.Tensor((num_rows,), "int64"),
        status: T.Tensor((num_rows,), "uint8"),
    ):
        with T.Kernel(num_rows, threads=MAX_PARTS) as row:
            T.import_source(DRAW)
            states_s = T.alloc_shared((MAX_PARTS // 32, 4), "float64", scope="shared")
            scores_s = T.alloc_shared((MAX_PARTS // 32,), "float64", scope="shared")
            tokens_s = T.alloc_shared((MAX_PARTS // 32,), "int32", scope="shared")
            searched_s = T.alloc_shared((MAX_PARTS,), "int32", scope="shared")
            values = T.alloc_local((4,), dtype)
            state = T.alloc_local((4,), "float64")
            own = T.alloc_local((2,), "float64")
            other = T.alloc_local((4,), "float64")
            candidate = T.alloc_local((1,), "int32")
            token = T.alloc_local((1,), "int32")
            score = T.alloc_local((1,), "float64")
            margin = T.alloc_local((1,), "float64")
            tx = T.get_thread_binding()
            T.call_extern(
                "handle", "di_clear", T.access_ptr(state, "w"), T.access_ptr(candidate, "w")
            )
            if tx < num_parts:
                for v in T.unroll(4):
                    state[v] = states[row, tx, v]
                candidate[0] = T.cast(states[row, tx, 4], "int32")
            own[0] = state[0]
            own[1] = state[1]
            token[0] = candidate[0]
            T.call_extern(
                "handle",
                "di_merge_over_warp",
                T.access_ptr(state, "rw"),
                T.access_ptr(token, "rw"),
            )
            if tx % 32 == 0:
                for v in T.unroll(4):
                    states_s[tx // 32, v] = state[v]
            T.sync_threads()
            for warp in T.unroll(MAX_PARTS // 32):
                for v in T.unroll(4):
                    other[v] = states_s[warp, v]
                T.call_extern(
                    "handle",
                    "di_merge",
                    T.access_ptr(state, "rw"),
                    T.access_ptr(token, "rw"),
                    T.access_ptr(other, "r"),
                    -1,
                )
            margin[0] = T.call_extern("float64", "di_margin", state[0], temperature[row])
            token[0] = -1
            score[0] = 0
            searched_s[tx] = 0
            if candidate[0] >= 0:
                if T.call_extern("bool", "di_is_close", own[1], state[0], margin[0]):
                    searched_s[tx] = 1
                elif T.call_extern("bool", "di_is_close", own[0], state[0], margin[0]):
                    score[0] = T.call_extern(
                        "float64",
                        "di_score_of",
                        T.cast(logits[row, candidate[0] // 4, candidate[0] % 4], "float64"),
                        candidate[0],
                        state[2],
                        temperature[row],
                        seed[row],
                        position[row],
                        purpose,
                    )
                    token[0] = candidate[0]
            T.sync_threads()
            for part in T.serial(num_parts):
                if searched_s[part] != 0:
                    for step in T.serial(T.ceildiv(part_blocks, MAX_PARTS)):
                        block = part * part_blocks + step * MAX_PARTS + tx
                        if step * MAX_PARTS + tx < part_blocks and block < blocks:
                            for v in T.vectorized(4):
                                values[v] = logits[row, block, v]
                            T.call_extern(
                                "handle",
                                "di_decide",
                                T.access_ptr(values, "r"),
                                mask[row * mask_step, block // 8],
                                block,
                                state[2],
                                temperature[row],
                                seed[row],
                                position[row],
                                purpose,
                                T.access_ptr(score, "rw"),
                                T.access_ptr(token, "rw"),
                            )
            T.call_extern(
                "handle",
                "di_keep_over_warp",
                T.access_ptr(score, "rw"),
                T.access_ptr(token, "rw"),
            )
            if tx % 32 == 0:
                scores_s[tx // 32] = score[0]
                tokens_s[tx // 32] = token[0]
            T.sync_threads()
            if tx == 0:
                for warp in T.serial(1, MAX_PARTS // 32):
                    T.call_extern(
                        "handle",
                        "di_keep",
                        T.access_ptr(score, "rw"),
                        T.access_ptr(token, "rw"),
                        scores_s[warp],
                        tokens_s[warp],
                    )
                status[row] = T.call_extern("uint8", "di_status", state[2], state[3])
                tokens[row] = T.cast(-1, "int64")
                if status[row] == 0:
                    tokens[row] = T.cast(token[0], "int64")

    return kernel
