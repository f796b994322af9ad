"""`moe_experts` by TileLang: plan, permute, gate and up with SwiGLU, down, combine.

Launches of fixed size, two of a product where the plan has two tile sizes; no synchronisation with
the host, so a graph captured once serves any routing of as many rows. Rounding follows the
reference: both projections to bfloat16, the activation times the routing weight to bfloat16, each
expert's output to bfloat16, the sum once. Experts outside the range are nobody here; the reference
raises for them.
"""

from __future__ import annotations

from typing import Any

import torch

from di_kernels.fragments import MXFP4FragmentWeight
from di_kernels.ops.quantize import mxfp8_fake_quantize
from di_kernels.tile import experts_e4m3
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.products import routed_name
from di_kernels.tile.plan import Handover, Plan, TileList, in_eights, make_plan


def moe_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: Any,
    w2: Any,
    limit: float,
    quantize_input: bool,
    fp8_input: bool,
    shared: torch.Tensor | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; `batch_invariant` changes nothing, every result is.

    The backend's layouts leave e4m3 fragment order with `fp8_input`, fragment order without.
    """
    out = torch.empty_like(x)
    if indices.numel() == 0:
        return out.zero_() if shared is None else out.copy_(shared)
    plan = make_plan(indices, w2.codes.shape[0], fp8_input=fp8_input)
    row_weights = weights.to(torch.float32).contiguous()
    if fp8_input:
        outputs = experts_e4m3.expert_outputs(x, row_weights, plan, w13, w2, limit)
    else:
        outputs = _bfloat16_outputs(x, row_weights, plan, w13, w2, limit, quantize_input)
    name = "combine" if shared is None else "combine_shared"
    added = x if shared is None else shared.contiguous()
    kernel_for(name, x.device)(in_eights(outputs), plan.position, in_eights(added), in_eights(out))
    return out


def _bfloat16_outputs(
    x: torch.Tensor,
    weights: torch.Tensor,
    plan: Plan,
    w13: MXFP4FragmentWeight,
    w2: MXFP4FragmentWeight,
    limit: float,
    quantize_input: bool,
) -> torch.Tensor:
    """Outputs of the pairs in expert order, shape (pairs, hidden)."""
    pairs = plan.order.numel()
    sorted_x = x.new_empty(pairs, x.shape[1])
    sorted_weights = weights.new_empty(pairs)
    source = mxfp8_fake_quantize(x) if quantize_input else x
    kernel_for("permute", x.device)(
        in_eights(source.contiguous()), weights.flatten(), plan.order, weights.shape[1],
        in_eights(sorted_x), sorted_weights,
    )  # fmt: skip
    activated = routed_product(sorted_x, w13, plan.lists, plan.handover, sorted_weights, limit)
    if quantize_input:
        activated = mxfp8_fake_quantize(activated)
    return routed_product(activated, w2, plan.lists, plan.handover)


def routed_product(
    x: torch.Tensor,
    weight: MXFP4FragmentWeight,
    lists: tuple[TileList, ...],
    handover: Handover,
    row_weights: torch.Tensor | None = None,
    limit: float = 0.0,
) -> torch.Tensor:
    """Sorted rows times their experts' matrices, with SwiGLU where `row_weights` are given."""
    swiglu = row_weights is not None
    row_blocks = weight.codes.shape[1]
    y = x.new_empty(x.shape[0], row_blocks, 32 if swiglu else 64)
    if row_weights is None:
        row_weights = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    for tile_list in lists:
        kernel_for(routed_name(tile_list.rows, swiglu=swiglu), x.device)(
            weight.codes.view(torch.uint32), weight.scales.view(torch.uint32), x, tile_list.tiles,
            row_weights, limit, y, handover.partial, handover.ready,
        )  # fmt: skip
    return y.view(x.shape[0], -1)
