# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the kernels below as its own language.)
"""Quantisers of the block formats: a thread takes 16 neighbours, two threads a group of 32.

Bits are those of `di_kernels.formats`; codes of a group that holds a NaN or an infinity decode to
NaN, their own bits are not defined. Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.lane_source import LANES

CODE_WORDS = {"mxfp8": 4, "mxfp4": 2, "nvfp4": 2}
"""Words of the codes of 16 values."""

LANES_PER_SCALE = {"mxfp8": 2, "mxfp4": 2, "nvfp4": 1}
"""Threads whose 16 values share a scale."""

_THREADS = 128


@T.macro
def _load(x, lane, num_lanes, values, halves):
    for v in T.unroll(16):
        values[v] = 0
    if lane < num_lanes:
        for half in T.unroll(2):
            for v in T.vectorized(8):
                halves[half * 8 + v] = x[lane, half * 8 + v]
        for v in T.unroll(16):
            values[v] = T.cast(halves[v], "float32")


def quantize(quantizer: str) -> object:
    """Codes and scale bytes of rows of 16 values."""
    num_lanes, num_scales = T.dynamic("num_lanes, num_scales")
    words, per_scale = CODE_WORDS[quantizer], LANES_PER_SCALE[quantizer]

    @T.prim_func
    def kernel(
        x: T.Tensor((num_lanes, 16), "bfloat16"),
        codes: T.Tensor((num_lanes, words), "uint32"),
        scales: T.Tensor((num_scales,), "uint8"),
    ):
        with T.Kernel(T.ceildiv(num_lanes, _THREADS), threads=_THREADS) as block:
            T.import_source(LANES)
            tx = T.get_thread_binding()
            values = T.alloc_local((16,), "float32")
            halves = T.alloc_local((16,), "bfloat16")
            packed = T.alloc_local((words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            lane = block * _THREADS + tx
            _load(x, lane, num_lanes, values, halves)
            scale[0] = T.call_extern(
                "uint32",
                f"di_encode_{quantizer}",
                T.access_ptr(values, "r"),
                T.access_ptr(packed, "w"),
            )
            if lane < num_lanes:
                for v in T.vectorized(words):
                    codes[lane, v] = packed[v]
                if lane % per_scale == 0:
                    scales[lane // per_scale] = T.cast(scale[0], "uint8")

    return kernel


def fake_quantize(quantizer: str) -> object:
    """The values that codes and scales stand for, in bfloat16."""
    num_lanes = T.dynamic("num_lanes")
    words = CODE_WORDS[quantizer]

    @T.prim_func
    def kernel(
        x: T.Tensor((num_lanes, 16), "bfloat16"),
        y: T.Tensor((num_lanes, 16), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(num_lanes, _THREADS), threads=_THREADS) as block:
            T.import_source(LANES)
            tx = T.get_thread_binding()
            values = T.alloc_local((16,), "float32")
            halves = T.alloc_local((16,), "bfloat16")
            packed = T.alloc_local((words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            lane = block * _THREADS + tx
            _load(x, lane, num_lanes, values, halves)
            scale[0] = T.call_extern(
                "uint32",
                f"di_encode_{quantizer}",
                T.access_ptr(values, "r"),
                T.access_ptr(packed, "w"),
            )
            T.call_extern(
                "handle",
                f"di_decode_{quantizer}",
                T.access_ptr(packed, "r"),
                scale[0],
                T.access_ptr(values, "w"),
            )
            if lane < num_lanes:
                for v in T.unroll(16):
                    halves[v] = T.cast(values[v], "bfloat16")
                for half in T.unroll(2):
                    for v in T.vectorized(8):
                        y[lane, half * 8 + v] = halves[half * 8 + v]

    return kernel
