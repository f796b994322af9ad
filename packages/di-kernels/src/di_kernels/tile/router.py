"""`router_topk` by TileLang: one launch, a thread block per row."""

from __future__ import annotations

import torch

from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.views import constant

MAX_EXPERTS = 512
MAX_CHOSEN = 32


def router_topk(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scaling_factor: float,
    row_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments as the op passes them."""
    num_rows, experts = logits.shape
    indices = torch.empty(num_rows, k, dtype=torch.int64, device=logits.device)
    weights = logits.new_empty(num_rows, k)
    if num_rows == 0:
        return indices, weights
    if bias is None:
        bias = constant(experts, 0, torch.float32, logits.device)
    mask = torch.empty(num_rows, dtype=torch.uint8, device=logits.device)
    if row_mask is not None:
        mask = row_mask.contiguous().view(torch.uint8)
    kernel_for("router_topk" if row_mask is None else "router_topk_masked", logits.device)(
        logits.contiguous(), bias.to(torch.float32).contiguous().view(-1, experts), mask,
        int(bias.dim() == 2), scaling_factor, indices, weights,
    )  # fmt: skip
    return indices, weights
