# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Rows to e4m3 with one scale each, in place or copied to the places of their experts.

The maximum is taken over bit patterns, in which NaN and infinity are the largest: a row that holds
one gets the scale NaN. A row is one thread block's, its values stay in registers.

Builds for sm_80, sm_90a, sm_100a and sm_120a (below sm_90 the conversion is emulated).
"""

import tilelang.language as T

from di_kernels.tile.experts_e4m3 import MAX_SIZE
from di_kernels.tile.fp8_source import FP8_ROWS

_THREADS = 128
_STEPS = MAX_SIZE // (8 * _THREADS)


@T.macro
def _quantize_row(x, row, eighths, values, codes, maxima, scale):
    """Codes (as words of four) of the thread's columns, and the scale of the row."""
    tx = T.get_thread_binding()
    largest = T.alloc_local((1,), "uint32")
    largest[0] = 0
    for step in T.unroll(_STEPS):
        if step * _THREADS + tx < eighths:
            for v in T.vectorized(8):
                values[step * 8 + v] = x[row, step * _THREADS + tx, v]
            T.call_extern(
                "handle",
                "di_largest",
                T.access_ptr(values, "r"),
                step * 8,
                T.access_ptr(largest, "w"),
            )
    maxima[tx // 32] = T.call_extern("uint32", "di_warp_largest", largest[0])
    T.sync_threads()
    for warp in T.unroll(_THREADS // 32):
        largest[0] = T.max(largest[0], maxima[warp])
    scale[0] = T.call_extern("float32", "di_fp8_scale", largest[0])
    for step in T.unroll(_STEPS):
        if step * _THREADS + tx < eighths:
            T.call_extern(
                "handle", "di_to_fp8", T.access_ptr(values, "r"), step * 8, largest[0],
                T.access_ptr(codes, "w"),
            )  # fmt: skip


def quantize_rows(*, overlaps_launch: bool) -> object:
    """Codes (as words of four) and scale of every row; columns in eights."""
    num_rows, eighths = T.dynamic("num_rows, eighths")

    @T.prim_func
    def kernel(
        x: T.Tensor((num_rows, eighths, 8), "bfloat16"),
        codes: T.Tensor((num_rows, eighths, 2), "uint32"),
        scales: T.Tensor((num_rows,), "float32"),
    ):
        with T.Kernel(num_rows, threads=_THREADS) as row:
            T.import_source(FP8_ROWS)
            values = T.alloc_local((8 * _STEPS,), "bfloat16")
            words = T.alloc_local((2 * _STEPS,), "uint32")
            maxima = T.alloc_shared((_THREADS // 32,), "uint32", scope="shared")
            scale = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            if overlaps_launch:
                # In this order: when the next kernel begins, the one before is done.
                T.pdl_sync()
                T.pdl_trigger()
            _quantize_row(x, row, eighths, values, words, maxima, scale)
            if tx == 0:
                scales[row] = scale[0]
            for step in T.unroll(_STEPS):
                if step * _THREADS + tx < eighths:
                    for v in T.vectorized(2):
                        codes[row, step * _THREADS + tx, v] = words[step * 2 + v]

    return kernel


def quantize_permute(*, overlaps_launch: bool) -> object:
    """Codes, scale and routing weight of every row at the places of its experts."""
    num_rows, eighths, k, num_pairs = T.dynamic("num_rows, eighths, k, num_pairs")

    @T.prim_func
    def kernel(
        x: T.Tensor((num_rows, eighths, 8), "bfloat16"),
        weights: T.Tensor((num_rows, k), "float32"),
        position: T.Tensor((num_rows, k), "int32"),
        codes: T.Tensor((num_pairs, eighths, 2), "uint32"),
        scales: T.Tensor((num_pairs,), "float32"),
        sorted_weights: T.Tensor((num_pairs,), "float32"),
    ):
        with T.Kernel(num_rows, threads=_THREADS) as row:
            T.import_source(FP8_ROWS)
            values = T.alloc_local((8 * _STEPS,), "bfloat16")
            words = T.alloc_local((2 * _STEPS,), "uint32")
            maxima = T.alloc_shared((_THREADS // 32,), "uint32", scope="shared")
            scale = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            if overlaps_launch:
                # In this order: when the next kernel begins, the one before is done.
                T.pdl_sync()
                T.pdl_trigger()
            _quantize_row(x, row, eighths, values, words, maxima, scale)
            for place in T.serial(k):
                slot = position[row, place]
                if slot >= 0:
                    if tx == 0:
                        scales[slot] = scale[0]
                        sorted_weights[slot] = weights[row, place]
                    for step in T.unroll(_STEPS):
                        if step * _THREADS + tx < eighths:
                            for v in T.vectorized(2):
                                codes[slot, step * _THREADS + tx, v] = words[step * 2 + v]

    return kernel
