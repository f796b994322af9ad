"""What is done to logits before temperature: bias, penalties and a mask, in float64.

In this order, as vLLM 0.33.0 does (`v1/sample/sampler.py`): a bias is added; the repetition penalty
divides positive and multiplies other logits of the tokens of prompt and output; the frequency
penalty is subtracted once for every occurrence in the output, the presence penalty once for every
token that occurs there; tokens outside the mask become -infinity. Bias and penalties are finite, so
a token that any step forbids stays forbidden: banned tokens, bad words and a grammar are one mask.
NaN and +infinity stay where they are, masked or not: the draw reports their row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.masses import num_mask_words, unpack_bits
from di_kernels.registry import Op


class TokenValues(NamedTuple):
    """Numbers of some tokens of every row.

    Args:
        offsets: First entry of each row and the number of entries, shape (num_rows + 1,), int64.
        token_ids: Tokens, shape (num_entries,), int64, inside the vocabulary; a row names no token
            twice.
        values: Shape (num_entries,), float64, finite.
    """

    offsets: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


class Penalties(NamedTuple):
    """Penalties of every row on the tokens of its past.

    Args:
        counts: The tokens of prompt and output, with the occurrences in the output.
        repetition: Shape (num_rows,), float64, above 0; 1 does nothing.
        frequency: Shape (num_rows,), float64; 0 does nothing.
        presence: Shape (num_rows,), float64; 0 does nothing.
    """

    counts: TokenValues
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


def edit_logits(
    logits: torch.Tensor,
    *,
    bias: TokenValues | None = None,
    penalties: Penalties | None = None,
    mask_bits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits after bias, penalties and mask, as a new float64 tensor.

    Args:
        logits: Shape (num_rows, vocab_size), float32 or float64.
        bias: Numbers to add.
        penalties: Penalties on tokens that occurred.
        mask_bits: Allowed tokens, shape (num_rows, ceil(vocab_size / 32)), int32: bit t % 32 of
            word t // 32; None allows all.

    Raises:
        ValueError: The shapes do not match.
        TypeError: A dtype that is not served.
    """
    check_shape("logits", logits, (None, None))
    rows, vocab_size = logits.shape
    if bias is not None:
        _check_values("bias", bias, rows)
    if penalties is not None:
        _check_values("penalties.counts", penalties.counts, rows)
        for name in ("repetition", "frequency", "presence"):
            of_row = getattr(penalties, name)
            check_shape(f"penalties.{name}", of_row, (rows,))
            check_dtype(f"penalties.{name}", of_row, (torch.float64,))
    if mask_bits is not None:
        check_shape("mask_bits", mask_bits, (rows, num_mask_words(vocab_size)))
        check_dtype("mask_bits", mask_bits, (torch.int32,))
    run = _EDIT_LOGITS.select(logits, vocab_size=vocab_size)
    return run(logits, bias, penalties, mask_bits)


def _check_values(name: str, values: TokenValues, rows: int) -> None:
    check_shape(f"{name}.offsets", values.offsets, (rows + 1,))
    check_shape(f"{name}.token_ids", values.token_ids, (None,))
    check_shape(f"{name}.values", values.values, (values.token_ids.shape[0],))
    check_dtype(f"{name}.offsets", values.offsets, (torch.int64,))
    check_dtype(f"{name}.token_ids", values.token_ids, (torch.int64,))
    check_dtype(f"{name}.values", values.values, (torch.float64,))


# --- Reference ---


def _edit_logits(
    logits: torch.Tensor,
    bias: TokenValues | None,
    penalties: Penalties | None,
    mask_bits: torch.Tensor | None,
) -> torch.Tensor:
    """A float64 copy, then gathers and scatters of the entries."""
    edited = logits.double()
    if mask_bits is not None:
        is_banned = ~unpack_bits(mask_bits, logits.shape[1]) & (logits < torch.inf)
        edited = edited.masked_fill(is_banned, -torch.inf)
    elif edited is logits:
        edited = logits.clone()
    if bias is not None:
        edited[_places(bias)] += bias.values
    if penalties is not None:
        counts = penalties.counts
        places = _places(counts)
        row, value = places[0], edited[places]
        factor = penalties.repetition[row]
        value = torch.where(value > 0, value / factor, value * factor)
        value = value - penalties.frequency[row] * counts.values
        edited[places] = value - penalties.presence[row] * (counts.values > 0)
    return edited


def _places(entries: TokenValues) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and token of every entry."""
    lengths = entries.offsets.diff()
    rows = torch.arange(len(lengths), device=lengths.device)
    row = rows.repeat_interleave(lengths, output_size=entries.token_ids.shape[0])
    return row, entries.token_ids


_EDIT_LOGITS = Op(
    "edit_logits", _edit_logits, dtypes=(torch.float32, torch.float64), is_differentiable=False
)
