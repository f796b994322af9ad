# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Sum over the parts of sparse attention in their order, with the sink and the rotation back."""

import tilelang.language as T

from di_kernels.tile.attention_shapes import (
    DIM,
    HEADS,
    LOG2_E,
    ROTARY,
    finite_sink,
    load_angles,
)
from di_kernels.tile.cuda_source import COMMON, RECORDS, ROTATION

MAX_PARTS = 10


def merge_parts(*, overlaps_launch: bool) -> object:
    """Sum of the parts of every row and head in their order, with the sink, as bfloat16.

    With `overlaps_launch` the launch overlaps the kernel before it (sm_90 and later).
    """
    num_rows, num_parts, table_rows = T.dynamic("num_rows, num_parts, table_rows")

    @T.prim_func
    def kernel(
        part_sum: T.Tensor((num_parts, num_rows, HEADS, DIM), "float32"),
        part_peak: T.Tensor((num_parts, num_rows, HEADS), "float32"),
        part_total: T.Tensor((num_parts, num_rows, HEADS), "float32"),
        sink: T.Tensor((HEADS,), "float32"),
        cosines: T.Tensor((table_rows, ROTARY), "float32"),
        sines: T.Tensor((table_rows, ROTARY), "float32"),
        rotates: T.int32,
        out: T.Tensor((num_rows, HEADS, DIM), "bfloat16"),
    ):
        with T.Kernel(HEADS // 2, num_rows, threads=128) as (pair, row):
            T.import_source(COMMON + RECORDS + ROTATION)
            if overlaps_launch:
                T.pdl_trigger()
                T.pdl_sync()
            tx = T.get_thread_binding()
            head = pair * 2 + tx // 64
            part_values = T.alloc_local((MAX_PARTS * 8,), "float32")
            peaks = T.alloc_local((MAX_PARTS,), "float32")
            totals = T.alloc_local((MAX_PARTS,), "float32")
            sums = T.alloc_local((8,), "float32")
            rounded = T.alloc_local((8,), "bfloat16")
            ordered = T.alloc_local((8,), "bfloat16")
            state = T.alloc_local((3,), "float32")
            cosine = T.alloc_local((8,), "float32")
            sine = T.alloc_local((8,), "float32")
            # All loads before the first use: their latency is paid once, not part by part.
            for part in T.unroll(MAX_PARTS):
                totals[part] = 0
                peaks[part] = 0
                for v in T.unroll(8):
                    part_values[part * 8 + v] = 0
                if part < num_parts:
                    totals[part] = part_total[part, row, head]
                    peaks[part] = part_peak[part, row, head]
                    for u in T.unroll(2):
                        for v in T.vectorized(4):
                            part_values[part * 8 + u * 4 + v] = part_sum[
                                part, row, head, tx % 64 * 8 + u * 4 + v
                            ]
            state[0] = -T.float32(3e38)
            for part in T.unroll(MAX_PARTS):
                if totals[part] > 0:
                    state[0] = T.max(state[0], peaks[part])
            state[1] = 0
            for v in T.unroll(8):
                sums[v] = 0
            for part in T.unroll(MAX_PARTS):
                if totals[part] > 0:
                    state[2] = T.exp2(peaks[part] - state[0])
                    state[1] += state[2] * totals[part]
                    for v in T.unroll(8):
                        sums[v] += state[2] * part_values[part * 8 + v]
            if state[1] > 0:
                state[1] = 1 / (
                    state[1] + T.exp2(finite_sink(sink[head]) * T.float32(LOG2_E) - state[0])
                )
            for v in T.unroll(8):
                rounded[v] = T.cast(sums[v] * state[1], "bfloat16")
            T.call_extern(
                "handle",
                "di_separate_halves",
                T.access_ptr(rounded, "r"),
                T.access_ptr(ordered, "w"),
            )
            if rotates != 0 and tx % 64 >= (DIM - ROTARY) // 8:
                load_angles(cosines, sines, row, tx % 64 * 8 - (DIM - ROTARY), cosine, sine)
                T.call_extern(
                    "handle",
                    "di_rotate",
                    T.access_ptr(ordered, "rw"),
                    T.access_ptr(cosine, "r"),
                    T.access_ptr(sine, "r"),
                    T.float32(-1),
                )
            for v in T.vectorized(8):
                out[row, head, tx % 64 * 8 + v] = ordered[v]

    return kernel
