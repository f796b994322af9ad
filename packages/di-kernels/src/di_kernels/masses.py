"""Probabilities of a row of logits as integers, and sets of its tokens as bits.

A mass is exp of a logit relative to the row's largest, in units of 2^-44. Sums of integers do not
depend on the order of addition, so what is decided by them is the same on every device, for every
number of threads and in every batch, given the same exp. 2^19 tokens of the largest mass do not
overflow 64 bits.
"""

from __future__ import annotations

import torch

MASS_BITS = 44

OK, IS_NAN, IS_INFINITE, NOTHING_ALLOWED = range(4)
"""What became of a row; nothing can be drawn from the last three."""


def masses_of(relative: torch.Tensor) -> torch.Tensor:
    """Masses of relative logits, int64."""
    return (relative.exp() * 2.0**MASS_BITS).round().to(torch.int64)


def log_of_mass(total: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of sums of masses, float64."""
    return (total.double() * 2.0**-MASS_BITS).log()


def allowed_logits(logits: torch.Tensor, mask_bits: torch.Tensor | None) -> torch.Tensor:
    """Logits as float64, -infinity where the mask forbids a token."""
    allowed = logits.double()
    if mask_bits is None:
        return allowed
    return allowed.masked_fill(~unpack_bits(mask_bits, logits.shape[1]), -torch.inf)


def row_status(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """What can be done with each row, uint8: of its logits and of those that are allowed."""
    status = torch.zeros(logits.shape[0], dtype=torch.uint8, device=logits.device)
    status = status.masked_fill((allowed == -torch.inf).all(1), NOTHING_ALLOWED)
    status = status.masked_fill((logits == torch.inf).any(1), IS_INFINITE)
    return status.masked_fill(logits.isnan().any(1), IS_NAN)


def num_mask_words(vocab_size: int) -> int:
    """32-bit words that hold a bit for every token."""
    return -(-vocab_size // 32)


def unpack_bits(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Bit t % 32 of word t // 32 of each row as bool, shape (num_rows, vocab_size)."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, :vocab_size].bool()


def pack_bits(flags: torch.Tensor) -> torch.Tensor:
    """The inverse of `unpack_bits`: int32, bits behind the vocabulary 0."""
    num_words = num_mask_words(flags.shape[1])
    padding = num_words * 32 - flags.shape[1]
    words = torch.nn.functional.pad(flags, (0, padding)).view(flags.shape[0], num_words, 32)
    weights = 1 << torch.arange(32, device=flags.device)
    return (words * weights).sum(-1).to(torch.int32)
