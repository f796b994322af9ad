# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernel below as its own language.)
"""Acceptance of drafts that equal the target's tokens: a thread per request.

Rule: `di_kernels.ops.verification`. Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

THREADS = 128


def verify_drafts() -> object:
    """Emitted tokens, their number, accepted drafts and status of every request."""
    num_rows, num_requests, width = T.dynamic("num_rows, num_requests, width")

    @T.prim_func
    def kernel(
        token_ids: T.Tensor((num_rows,), "int64"),
        status: T.Tensor((num_rows,), "uint8"),
        drafts: T.Tensor((num_rows,), "int64"),
        offsets: T.Tensor((num_requests + 1,), "int64"),
        emitted: T.Tensor((num_requests, width), "int64"),
        num_accepted: T.Tensor((num_requests,), "int64"),
        num_emitted: T.Tensor((num_requests,), "int64"),
        code: T.Tensor((num_requests,), "uint8"),
    ):
        with T.Kernel(T.ceildiv(num_requests, THREADS), threads=THREADS) as bx:
            accepted = T.alloc_local((1,), "int32")
            is_open = T.alloc_local((1,), "bool")
            request = bx * THREADS + T.get_thread_binding()
            if request < num_requests:
                first = T.cast(offsets[request], "int32")
                size = T.cast(offsets[request + 1], "int32") - first
                accepted[0] = 0
                is_open[0] = True
                for place in T.serial(width):
                    emitted[request, place] = T.int64(-1)
                    if is_open[0] and place < size:
                        if status[first + place] != 0:
                            is_open[0] = False
                        else:
                            emitted[request, place] = token_ids[first + place]
                            if place + 1 < size and (
                                token_ids[first + place] == drafts[first + place]
                            ):
                                accepted[0] += 1
                            else:
                                is_open[0] = False
                num_accepted[request] = T.cast(accepted[0], "int64")
                code[request] = status[first + accepted[0]]
                num_emitted[request] = T.cast(
                    accepted[0] + T.if_then_else(status[first + accepted[0]] == 0, 1, 0), "int64"
                )

    return kernel
