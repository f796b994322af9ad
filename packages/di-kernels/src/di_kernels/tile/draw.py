"""`draw_tokens` by TileLang: a row is a cluster's, or one block's where it is short."""

from __future__ import annotations

import torch

from di_kernels.ops.sampling import DrawnTokens
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.filters import row_kernel, rows_of


def draw_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    mask_bits: torch.Tensor | None,
    purpose: int,
) -> DrawnTokens:
    """Arguments as the op passes them; how a row is shared out changes no token."""
    num_rows, device = logits.shape[0], logits.device
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=device)
    status = torch.empty(num_rows, dtype=torch.uint8, device=device)
    if num_rows > 0:
        kernel_for(row_kernel("draw_tokens", logits), device)(
            *rows_of(logits, mask_bits), temperature.contiguous(), seed.contiguous(),
            position.contiguous(), purpose, token_ids, status,
        )  # fmt: skip
    return DrawnTokens(token_ids, status)
