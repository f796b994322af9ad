"""`draw_tokens` by TileLang: one pass over the logits, and a block per row that decides."""

from __future__ import annotations

import torch

from di_kernels.ops.sampling import DrawnTokens
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.views import aligned, constant

THREADS, MAX_PARTS = 256, 128
STATE = 5
"""Float64 of a part: best and second best score, largest allowed logit, largest logit, token."""


def parts_for(num_rows: int, blocks: int, multiprocessors: int) -> int:
    """Parts of a row: enough thread blocks for the device, each with work for every thread."""
    wanted = -(-4 * multiprocessors // num_rows)
    return max(1, min(wanted, -(-blocks // THREADS), MAX_PARTS))


def draw_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    mask_bits: torch.Tensor | None,
    purpose: int,
) -> DrawnTokens:
    """Arguments as the op passes them; how rows are cut changes no token."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=device)
    status = torch.empty(num_rows, dtype=torch.uint8, device=device)
    if num_rows == 0:
        return DrawnTokens(token_ids, status)
    blocks = vocab_size // 4
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    parts = parts_for(num_rows, blocks, sms)
    part_blocks = -(-blocks // parts)
    parts = -(-blocks // part_blocks)
    if mask_bits is None:
        mask = constant(-(-vocab_size // 32), -1, torch.int32, device).unsqueeze(0)
    else:
        mask = mask_bits.contiguous()
    states = torch.empty(num_rows, parts, STATE, dtype=torch.float64, device=device)
    arguments = (
        aligned(logits).view(num_rows, blocks, 4), mask.view(torch.uint32),
        int(mask_bits is not None), temperature.contiguous(), seed.contiguous(),
        position.contiguous(), purpose, part_blocks, states,
    )  # fmt: skip
    dtype = str(logits.dtype).removeprefix("torch.")
    kernel_for(f"draw_screen_{dtype}", device)(*arguments)
    kernel_for(f"draw_decide_{dtype}", device)(*arguments, token_ids, status)
    return DrawnTokens(token_ids, status)
