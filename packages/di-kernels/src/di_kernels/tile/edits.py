"""`edit_logits` by TileLang: one launch, each thread block with a part of a row."""

from __future__ import annotations

import torch

from di_kernels.ops.logit_edits import Penalties, TokenValues
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.filters import rows_of

_LARGEST_PART = 8192


def edit_logits(
    logits: torch.Tensor,
    bias: TokenValues | None,
    penalties: Penalties | None,
    mask_bits: torch.Tensor | None,
) -> torch.Tensor:
    """Arguments as the op passes them."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    edited = torch.empty(num_rows, vocab_size, dtype=torch.float64, device=device)
    if num_rows == 0:
        return edited
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    parts = min(max(1, -(-4 * sms // num_rows)), -(-vocab_size // 1024))
    part_size = min(-(-vocab_size // (4 * parts)) * 4, _LARGEST_PART)
    factors = (torch.empty(1, dtype=torch.float64, device=device),) * 3
    if penalties is not None:
        factors = penalties.repetition, penalties.frequency, penalties.presence
    counts = None if penalties is None else penalties.counts
    kernel_for(f"edit_logits_{str(logits.dtype).removeprefix('torch.')}", device)(
        *rows_of(logits, mask_bits), *_entries(bias, device), _has(bias),
        *_entries(counts, device), *(factor.contiguous() for factor in factors), _has(counts),
        part_size, edited,
    )  # fmt: skip
    return edited


def _has(entries: TokenValues | None) -> int:
    return int(entries is not None and entries.token_ids.shape[0] > 0)


def _entries(entries: TokenValues | None, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Contiguous entries; one that nobody reads where there are none."""
    if entries is None or not _has(entries):
        number = torch.empty(1, dtype=torch.int64, device=device)
        return number, number, torch.empty(1, dtype=torch.float64, device=device)
    return tuple(part.contiguous() for part in entries)
