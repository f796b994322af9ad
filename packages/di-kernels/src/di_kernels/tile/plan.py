"""The plan of routed experts: which pair stands where, and the tiles the products work through."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.products import ROUTED_TILES

_FILLED_TILES = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Pairs of a row and one of its experts in expert order, cut into tiles; on the device.

    Args:
        rows: Rows per tile.
        order: Pair of every place, shape (pairs,), int32.
        position: Place of every pair, -1 for none, shape (rows, k), int32.
        tiles: Expert, first place and place past the last, shape (tiles, 3), int32.
    """

    rows: int
    order: torch.Tensor
    position: torch.Tensor
    tiles: torch.Tensor


def tile_rows(num_pairs: int, num_experts: int) -> int:
    """Rows per tile: the smallest that holds the average of an expert, decided without the device.

    Twice the rows cost 15 to 30 %, a second pass over an expert's weights nearly 100 %.
    """
    average = num_pairs / max(1, min(num_experts, num_pairs))
    return next(
        (rows for rows in ROUTED_TILES if average <= rows * _FILLED_TILES), max(ROUTED_TILES)
    )


def num_tiles(num_pairs: int, num_experts: int, rows: int) -> int:
    """Most tiles any routing needs."""
    return min(num_experts, num_pairs) + num_pairs // rows


def make_plan(indices: torch.Tensor, num_experts: int) -> Plan:
    """Sorts the pairs of `indices`, shape (rows, k); there must be some."""
    pairs = indices.numel()
    rows = tile_rows(pairs, num_experts)
    integers = torch.empty(2, pairs, dtype=torch.int32, device=indices.device)
    tiles = integers.new_empty(num_tiles(pairs, num_experts, rows), 3)
    kernel_for("plan", indices.device)(
        indices.to(torch.int32).flatten(), num_experts, rows, *integers, tiles
    )
    return Plan(rows, integers[0], integers[1].view(indices.shape), tiles)


def in_eights(rows: torch.Tensor) -> torch.Tensor:
    """Columns as (columns / 8, 8): what copies 16 bytes at a time is compiled for."""
    return rows.view(rows.shape[0], -1, 8)
