"""Products with quantised weights: experts, linears, and the kernels that route rows."""

from __future__ import annotations

import functools

from di_kernels.tile.gemm_tile import (
    HOPPER_ARCHITECTURE,
    HOPPER_MULTIPROCESSORS,
    GemmTile,
    RolesTile,
)
from di_kernels.tile.kernel import MMA_SYNC, ROLES, UNGUARDED, Kernel

_EXPERTS = ("moe_experts",)
_LINEARS = ("mxfp8_linear", "grouped_linear")

_TOO_LARGE = {"sm_120a": "needs 160 KB of shared memory, sm_120 has 99; the tile of 128 serves"}
_SPILLS = {"sm_80": "mma.sync with 256 rows and SwiGLU needs over 255 registers; 128 serve"}

# Tokens per tile. Measured on an H200, see `docs/performance/kernels.md`.
ROUTED_TILES = {
    8: RolesTile("mxfp4", 8, 1, 4, 3, 5, uses_mma_sync=True),
    16: RolesTile("mxfp4", 16, 2, 4, 2, 3, stored_tokens=16),
    24: RolesTile("mxfp4", 24, 2, 4, 2, 3, stored_tokens=24),
    32: RolesTile("mxfp4", 32, 2, 4, 2, 3, stored_tokens=16),
    48: RolesTile(
        "mxfp4", 48, 4, 4, 3, 1, overlaps=True, stored_tokens=16, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
    64: RolesTile(
        "mxfp4", 64, 4, 4, 3, 1, overlaps=True, stored_tokens=16, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
    96: RolesTile(
        "mxfp4", 96, 2, 2, 5, 1, overlaps=True, stored_tokens=48, row_tiles=2,
        moves_registers=True, grid=HOPPER_MULTIPROCESSORS,
    ),
    128: RolesTile(
        "mxfp4", 128, 2, 2, 4, 1, overlaps=True, stored_tokens=64, row_tiles=2,
        moves_registers=True, grid=HOPPER_MULTIPROCESSORS,
    ),
    256: RolesTile(
        "mxfp4", 256, 2, 2, 3, 1, overlaps=True, stored_tokens=32, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
}  # fmt: skip
# Gate and up with SwiGLU, whose matrix has twice the columns, where another tile is faster.
_SWIGLU_TILES = {
    32: RolesTile(
        "mxfp4", 32, 4, 4, 4, 1, overlaps=True, stored_tokens=16, moves_registers=True,
        grid=HOPPER_MULTIPROCESSORS,
    ),
}  # fmt: skip
# For other architectures, not measured: (warp groups, blocks of 64 columns per stage, stages,
# thread blocks per SM). TileLang 0.1.15 lowers no more than two stages for sm_80 where the number
# of steps is known at run time only.
_ROUTED_ELSEWHERE = {
    8: (1, 4, 4, 4),
    16: (2, 4, 2, 2),
    24: (1, 4, 2, 2),
    32: (1, 4, 2, 2),
    48: (2, 4, 2, 1),
    64: (2, 4, 2, 1),
    96: (2, 4, 2, 1),
    128: (2, 4, 2, 1),
    256: (2, 1, 4, 1),
}
LINEAR_TILES = {
    8: (2, 4, 3, 2),
    16: (1, 4, 3, 3),
    32: (2, 4, 2, 2),
    64: (1, 4, 2, 2),
    128: (2, 2, 4, 1),
    256: (2, 2, 2, 1),
}
# Tiles for architectures with less shared memory.
_SMALL_TILES = {
    "mxfp4": {8: (1, 4, 2, 4), 96: (2, 1, 2, 1), 128: (2, 1, 2, 1), 256: (2, 1, 2, 1)},
    "mxfp8": {8: (2, 4, 2, 2), 16: (2, 4, 2, 2), 64: (2, 2, 2, 1), 128: (2, 2, 2, 1)},
}
_SMALL_MEMORY = ("sm_80", "sm_120a")
# Without tensor copies TileLang tests and loads the rows of a linear value by value there: stages
# of two blocks spill.
_LINEARS_WITHOUT_TENSOR_COPIES = {128: (2, 1, 2, 1), 256: (2, 1, 2, 1)}
# mma.sync beats wgmma by a percent or two where 8 rows leave the tensor core idle.
_MMA_SYNC_TOKENS = 8
# Linears that gain from converting a block while the one before is multiplied.
_OVERLAPPED = (16, 32, 64, 128)


def routed_tile(tokens: int, *, swiglu: bool) -> RolesTile:
    """Tile of a routed MXFP4 product on Hopper."""
    return _SWIGLU_TILES.get(tokens, ROUTED_TILES[tokens]) if swiglu else ROUTED_TILES[tokens]


def routed_name(tokens: int, *, swiglu: bool) -> str:
    """Catalogue name of a routed MXFP4 product."""
    return f"mxfp4_routed_{'swiglu' if swiglu else 'plain'}_{tokens}"


def linear_name(tokens: int, *, is_split: bool) -> str:
    """Catalogue name of a grouped MXFP8 product."""
    return f"mxfp8_grouped_{'split' if is_split else 'whole'}_{tokens}"


def linear_sizes(tokens: int, architecture: str) -> tuple[int, int, int, int]:
    """Sizes of a grouped MXFP8 product's tile on an architecture, as in `LINEAR_TILES`."""
    if architecture == "sm_80" and tokens in _LINEARS_WITHOUT_TENSOR_COPIES:
        return _LINEARS_WITHOUT_TENSOR_COPIES[tokens]
    return _small_or("mxfp8", tokens, architecture, LINEAR_TILES[tokens])


def _small_or(
    weight: str, tokens: int, architecture: str, sizes: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    return _SMALL_TILES[weight].get(tokens, sizes) if architecture in _SMALL_MEMORY else sizes


def _routed(architecture: str, *, tokens: int, swiglu: bool) -> object:
    from di_kernels.tile import gemm, routed

    if architecture == HOPPER_ARCHITECTURE:
        return routed.routed_gemm(routed_tile(tokens, swiglu=swiglu), swiglu=swiglu)
    tile = GemmTile(
        "mxfp4", tokens, *_small_or("mxfp4", tokens, architecture, _ROUTED_ELSEWHERE[tokens])
    )
    return gemm.routed_gemm(tile, swiglu=swiglu)


def _grouped(architecture: str, *, tokens: int, is_split: bool) -> object:
    from di_kernels.tile.gemm import grouped_gemm

    overlaps = architecture == HOPPER_ARCHITECTURE and tokens in _OVERLAPPED
    tile = GemmTile("mxfp8", tokens, *linear_sizes(tokens, architecture), overlaps)
    return grouped_gemm(tile, is_split=is_split)


def _sum_of_parts(architecture: str) -> object:
    from di_kernels.tile.gemm import sum_of_parts

    return sum_of_parts(overlaps_launch=architecture != "sm_80")


def _routing(architecture: str, *, name: str, **options: bool) -> object:
    from di_kernels.tile import routing

    if name != "plan":
        options["overlaps_launch"] = architecture != "sm_80"
    return getattr(routing, name)(**options)


def kernels() -> list[Kernel]:
    """Products of every tile, and the small kernels around them."""
    combine = functools.partial(_routing, name="combine")
    return [
        *_products(),
        Kernel("sum_of_parts", _LINEARS, _sum_of_parts),
        Kernel("plan", _EXPERTS, functools.partial(_routing, name="plan")),
        Kernel("permute", _EXPERTS, functools.partial(_routing, name="permute")),
        Kernel("combine", _EXPERTS, functools.partial(combine, has_shared=False)),
        Kernel("combine_shared", _EXPERTS, functools.partial(combine, has_shared=True)),
    ]


def _products() -> list[Kernel]:
    kernels = []
    for tokens in ROUTED_TILES:
        for swiglu in (True, False):
            kernels.append(
                Kernel(
                    routed_name(tokens, swiglu=swiglu),
                    _EXPERTS,
                    functools.partial(_routed, tokens=tokens, swiglu=swiglu),
                    UNGUARDED,
                    has_tensor_core=True,
                    other_options={HOPPER_ARCHITECTURE: ROLES},
                    undeclared=_SPILLS if swiglu and tokens == max(ROUTED_TILES) else {},
                )
            )
    for tokens in LINEAR_TILES:
        for is_split in (False, True):
            kernels.append(
                Kernel(
                    linear_name(tokens, is_split=is_split),
                    _LINEARS,
                    functools.partial(_grouped, tokens=tokens, is_split=is_split),
                    MMA_SYNC if tokens == _MMA_SYNC_TOKENS else UNGUARDED,
                    has_tensor_core=True,
                    undeclared=_TOO_LARGE if tokens == max(LINEAR_TILES) else {},
                )
            )
    return kernels
