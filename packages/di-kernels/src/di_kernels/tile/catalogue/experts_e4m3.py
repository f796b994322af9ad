"""Routed experts with FP8 activations, and the kernels that quantise their rows."""

from __future__ import annotations

import functools

from di_kernels.tile.catalogue.products import ROUTED_TILES
from di_kernels.tile.kernel import UNGUARDED, Kernel

_Sizes = tuple[int, int, int, int, bool, int]
_EXPERTS = ("moe_experts",)
_NO_E4M3 = {"sm_80": "has no e4m3 matrix instruction; bfloat16 activations serve"}
_SPILLS = {"sm_100a": "mma.sync with these tiles spills up to 72 bytes; tiles of 32 and 128 serve"}
_SPILLING_TILES = (64, 256)

# Tokens per tile: (warp groups, blocks of 64 columns per stage, stages, thread blocks per SM,
# whether conversion and products overlap, tiles of weight rows per warp group).
E4M3_TILES: dict[int, _Sizes] = {
    8: (2, 4, 3, 3, False, 1),
    16: (2, 4, 3, 3, False, 1),
    32: (2, 4, 4, 2, False, 1),
    64: (2, 4, 3, 2, False, 1),
    128: (2, 4, 3, 1, True, 2),
    256: (2, 2, 4, 1, False, 1),
}
# mma.sync holds the rows' fragments in registers too; sm_120a has less shared memory as well.
_MMA_SYNC_TILES: dict[int, _Sizes] = {
    8: (2, 4, 3, 2, False, 1),
    16: (2, 4, 3, 1, False, 1),
    32: (2, 4, 2, 1, False, 1),
    64: (1, 4, 3, 1, False, 1),
    128: (2, 2, 2, 1, False, 1),
    256: (1, 2, 2, 1, False, 1),
}


def e4m3_name(tokens: int, *, swiglu: bool) -> str:
    """Catalogue name of a routed product of MXFP4 and e4m3."""
    return f"e4m3_routed_{'swiglu' if swiglu else 'plain'}_{tokens}"


def _routed(architecture: str, *, tokens: int, swiglu: bool) -> object:
    from di_kernels.tile.gemm import GemmTile
    from di_kernels.tile.gemm_e4m3 import routed_gemm_e4m3

    tiles = E4M3_TILES if architecture == "sm_90a" else _MMA_SYNC_TILES
    return routed_gemm_e4m3(GemmTile("mxfp4", tokens, *tiles[tokens]), swiglu=swiglu)


def _rows(architecture: str, *, name: str) -> object:
    from di_kernels.tile import fp8_rows

    return getattr(fp8_rows, name)()


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
                undeclared=_NO_E4M3 | (_SPILLS if tokens in _SPILLING_TILES else {}),
            )
            for tokens in ROUTED_TILES
            for swiglu in (True, False)
        ),
        Kernel("quantize_permute", _EXPERTS, functools.partial(_rows, name="quantize_permute")),
        Kernel(
            "quantize_rows",
            (*_EXPERTS, "fp8_quantize"),
            functools.partial(_rows, name="quantize_rows"),
        ),
    ]
