"""Routed experts with FP8 activations, and the kernels that quantise their rows."""

from __future__ import annotations

import functools

from di_kernels.tile.gemm_tile import (
    HOPPER_ARCHITECTURE,
    HOPPER_MULTIPROCESSORS,
    GemmTile,
    RolesTile,
)
from di_kernels.tile.kernel import ROLES, UNGUARDED, Kernel

_EXPERTS = ("moe_experts",)
_NO_E4M3 = {"sm_80": "has no e4m3 matrix instruction; bfloat16 activations serve"}
_SPILLS = {"sm_100a": "mma.sync with these tiles spills up to 72 bytes; tiles of 32 and 128 serve"}
_SPILLING_TILES = (64, 256)

# Tokens per tile. Measured on an H200, see `docs/performance/experts.md`.
E4M3_TILES = {
    8: RolesTile("mxfp4", 8, 2, 4, 3, 3),
    16: RolesTile("mxfp4", 16, 2, 4, 3, 3, stored_tokens=16),
    24: RolesTile("mxfp4", 24, 2, 4, 3, 3),
    32: RolesTile("mxfp4", 32, 2, 4, 2, 3, stored_tokens=32),
    48: RolesTile("mxfp4", 48, 2, 4, 3, 2, overlaps=True, stored_tokens=48),
    64: RolesTile("mxfp4", 64, 2, 4, 3, 2, overlaps=True, stored_tokens=32),
    96: RolesTile(
        "mxfp4", 96, 2, 4, 3, 1, overlaps=True, stored_tokens=48, row_tiles=2,
        moves_registers=True, grid=HOPPER_MULTIPROCESSORS,
    ),
    128: RolesTile(
        "mxfp4", 128, 2, 4, 3, 1, overlaps=True, stored_tokens=64, row_tiles=2,
        moves_registers=True, grid=HOPPER_MULTIPROCESSORS,
    ),
    256: RolesTile(
        "mxfp4", 256, 2, 2, 4, 1, stored_tokens=64, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
}  # fmt: skip
# Gate and up with SwiGLU, whose matrix has twice the columns, where other tiles are faster.
_SWIGLU_TILES = {
    32: RolesTile(
        "mxfp4", 32, 4, 4, 5, 1, overlaps=True, stored_tokens=16, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
    48: RolesTile(
        "mxfp4", 48, 4, 4, 4, 1, overlaps=True, stored_tokens=16, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
    64: RolesTile(
        "mxfp4", 64, 4, 4, 4, 1, overlaps=True, stored_tokens=16, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
}  # fmt: skip
# For other architectures, not measured: (warp groups, blocks of 64 columns per stage, stages,
# thread blocks per SM). mma.sync holds the rows' fragments in registers too; sm_120a has less
# shared memory.
_E4M3_ELSEWHERE = {
    8: (2, 4, 3, 2),
    16: (2, 4, 3, 1),
    24: (2, 4, 2, 1),
    32: (2, 4, 2, 1),
    48: (1, 4, 3, 1),
    64: (1, 4, 3, 1),
    96: (2, 2, 2, 1),
    128: (2, 2, 2, 1),
    256: (1, 2, 2, 1),
}


def e4m3_tile(tokens: int, *, swiglu: bool) -> RolesTile:
    """Tile of a routed product of MXFP4 and e4m3 on Hopper."""
    return _SWIGLU_TILES.get(tokens, E4M3_TILES[tokens]) if swiglu else E4M3_TILES[tokens]


def e4m3_name(tokens: int, *, swiglu: bool) -> str:
    """Catalogue name of a routed product of MXFP4 and e4m3."""
    return f"e4m3_routed_{'swiglu' if swiglu else 'plain'}_{tokens}"


def _routed(architecture: str, *, tokens: int, swiglu: bool) -> object:
    from di_kernels.tile import gemm_e4m3, routed

    if architecture == HOPPER_ARCHITECTURE:
        return routed.routed_gemm_e4m3(e4m3_tile(tokens, swiglu=swiglu), swiglu=swiglu)
    tile = GemmTile("mxfp4", tokens, *_E4M3_ELSEWHERE[tokens])
    return gemm_e4m3.routed_gemm_e4m3(tile, swiglu=swiglu)


def _rows(architecture: str, *, name: str) -> object:
    from di_kernels.tile import fp8_rows

    return getattr(fp8_rows, name)(overlaps_launch=architecture != "sm_80")


def kernels() -> list[Kernel]:
    """Products of every tile, and the quantisers."""
    return [
        *(
            Kernel(
                e4m3_name(tokens, swiglu=swiglu),
                _EXPERTS,
                functools.partial(_routed, tokens=tokens, swiglu=swiglu),
                UNGUARDED,
                has_tensor_core=True,
                other_options={HOPPER_ARCHITECTURE: ROLES},
                undeclared=_NO_E4M3 | (_SPILLS if tokens in _SPILLING_TILES else {}),
            )
            for tokens in E4M3_TILES
            for swiglu in (True, False)
        ),
        Kernel("quantize_permute", _EXPERTS, functools.partial(_rows, name="quantize_permute")),
        Kernel(
            "quantize_rows",
            (*_EXPERTS, "fp8_quantize"),
            functools.partial(_rows, name="quantize_rows"),
        ),
    ]
