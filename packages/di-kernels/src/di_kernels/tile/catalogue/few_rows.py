"""MXFP8 products of few rows, whose launches overlap."""

from __future__ import annotations

import functools

from di_kernels.tile.gemm_tile import GemmTile
from di_kernels.tile.kernel import MMA_SYNC, UNGUARDED, Kernel

_OPS = ("mxfp8_linear", "grouped_linear")
_ELSEWHERE = {
    "sm_80": "has no clusters and no dependent launches; `mxfp8_grouped_*` serve",
    "sm_120a": "needs 82 to 112 KB of shared memory, sm_120 has 99; `mxfp8_grouped_*` serve",
}

# Rows per tile: (warp groups, blocks of 64 columns per stage, stages, thread blocks per SM).
FEW_ROWS_TILES = {8: (2, 4, 3, 2), 16: (2, 4, 2, 2), 32: (2, 4, 2, 2)}
CLUSTER = 8
"""Parts of the columns where they are blocks of a cluster."""

WHOLE_TILES = (8, 16)
"""Tiles that serve without parts; with 32 rows those of `products` are faster."""


def few_rows_name(tokens: int, sums: str) -> str:
    """Catalogue name; `sums` is `whole` or `cluster`."""
    return f"mxfp8_few_rows_{sums}_{tokens}"


def few_rows_options(tokens: int) -> tuple[tuple[str, object], ...]:
    """Pass options; with 8 rows the tensor core idles under wgmma."""
    return MMA_SYNC if tokens == min(FEW_ROWS_TILES) else UNGUARDED


def few_rows_tile(tokens: int, architecture: str) -> GemmTile:
    """Tile of so many rows."""
    overlaps = architecture == "sm_90a" and tokens > min(FEW_ROWS_TILES)
    return GemmTile("mxfp8", tokens, *FEW_ROWS_TILES[tokens], overlaps)


def build_few_rows(
    architecture: str, *, tokens: int, sums: str, overlaps_launch: bool = True
) -> object:
    """The kernel, also without dependent launches to see what they gain."""
    from di_kernels.tile.few_rows import few_rows_linear

    cluster = CLUSTER if sums == "cluster" else 1
    tile = few_rows_tile(tokens, architecture)
    return few_rows_linear(tile, cluster, overlaps_launch=overlaps_launch)


def kernels() -> list[Kernel]:
    """Tiles with parts in a cluster, and those that serve without parts."""
    variants = [(tokens, "whole") for tokens in WHOLE_TILES]
    variants += [(tokens, "cluster") for tokens in FEW_ROWS_TILES]
    return [
        Kernel(
            few_rows_name(tokens, sums),
            _OPS,
            functools.partial(build_few_rows, tokens=tokens, sums=sums),
            few_rows_options(tokens),
            has_tensor_core=True,
            undeclared=_ELSEWHERE,
        )
        for tokens, sums in variants
    ]
