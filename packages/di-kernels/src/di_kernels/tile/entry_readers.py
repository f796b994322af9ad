# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Entries out of their records: a warp reads one, a lane 16 channels of it.

Slots outside the pool give zeros. Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.lane_source import LANES
from di_kernels.tile.quantizers import CODE_WORDS, LANES_PER_SCALE

_ROWS_PER_BLOCK = 4
_WARP = 32


def read_records(quantizer: str, out_dtype: str) -> object:
    """Dequantised entries.

    Args:
        quantizer: `mxfp8`, `mxfp4` or `nvfp4`.
        out_dtype: `bfloat16` or `float32`.
    """
    num_rows, num_slots, lanes = T.dynamic("num_rows, num_slots, lanes")
    num_blocks, block_units, block_bytes = T.dynamic("num_blocks, block_units, block_bytes")
    words, per_scale = CODE_WORDS[quantizer], LANES_PER_SCALE[quantizer]
    store = 8 if out_dtype == "bfloat16" else 4

    @T.prim_func
    def kernel(
        slots: T.Tensor((num_slots,), "int32"),
        slot_step: T.int32,
        entries: T.int32,
        code_start: T.int32,
        code_step: T.int32,
        scale_start: T.int32,
        scale_step: T.int32,
        codes: T.Tensor((num_blocks, block_units, words), "uint32"),
        scales: T.Tensor((num_blocks, block_bytes), "uint8"),
        y: T.Tensor((num_rows, lanes, 16), out_dtype),
    ):
        with T.Kernel(
            T.ceildiv(num_rows, _ROWS_PER_BLOCK), threads=_ROWS_PER_BLOCK * _WARP
        ) as block:
            T.import_source(LANES)
            tx = T.get_thread_binding()
            values = T.alloc_local((16,), "float32")
            out = T.alloc_local((16,), out_dtype)
            packed = T.alloc_local((words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            slot = T.alloc_local((1,), "int32")
            place = T.alloc_local((3,), "int32")
            row = block * _ROWS_PER_BLOCK + tx // _WARP
            lane = tx % _WARP
            if row < num_rows and lane < lanes:
                slot[0] = slots[row * slot_step]
                for v in T.unroll(16):
                    values[v] = 0
                if slot[0] >= 0 and slot[0] < num_blocks * entries:
                    place[0] = T.truncdiv(slot[0], entries)
                    place[1] = code_start + T.truncmod(slot[0], entries) * code_step + lane
                    place[2] = (
                        scale_start + T.truncmod(slot[0], entries) * scale_step + lane // per_scale
                    )
                    for v in T.vectorized(words):
                        packed[v] = codes[place[0], place[1], v]
                    scale[0] = T.cast(scales[place[0], place[2]], "uint32")
                    T.call_extern(
                        "handle",
                        f"di_decode_{quantizer}",
                        T.access_ptr(packed, "r"),
                        scale[0],
                        T.access_ptr(values, "w"),
                    )
                for v in T.unroll(16):
                    out[v] = T.cast(values[v], out_dtype)
                for part in T.unroll(16 // store):
                    for v in T.vectorized(store):
                        y[row, lane, part * store + v] = out[part * store + v]

    return kernel
