# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""Gathers of packed records into bfloat16 key tiles in shared memory, by one warp group.

| record | units of 16 bytes | contents |
|---|---|---|
| `mxfp8` (528 bytes) | 0 .. 31, 32 | 512 e4m3 codes, 16 UE8M0 scales |
| `nvfp4` (288 bytes) | 0 .. 15, 16 .. 17 | 512 e2m1 codes, 32 e4m3 scales |

A pool is seen as units of 16 bytes; slot n starts at unit n // entries * block_stride +
section_offset + n % entries * record.
"""

import tilelang.language as T

TILE = 64
RECORD_UNITS = {"mxfp8": 33, "nvfp4": 18}


def record_macros(selected_format: str) -> tuple[object, ...]:
    """Gathers and conversions of a tile, piece by piece.

    The next piece's records are in registers before the current one is converted. A warp takes 8
    keys x 4 chunks, so that its stores hit 8 swizzled places; `mxfp8` tiles are 4 pieces of 16
    keys, `nvfp4` tiles 2 of 32.
    """

    @T.macro
    def load_nvfp4(units, starts, codes, scales, tile, piece, tx):
        for u in T.unroll(4):
            scales[u] = T.uint32(0)
            for v in T.vectorized(4):
                codes[u * 4 + v] = T.uint32(0)
        start = starts[tile * TILE + piece * 32 + (tx - 256) // 32 * 8 + tx % 8]
        if start >= 0:
            for u in T.unroll(4):
                for v in T.vectorized(4):
                    codes[u * 4 + v] = units[start + u * 4 + tx % 32 // 8, v]
                scales[u] = units[start + 16 + u // 2, u % 2 * 2 + tx % 32 // 16]

    @T.macro
    def store_nvfp4(codes, scales, keys_s, values, buffer, piece, tx):
        for u in T.unroll(4):
            T.call_extern(
                "handle",
                "di_unpack_nvfp4_record",
                T.access_ptr(codes[u * 4], "r", 4),
                scales[u],
                tx // 8 % 2,
                T.access_ptr(values, "w"),
            )
            for part in T.unroll(4):
                for v in T.vectorized(8):
                    keys_s[
                        buffer,
                        piece * 32 + (tx - 256) // 32 * 8 + tx % 8,
                        (u * 4 + tx % 32 // 8) * 32 + part * 8 + v,
                    ] = values[part * 8 + v]

    @T.macro
    def load_mxfp8(units, starts, codes, scales, tile, piece, tx):
        for u in T.unroll(4):
            scales[u] = T.uint32(0)
            for v in T.vectorized(4):
                codes[u * 4 + v] = T.uint32(0)
        start = starts[tile * TILE + piece * 16 + (tx - 256) // 32 % 2 * 8 + tx % 8]
        if start >= 0:
            for u in T.unroll(4):
                for v in T.vectorized(4):
                    codes[u * 4 + v] = units[
                        start + (tx - 256) // 64 * 16 + u * 4 + tx % 32 // 8, v
                    ]
                scales[u] = units[start + 32, (tx - 256) // 64 * 2 + u // 2]

    @T.macro
    def store_mxfp8(codes, scales, keys_s, values, buffer, piece, tx):
        for u in T.unroll(4):
            T.call_extern(
                "handle",
                "di_unpack_mxfp8_record",
                T.access_ptr(codes[u * 4], "r", 4),
                scales[u],
                u % 2 * 2 + tx % 32 // 16,
                T.access_ptr(values, "w"),
            )
            for part in T.unroll(2):
                for v in T.vectorized(8):
                    keys_s[
                        buffer,
                        piece * 16 + (tx - 256) // 32 % 2 * 8 + tx % 8,
                        ((tx - 256) // 64 * 16 + u * 4 + tx % 32 // 8) * 16 + part * 8 + v,
                    ] = values[part * 8 + v]

    @T.macro
    def load_first(window, selected, starts, codes, scales, tile, span, tx):
        if tile < span[2]:
            if span[1] + tile < span[0]:
                load_mxfp8(window, starts, codes, scales, tile, 0, tx)
            elif selected_format == "mxfp8":
                load_mxfp8(selected, starts, codes, scales, tile, 0, tx)
            else:
                load_nvfp4(selected, starts, codes, scales, tile, 0, tx)

    return load_first, load_nvfp4, store_nvfp4, load_mxfp8, store_mxfp8
