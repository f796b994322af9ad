"""The plan of routed experts: which pair stands where, and the tiles the products work through.

Twice the rows cost a tile 15 to 30 %, a second pass over an expert's weights nearly 100 %. So a
plan has two sizes: the smallest that holds the average of an expert, and the next for experts above
it, each a list for a launch of its own. With few pairs per expert one size serves alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.experts_e4m3 import E4M3_TILES, e4m3_tile
from di_kernels.tile.catalogue.products import ROUTED_TILES, routed_tile
from di_kernels.tile.gemm_tile import RolesTile

# Tiles that serve alone up to so many pairs per expert on average. A second size would be a launch
# of few tiles, 2 % of the time at 3 pairs and up to 7 % at 8 and 14 (random routing); at 4 pairs
# 2 % of the experts exceed 8 rows. With e4m3 rows a tile of 16 takes 1 % longer than one of 8, one
# of 24 as much again.
_ALONE = ((8, 4),)
_ALONE_E4M3 = ((8, 2), (16, 8), (24, 14))


def tiles_for(*, fp8_input: bool) -> dict[int, tuple[RolesTile, ...]]:
    """Tiles of both products by their rows, small first."""
    tile = e4m3_tile if fp8_input else routed_tile
    return {
        rows: (tile(rows, swiglu=True), tile(rows, swiglu=False))
        for rows in (E4M3_TILES if fp8_input else ROUTED_TILES)
    }


@dataclass(frozen=True, slots=True)
class TileList:
    """Tiles of one size, one launch of a product.

    Args:
        rows: Most rows of a tile.
        tiles: Expert, first place and place past the last, shape (tiles, 3), int32; zeros for none.
    """

    rows: int
    tiles: torch.Tensor


@dataclass(frozen=True, slots=True)
class Handover:
    """Memory through which thread blocks hand sums to each other (`di_kernels.tile.shares`).

    Args:
        partial: Sums, float32, their values of no matter.
        ready: Flags, int32, zeros before every launch and behind it.
    """

    partial: torch.Tensor
    ready: torch.Tensor

    def cleared(self) -> Handover:
        """Itself, flags down: what the plan's kernel does along the way."""
        self.ready.zero_()
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """Pairs of a row and one of its experts in expert order, cut into tiles; on the device.

    Args:
        order: Pair of every place, shape (pairs,), int32.
        position: Place of every pair, -1 for none, shape (rows, k), int32.
        lists: Large tiles first, whose launch takes longer.
        handover: For the launches over these lists, one after the other.
    """

    order: torch.Tensor
    position: torch.Tensor
    lists: tuple[TileList, ...]
    handover: Handover


def tile_sizes(num_pairs: int, num_experts: int, *, fp8_input: bool = False) -> tuple[int, ...]:
    """One or two tile sizes, large first, decided without the device."""
    average = num_pairs / max(1, min(num_experts, num_pairs))
    for rows, most in _ALONE_E4M3 if fp8_input else _ALONE:
        if average <= most:
            return (rows,)
    sizes = list(tiles_for(fp8_input=fp8_input))
    fitting = next((place for place, rows in enumerate(sizes) if average <= rows), len(sizes) - 1)
    small = min(fitting, len(sizes) - 2)
    return sizes[small + 1], sizes[small]


def num_tiles(num_pairs: int, num_experts: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Most tiles of each size that any routing needs."""
    used = min(num_experts, num_pairs)
    if len(sizes) == 1:
        return (used + num_pairs // sizes[0],)
    return max(1, num_pairs // (sizes[1] + 1)), used


def make_plan(indices: torch.Tensor, num_experts: int, *, fp8_input: bool = False) -> Plan:
    """Sorts the pairs of `indices`, shape (rows, k); there must be some."""
    pairs = indices.numel()
    sizes = tile_sizes(pairs, num_experts, fp8_input=fp8_input)
    integers = torch.empty(2, pairs, dtype=torch.int32, device=indices.device)
    lists = tuple(
        TileList(rows, integers.new_empty(count, 3))
        for rows, count in zip(sizes, num_tiles(pairs, num_experts, sizes), strict=True)
    )
    handover = new_handover(sizes, fp8_input=fp8_input, device=indices.device)
    small = lists[1] if len(lists) == 2 else TileList(0, integers.new_empty(1, 3))
    kernel_for("plan", indices.device)(
        indices.to(torch.int32).flatten(), num_experts, small.rows, lists[0].rows, *integers,
        small.tiles, lists[0].tiles, handover.ready,
    )  # fmt: skip
    return Plan(integers[0], integers[1].view(indices.shape), lists, handover)


def new_handover(sizes: tuple[int, ...], *, fp8_input: bool, device: torch.device) -> Handover:
    """Room for tiles of these sizes; the flags are still to be cleared."""
    tiles = [tile for rows in sizes for tile in tiles_for(fp8_input=fp8_input)[rows]]
    num_sums = max(tile.grid * tile.weight_rows * tile.tokens for tile in tiles)
    num_flags = max(tile.grid * tile.threads // 32 for tile in tiles)
    return Handover(
        torch.empty(max(1, num_sums), dtype=torch.float32, device=device),
        torch.empty(max(1, num_flags), dtype=torch.int32, device=device),
    )


def in_eights(rows: torch.Tensor) -> torch.Tensor:
    """Columns as (columns / 8, 8): what copies 16 bytes at a time is compiled for."""
    return rows.view(rows.shape[0], -1, 8)
