"""`moe_experts` by TileLang: plan, permute, gate and up with SwiGLU, down, combine.

Five launches of fixed size, no synchronisation with the host, so a graph captured once serves any
routing of as many rows. Rounding follows the reference: both projections to bfloat16, the
activation times the routing weight to bfloat16, each expert's output to bfloat16, the sum once.
Experts outside the range are nobody here; the reference raises for them.
"""

from __future__ import annotations

import torch

from di_kernels.fragments import MXFP4FragmentWeight
from di_kernels.ops.quantize import mxfp8_fake_quantize
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.products import ROUTED_TILES, routed_name

_FILLED_TILES = 1.0


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


def moe_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: MXFP4FragmentWeight,
    w2: MXFP4FragmentWeight,
    limit: float,
    quantize_input: bool,
    shared: torch.Tensor | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; `batch_invariant` changes nothing, every result is."""
    device, (num_rows, hidden) = x.device, x.shape
    pairs, experts = indices.numel(), w2.codes.shape[0]
    out = torch.empty_like(x)
    if pairs == 0:
        return out.zero_() if shared is None else out.copy_(shared)
    rows = tile_rows(pairs, experts)
    integers = torch.empty(2 * pairs, dtype=torch.int32, device=device)
    order, position = integers[:pairs], integers[pairs:]
    tiles = torch.empty(num_tiles(pairs, experts, rows), 3, dtype=torch.int32, device=device)
    kernel_for("plan", device)(
        indices.to(torch.int32).flatten(), experts, rows, order, position, tiles
    )
    sorted_x = x.new_empty(pairs, hidden)
    sorted_weights = torch.empty(pairs, dtype=torch.float32, device=device)
    source = mxfp8_fake_quantize(x) if quantize_input else x
    kernel_for("permute", device)(
        source.contiguous(), weights.to(torch.float32).flatten(), order, indices.shape[1],
        sorted_x, sorted_weights,
    )  # fmt: skip
    activated = routed_product(sorted_x, w13, tiles, rows, sorted_weights, limit)
    if quantize_input:
        activated = mxfp8_fake_quantize(activated)
    outputs = routed_product(activated, w2, tiles, rows)
    name = "combine" if shared is None else "combine_shared"
    kernel_for(name, device)(
        outputs, position.view(num_rows, -1), x if shared is None else shared.contiguous(), out
    )
    return out


def routed_product(
    x: torch.Tensor,
    weight: MXFP4FragmentWeight,
    tiles: torch.Tensor,
    rows: int,
    row_weights: torch.Tensor | None = None,
    limit: float = 0.0,
) -> torch.Tensor:
    """Sorted rows times their experts' matrices, with SwiGLU where `row_weights` are given."""
    swiglu = row_weights is not None
    row_blocks = weight.codes.shape[1]
    y = x.new_empty(x.shape[0], row_blocks, 32 if swiglu else 64)
    if row_weights is None:
        row_weights = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    kernel_for(routed_name(rows, swiglu=swiglu), x.device)(
        weight.codes.view(torch.uint32), weight.scales.view(torch.uint32), x, tiles, row_weights,
        limit, y,
    )  # fmt: skip
    return y.view(x.shape[0], -1)
