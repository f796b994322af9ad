"""`verify_drafts` by TileLang: one launch."""

from __future__ import annotations

import torch

from di_kernels.ops.verification import VerifiedDrafts
from di_kernels.tile.catalogue import kernel_for


def verify_drafts(
    token_ids: torch.Tensor,
    status: torch.Tensor,
    draft_token_ids: torch.Tensor,
    row_offsets: torch.Tensor,
    width: int,
) -> VerifiedDrafts:
    """Arguments as the op passes them."""
    num_requests, device = row_offsets.shape[0] - 1, token_ids.device
    verified = empty_outcome(num_requests, width, device)
    if num_requests > 0:
        kernel_for("verify_drafts", device)(
            token_ids.contiguous(), status.contiguous(), draft_token_ids.contiguous(),
            row_offsets.contiguous(), *verified,
        )  # fmt: skip
    return verified


def empty_outcome(num_requests: int, width: int, device: torch.device) -> VerifiedDrafts:
    """Room for the outcome of so many requests."""
    return VerifiedDrafts(
        torch.empty(num_requests, width, dtype=torch.int64, device=device),
        torch.empty(num_requests, dtype=torch.int64, device=device),
        torch.empty(num_requests, dtype=torch.int64, device=device),
        torch.empty(num_requests, dtype=torch.uint8, device=device),
    )
