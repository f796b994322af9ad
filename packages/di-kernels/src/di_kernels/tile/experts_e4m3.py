"""Routed experts with FP8 activations: quantise and permute, gate and up, quantise, down."""

from __future__ import annotations

import torch

from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.experts_e4m3 import e4m3_name
from di_kernels.tile.plan import Handover, Plan, TileList, in_eights

MAX_SIZE = 8192
"""Columns of a row that the quantising thread block keeps in registers."""


def expert_outputs(
    x: torch.Tensor,
    weights: torch.Tensor,
    plan: Plan,
    w13: MXFP4E4M3FragmentWeight,
    w2: MXFP4E4M3FragmentWeight,
    limit: float,
) -> torch.Tensor:
    """Outputs of the pairs in expert order, shape (pairs, hidden), bfloat16.

    Args:
        x: Shape (rows, hidden), bfloat16.
        weights: Routing weights, shape (rows, k), float32.
        plan: Of the rows' experts.
        w13: Gate and up, interleaved.
        w2: Down.
        limit: Clamp of the SwiGLU.
    """
    pairs = plan.order.numel()
    codes = x.new_empty(pairs, x.shape[1], dtype=torch.float8_e4m3fn)
    scales, sorted_weights = weights.new_empty(2, pairs)
    kernel_for("quantize_permute", x.device)(
        in_eights(x.contiguous()), weights, plan.position, _words(codes), scales, sorted_weights
    )
    activated = routed_product(codes, scales, w13, plan.lists, plan.handover, sorted_weights, limit)
    return routed_product(*fp8_quantize(activated), w2, plan.lists, plan.handover)


def fp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments and results as the op's."""
    flat = x.reshape(-1, x.shape[-1])
    codes = torch.empty_like(flat, dtype=torch.float8_e4m3fn)
    scales = flat.new_empty(flat.shape[0], dtype=torch.float32)
    if flat.shape[0]:
        kernel_for("quantize_rows", x.device)(in_eights(flat), _words(codes), scales)
    return codes.view(x.shape), scales.view(x.shape[:-1])


def routed_product(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: MXFP4E4M3FragmentWeight,
    lists: tuple[TileList, ...],
    handover: Handover,
    row_weights: torch.Tensor | None = None,
    limit: float = 0.0,
) -> torch.Tensor:
    """Sorted rows times their experts' matrices, with SwiGLU where `row_weights` are given."""
    swiglu = row_weights is not None
    pairs, row_blocks = codes.shape[0], weight.codes.shape[1]
    y = codes.new_empty(pairs, row_blocks, 32 if swiglu else 64, dtype=torch.bfloat16)
    for tile_list in lists:
        kernel_for(e4m3_name(tile_list.rows, swiglu=swiglu), codes.device)(
            weight.codes.view(torch.uint32), weight.scales.view(torch.uint32), weight.row_factors,
            codes, scales, tile_list.tiles, scales if row_weights is None else row_weights, limit,
            y, handover.partial, handover.ready,
        )  # fmt: skip
    return y.view(pairs, -1)


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Columns as (columns / 8, 2) words of four codes."""
    return codes.view(torch.uint32).view(codes.shape[0], -1, 2)
