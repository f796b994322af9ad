# mypy: ignore-errors
# ruff: noqa: ANN202
# (TileLang parses the kernels below as its own language.)
"""Engram: hashes of a step, rows of a table, gated addition. Formulas: `di_kernels.ops.engram`.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.engram import COPIES, MAX_HIDDEN, NARROW_HIDDEN
from di_kernels.tile.lane_source import LANES

_HASH_THREADS = 128
_LOOKUP_WARPS = 4
_GATE_THREADS = 320

DECODE = r"""
// Eight e4m3 codes times the power of two of a UE8M0 byte (0 is 2^-127, 255 is NaN), as bfloat16.
template <typename Value>
__device__ __forceinline__ void di_decode_row(const unsigned* codes, unsigned byte,
                                              Value* values) {
  const float scale = byte == 0u ? __uint_as_float(0x00400000u) : di_power(byte);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    values[i] = static_cast<Value>(
        di_from_e4m3((codes[i / 4] >> (8 * (i % 4))) & 0xFFu) * scale);
}
"""


def hash_rows() -> object:
    """Table rows of every layer: a thread for each head of each row, blocks for each order."""
    num_rows, width, layers, orders, heads = T.dynamic("num_rows, width, layers, orders, heads")

    @T.prim_func
    def kernel(
        context: T.Tensor((num_rows, width), "int64"),
        multipliers: T.Tensor((layers, width), "int64"),
        primes: T.Tensor((layers, orders, heads), "int64"),
        offsets: T.Tensor((layers, orders, heads), "int64"),
        pad_id: T.int64,
        rows: T.Tensor((num_rows, layers, orders, heads), "int64"),
    ):
        with T.Kernel(
            T.ceildiv(num_rows * heads, _HASH_THREADS), orders, layers, threads=_HASH_THREADS
        ) as (bx, order, layer):
            mixed = T.alloc_local((1,), "int64")
            token = T.alloc_local((1,), "int64")
            is_blocked = T.alloc_local((1,), "int32")
            row = T.alloc_local((1,), "int32")
            head = T.alloc_local((1,), "int32")
            row[0] = (bx * _HASH_THREADS + T.get_thread_binding()) // heads
            head[0] = (bx * _HASH_THREADS + T.get_thread_binding()) % heads
            if row[0] < num_rows:
                mixed[0] = T.cast(0, "int64")
                is_blocked[0] = 0
                for back in T.serial(order + 2):
                    token[0] = context[row[0], back]
                    if token[0] < 0:
                        is_blocked[0] = 1
                    if is_blocked[0] != 0:
                        token[0] = pad_id
                    mixed[0] = T.bitwise_xor(mixed[0], token[0] * multipliers[layer, back])
                mixed[0] = (
                    T.truncmod(mixed[0], primes[layer, order, head[0]])
                    + offsets[layer, order, head[0]]
                )
                if context[row[0], 0] < 0:
                    mixed[0] = T.cast(-1, "int64")
                rows[row[0], layer, order, head[0]] = mixed[0]

    return kernel


def lookup() -> object:
    """Rows of a table, decoded to bfloat16; a warp per row, row -1 gives zeros.

    Rows the table does not have give zeros too; the reference raises for them.
    """
    num_table_rows, units, groups, num_rows = T.dynamic("num_table_rows, units, groups, num_rows")

    @T.prim_func
    def kernel(
        codes: T.Tensor((num_table_rows, units, 2), "uint32"),
        scales: T.Tensor((num_table_rows, groups), "uint8"),
        rows: T.Tensor((num_rows,), "int64"),
        y: T.Tensor((num_rows, units, 8), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(num_rows, _LOOKUP_WARPS), threads=_LOOKUP_WARPS * 32) as bx:
            T.import_source(LANES + DECODE)
            table_row = T.alloc_local((1,), "int64")
            words = T.alloc_local((2,), "uint32")
            byte = T.alloc_local((1,), "uint32")
            values = T.alloc_local((8,), "bfloat16")
            tx = T.get_thread_binding()
            row = bx * _LOOKUP_WARPS + tx // 32
            if row < num_rows:
                table_row[0] = rows[row]
                for step in T.serial(T.ceildiv(units, 32)):
                    unit = step * 32 + tx % 32
                    if unit < units:
                        byte[0] = T.uint32(127)
                        for v in T.vectorized(2):
                            words[v] = T.uint32(0)
                        if table_row[0] >= 0 and table_row[0] < num_table_rows:
                            for v in T.vectorized(2):
                                words[v] = codes[table_row[0], unit, v]
                            byte[0] = T.cast(scales[table_row[0], unit // 4], "uint32")
                        T.call_extern(
                            "handle",
                            "di_decode_row",
                            T.access_ptr(words, "r"),
                            byte[0],
                            T.access_ptr(values, "w"),
                        )
                        for v in T.vectorized(8):
                            y[row, unit, v] = values[v]

    return kernel


def gate(*, has_mask: bool, is_wide: bool) -> object:
    """Streams plus the gated value: a block per row and copy.

    Rows of up to `NARROW_HIDDEN` columns leave registers for three blocks at a time; `is_wide`
    serves the others.

    `keys` and `value` may be columns of a wider matrix, so they come as units of eight columns with
    the number of units from row to row. With `has_mask` rows of mask 0 are copied.
    """
    steps = -(-(MAX_HIDDEN if is_wide else NARROW_HIDDEN) // 8 // _GATE_THREADS)
    num_rows, units, num_key_units, num_value_units = T.dynamic(
        "num_rows, units, num_key_units, num_value_units"
    )

    @T.prim_func
    def kernel(
        x: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
        keys: T.Tensor((num_key_units, 8), "bfloat16"),
        key_step: T.int32,
        value: T.Tensor((num_value_units, 8), "bfloat16"),
        value_step: T.int32,
        weight: T.Tensor((COPIES, units, 8), "float32"),
        mask: T.Tensor((num_rows,), "uint8"),
        eps: T.float32,
        y: T.Tensor((num_rows, COPIES, units, 8), "bfloat16"),
    ):
        with T.Kernel(COPIES, num_rows, threads=_GATE_THREADS) as (copy, row):
            T.annotate_min_blocks_per_sm(2 if is_wide else 3)
            sums_s = T.alloc_shared((3, _GATE_THREADS // 32), "float32", scope="shared")
            x_values = T.alloc_local((steps, 8), "bfloat16")
            k_values = T.alloc_local((steps, 8), "bfloat16")
            v_values = T.alloc_local((steps, 8), "bfloat16")
            w_values = T.alloc_local((steps, 8), "float32")
            sums = T.alloc_local((3,), "float32")
            share = T.alloc_local((1,), "float32")
            tx = T.get_thread_binding()
            for s in T.unroll(3):
                sums[s] = 0
            for step in T.unroll(steps):
                if step * _GATE_THREADS + tx < units:
                    for v in T.vectorized(8):
                        x_values[step, v] = x[row, copy, step * _GATE_THREADS + tx, v]
                    for v in T.vectorized(8):
                        k_values[step, v] = keys[
                            row * key_step + copy * units + step * _GATE_THREADS + tx, v
                        ]
                    for v in T.vectorized(8):
                        v_values[step, v] = value[row * value_step + step * _GATE_THREADS + tx, v]
                    for u in T.unroll(2):
                        for v in T.vectorized(4):
                            w_values[step, u * 4 + v] = weight[
                                copy, step * _GATE_THREADS + tx, u * 4 + v
                            ]
            for step in T.unroll(steps):
                if step * _GATE_THREADS + tx < units:
                    for v in T.unroll(8):
                        sums[0] += (
                            T.cast(x_values[step, v], "float32")
                            * w_values[step, v]
                            * T.cast(k_values[step, v], "float32")
                        )
                        sums[1] += T.cast(x_values[step, v], "float32") * T.cast(
                            x_values[step, v], "float32"
                        )
                        sums[2] += T.cast(k_values[step, v], "float32") * T.cast(
                            k_values[step, v], "float32"
                        )
            for s in T.unroll(3):
                sums[s] = T.warp_reduce_sum(sums[s])
                if tx % 32 == 0:
                    sums_s[s, tx // 32] = sums[s]
            T.sync_threads()
            for s in T.unroll(3):
                sums[s] = 0
                for warp in T.unroll(_GATE_THREADS // 32):
                    sums[s] += sums_s[s, warp]
            share[0] = (
                sums[0]
                * T.rsqrt(sums[1] / T.cast(8 * units, "float32") + eps)
                * T.rsqrt(sums[2] / T.cast(8 * units, "float32") + eps)
                * T.rsqrt(T.cast(8 * units, "float32"))
            )
            share[0] = T.copysign(T.sqrt(T.max(T.abs(share[0]), T.float32(1e-6))), share[0])
            share[0] = 1.0 / (1.0 + T.exp(-share[0]))
            for step in T.unroll(steps):
                if step * _GATE_THREADS + tx < units:
                    if not has_mask or mask[row] != 0:
                        for v in T.unroll(8):
                            x_values[step, v] = T.cast(
                                T.cast(x_values[step, v], "float32")
                                + share[0] * T.cast(v_values[step, v], "float32"),
                                "bfloat16",
                            )
                    for v in T.vectorized(8):
                        y[row, copy, step * _GATE_THREADS + tx, v] = x_values[step, v]

    return kernel
