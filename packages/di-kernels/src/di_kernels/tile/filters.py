"""`filter_tokens` by TileLang: a row is a cluster's, or one block's where it is short."""

from __future__ import annotations

import torch

from di_kernels.masses import num_mask_words
from di_kernels.tile.catalogue import kernel_for

_SHORT_ROW = 8192


def row_kernel(op: str, logits: torch.Tensor) -> str:
    """Name of the kernel for rows of such logits."""
    dtype = str(logits.dtype).removeprefix("torch.")
    return f"{op}_{dtype}_{'block' if logits.shape[1] <= _SHORT_ROW else 'cluster'}"


def of_rows(
    values: torch.Tensor | None, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, int]:
    """Values of rows and 1, or a number that nobody reads and 0."""
    if values is None:
        return torch.empty(1, dtype=dtype, device=device), 0
    return values.contiguous(), 1


def rows_of(
    logits: torch.Tensor, mask_bits: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Logits with neighbouring columns, words of masks and 1, or words that nobody reads and 0."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    if mask_bits is None:
        words = num_mask_words(logits.shape[1])
        return logits, torch.empty(1, words, dtype=torch.uint32, device=logits.device), 0
    return logits, mask_bits.contiguous().view(torch.uint32), 1


def filter_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    mask_bits: torch.Tensor | None,
) -> torch.Tensor:
    """Arguments as the op passes them; how a row is shared out changes no bit."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    bits = torch.empty(num_rows, num_mask_words(vocab_size), dtype=torch.int32, device=device)
    if num_rows == 0:
        return bits
    kernel_for(row_kernel("filter_tokens", logits), device)(
        *rows_of(logits, mask_bits), temperature.contiguous(),
        *of_rows(top_k, torch.int64, device), *of_rows(top_p, torch.float64, device),
        *of_rows(min_p, torch.float64, device), bits.view(torch.uint32),
    )  # fmt: skip
    return bits
