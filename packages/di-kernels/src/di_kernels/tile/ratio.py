"""`verify_drafts_by_ratio` by TileLang: the laws of drafts' rows, then a decision per request."""

from __future__ import annotations

import torch

from di_kernels.ops.verification import VerifiedDrafts
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.filters import row_kernel, rows_of
from di_kernels.tile.verification import empty_outcome

_CERTAIN, _DENSE, _OF_LIST = range(3)


def verify_drafts_by_ratio(
    token_ids: torch.Tensor,
    status: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    draft_token_ids: torch.Tensor,
    row_offsets: torch.Tensor,
    width: int,
    mask_bits: torch.Tensor | None,
    q_log_probs: torch.Tensor | None,
    q_token_ids: torch.Tensor | None,
) -> VerifiedDrafts:
    """Arguments as the op passes them; how a row is shared out changes no token."""
    num_requests, device = row_offsets.shape[0] - 1, logits.device
    verified = empty_outcome(num_requests, width, device)
    if num_requests == 0:
        return verified
    laws = torch.empty(logits.shape[0], 2, dtype=torch.float64, device=device)
    rows = rows_of(logits, mask_bits)
    status, temperature = status.contiguous(), temperature.contiguous()
    row_offsets = row_offsets.contiguous()
    if width > 1:
        kernel_for(row_kernel("draft_laws", logits), device)(
            *rows, status, temperature, row_offsets, width - 1, laws
        )
    kernel_for(row_kernel("decide_drafts", logits), device)(
        *rows, token_ids.contiguous(), status, temperature, seed.contiguous(),
        position.contiguous(), draft_token_ids.contiguous(), row_offsets, laws,
        *_draft_laws(q_log_probs, q_token_ids, device), *verified,
    )  # fmt: skip
    return verified


def _draft_laws(
    log_probs: torch.Tensor | None, token_ids: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor | int, ...]:
    """Log-probabilities as float32 or float64, their tokens, kind, whether float64, and sizes."""
    dtypes = torch.float32, torch.float64, torch.int64
    *singles, nobody = (torch.empty(1, dtype=dtype, device=device) for dtype in dtypes)
    if log_probs is None:
        return *singles, nobody, _CERTAIN, 0, 0, 0
    is_double = log_probs.dtype == torch.float64
    _, places, size = log_probs.shape
    if log_probs.numel() > 0:
        singles[is_double] = log_probs.contiguous().flatten()
    if token_ids is None:
        return *singles, nobody, _DENSE, int(is_double), places, size
    listed = token_ids.contiguous().flatten() if token_ids.numel() > 0 else nobody
    return *singles, listed, _OF_LIST, int(is_double), places, size
