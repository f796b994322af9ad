"""Log-probabilities of chosen tokens, and the most likely tokens of every row.

The log-probability of a token is its relative logit, (logit - largest) / temperature, minus the
logarithm of the sum of masses of the allowed tokens. Masses are integers (`di_kernels.masses`), so
the normaliser does not depend on the order of addition; one rounding to float32 at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.masses import (
    OK,
    allowed_logits,
    log_of_mass,
    masses_of,
    num_mask_words,
    row_status,
)
from di_kernels.registry import Op


class LogProbs(NamedTuple):
    """Log-probabilities of a batch of rows.

    Args:
        chosen: Of each row's token, shape (num_rows,), float32; -infinity for one that the mask
            forbids, NaN for an id outside the vocabulary and in rows that cannot be drawn from.
        top_token_ids: Most likely tokens first, equal logits by ascending id, shape
            (num_rows, num_top), int64; -1 where fewer tokens are allowed.
        top: Their log-probabilities, float32; -infinity where there is no token.
    """

    chosen: torch.Tensor
    top_token_ids: torch.Tensor
    top: torch.Tensor


def log_probs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    num_top: int = 0,
    temperature: torch.Tensor | None = None,
    mask_bits: torch.Tensor | None = None,
) -> LogProbs:
    """Log-softmax of every row at one token, and the `num_top` largest with their tokens.

    Without `temperature` and mask these are the raw log-probabilities of a model's output. With the
    temperature and the `mask_bits` that `filter_tokens` gave they are those of the distribution
    that `draw_tokens` draws from.

    Args:
        logits: Shape (num_rows, vocab_size), float32 or float64.
        token_ids: Shape (num_rows,), int64.
        num_top: Number of most likely tokens.
        temperature: Shape (num_rows,), float64, at least 0; None is 1. A row of temperature 0 has
            its log-probabilities at temperature 1.
        mask_bits: Allowed tokens, shape (num_rows, ceil(vocab_size / 32)), int32: bit t % 32 of
            word t // 32; None allows all.

    Raises:
        ValueError: The shapes do not match or `num_top` is negative.
        TypeError: A dtype that is not served.
    """
    check_shape("logits", logits, (None, None))
    rows, vocab_size = logits.shape
    check_shape("token_ids", token_ids, (rows,))
    check_dtype("token_ids", token_ids, (torch.int64,))
    if temperature is not None:
        check_shape("temperature", temperature, (rows,))
        check_dtype("temperature", temperature, (torch.float64,))
    if mask_bits is not None:
        check_shape("mask_bits", mask_bits, (rows, num_mask_words(vocab_size)))
        check_dtype("mask_bits", mask_bits, (torch.int32,))
    if num_top < 0:
        raise ValueError(f"expected `num_top` of at least 0, got: {num_top}")
    run = _LOG_PROBS.select(logits, vocab_size=vocab_size, num_top=num_top)
    return run(logits, token_ids, num_top, temperature, mask_bits)


# --- Reference ---


def _log_probs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    num_top: int,
    temperature: torch.Tensor | None,
    mask_bits: torch.Tensor | None,
) -> LogProbs:
    """Masses of the whole row, their sum, and a stable sort for the most likely."""
    vocab_size = logits.shape[1]
    allowed = allowed_logits(logits, mask_bits)
    is_bad = (row_status(logits, allowed) != OK).unsqueeze(1)
    # Rows without a distribution get any finite logits; their result is replaced.
    known = allowed.masked_fill(is_bad, 0)
    relative = known - known.amax(1, keepdim=True)
    if temperature is not None:
        relative = relative / temperature.masked_fill(temperature == 0, 1).unsqueeze(1)
    values = relative - log_of_mass(masses_of(relative).sum(1, keepdim=True))
    is_token = (token_ids >= 0) & (token_ids < vocab_size)
    chosen = values.gather(1, token_ids.clamp(0, vocab_size - 1).unsqueeze(1)).squeeze(1)
    chosen = chosen.masked_fill(is_bad.squeeze(1) | ~is_token, torch.nan)
    order = (known + 0.0).sort(dim=1, descending=True, stable=True).indices  # -0.0 is +0.0
    top_token_ids = order[:, :num_top]
    top = values.gather(1, top_token_ids).masked_fill(is_bad, -torch.inf)
    top_token_ids = top_token_ids.masked_fill(top == -torch.inf, -1)
    missing = (0, num_top - top.shape[1])
    pad = torch.nn.functional.pad
    return LogProbs(
        chosen.float(),
        pad(top_token_ids, missing, value=-1),
        pad(top.float(), missing, value=-torch.inf),
    )


_LOG_PROBS = Op(
    "log_probs",
    _log_probs,
    dtypes=(torch.float32, torch.float64),
    is_differentiable=False,
)
