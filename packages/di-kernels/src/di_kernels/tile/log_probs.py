"""`log_probs` by TileLang: a row is a cluster's, or one block's where it is short."""

from __future__ import annotations

import torch

from di_kernels.ops.log_probs import LogProbs
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.filters import of_rows, row_kernel, rows_of


def log_probs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    num_top: int,
    temperature: torch.Tensor | None,
    mask_bits: torch.Tensor | None,
) -> LogProbs:
    """Arguments as the op passes them; how a row is shared out changes no bit."""
    num_rows, device = logits.shape[0], logits.device
    chosen = torch.empty(num_rows, dtype=torch.float32, device=device)
    columns = max(1, num_top)  # a kernel takes no tensor without elements
    top_token_ids = torch.empty(num_rows, columns, dtype=torch.int64, device=device)
    top = torch.empty(num_rows, columns, dtype=torch.float32, device=device)
    if num_rows > 0:
        kernel_for(row_kernel("log_probs", logits), device)(
            *rows_of(logits, mask_bits),
            *of_rows(temperature, torch.float64, device), token_ids.contiguous(), num_top,
            chosen, top_token_ids, top,
        )  # fmt: skip
    return LogProbs(chosen, top_token_ids[:, :num_top], top[:, :num_top])
