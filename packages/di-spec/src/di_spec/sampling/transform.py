"""From logits to the distribution that is drawn from. Reference: one row at a time, float64.

Order: allowed and banned tokens, bias, penalties, bad words, grammar mask, temperature, top-k,
top-p, min-p. Steps that remove tokens come before temperature and are never undone by a later one.

Top-k and top-p follow DeepInfer 0.1.0 `sampler.py`: tokens are ordered by descending logit, equal
logits by ascending id; token number i survives top-p iff the mass of the tokens before it does not
exceed `top_p`; both limits are taken on that one order and on masses over the whole row, so that
the two filters commute. Every filter keeps a prefix of the order, and at least one token.

Masses are sums of integers (probability relative to the largest, 44 fractional bits). Integer sums
do not depend on the order of addition: not on the device, the number of threads, or the batch.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_spec.errors import InvalidSamplingError
from di_spec.sampling.batch import SamplerBatch, SparseEdits

__all__ = [
    "MASS_BITS",
    "Processed",
    "RowStatus",
    "apply_edits",
    "check_shapes",
    "log_softmax",
    "logits_status",
    "process",
    "unpack_mask",
]

Logits = NDArray[np.floating[Any]]
Row = NDArray[np.float64]

MASS_BITS = 44
"""Fractional bits of a mass; 2**19 tokens of the largest probability do not overflow int64."""


class RowStatus(IntEnum):
    """What became of a row. A bad row never harms the others."""

    OK = 0
    NAN = 1
    INFINITE = 2
    NOTHING_ALLOWED = 3

    @property
    def message(self) -> str:
        """A sentence for the user of the request."""
        return _MESSAGES[self]


_MESSAGES = {
    RowStatus.OK: "the row is good",
    RowStatus.NAN: "the model's logits contain NaN; no token can be drawn",
    RowStatus.INFINITE: "the model's logits contain +inf; no token can be drawn",
    RowStatus.NOTHING_ALLOWED: (
        "no token is allowed: allowed and banned tokens and the grammar mask leave nothing"
    ),
}


@dataclass(frozen=True, slots=True)
class Processed:
    """The distributions that tokens are drawn from.

    Attributes:
        log_probs: Log-probabilities, float64 [rows, V]; -inf for removed tokens; rows with a bad
            status are -inf throughout. A greedy row has its distribution at temperature 1 after
            edits and mask, without filters.
        status: `RowStatus` codes, uint8 [rows].
    """

    log_probs: NDArray[np.float64]
    status: NDArray[np.uint8]


def process(
    logits: Logits, batch: SamplerBatch, mask_bits: NDArray[np.int32] | None = None
) -> Processed:
    """Applies every step to every row; keeps `logits` as they are.

    Args:
        logits: Model outputs, float32 or float64 [rows, V].
        batch: Parameters of the rows.
        mask_bits: Allowed tokens, int32 [rows, ceil(V / 32)]: bit `v % 32` of word `v // 32` is set
            where token `v` is allowed (the layout of xgrammar); rows without a grammar are -1.

    Raises:
        InvalidSamplingError: If shapes contradict each other.
    """
    check_shapes(logits.shape, batch, None if mask_bits is None else mask_bits.shape)
    log_probs = np.full(logits.shape, -np.inf)
    status = logits_status(logits)
    edited = apply_edits(logits, batch, mask_bits)
    for row in np.flatnonzero(status == RowStatus.OK).tolist():
        if np.isneginf(edited[row]).all():
            status[row] = RowStatus.NOTHING_ALLOWED
        elif batch.temperature[row] == 0:
            log_probs[row] = log_softmax(edited[row])
        else:
            log_probs[row] = _filtered(edited[row], batch, row)
    return Processed(log_probs, status)


def check_shapes(
    logits: tuple[int, ...], batch: SamplerBatch, mask_bits: tuple[int, ...] | None
) -> None:
    """Checks that logits, parameters and masks are of one batch.

    Raises:
        InvalidSamplingError: If not; names both shapes.
    """
    expected = (batch.num_rows, batch.vocab_size)
    if tuple(logits) != expected:
        raise InvalidSamplingError(f"`logits` must have shape {expected}: got {tuple(logits)}")
    words = (batch.num_rows, (batch.vocab_size + 31) // 32)
    if mask_bits is not None and tuple(mask_bits) != words:
        raise InvalidSamplingError(f"`mask_bits` must have shape {words}: got {tuple(mask_bits)}")


def logits_status(logits: Logits) -> NDArray[np.uint8]:
    """`RowStatus` of the model's own logits: NaN, +inf, nothing but -inf, or good."""
    with np.errstate(invalid="ignore"):
        largest = logits.max(axis=1)
    status = np.zeros(len(logits), np.uint8)
    status[np.isnan(largest)] = RowStatus.NAN
    status[np.isposinf(largest)] = RowStatus.INFINITE
    status[np.isneginf(largest)] = RowStatus.NOTHING_ALLOWED
    return status


def apply_edits(
    logits: Logits, batch: SamplerBatch, mask_bits: NDArray[np.int32] | None = None
) -> NDArray[np.float64]:
    """Logits after every step before temperature, as a new float64 array."""
    edited = logits.astype(np.float64)
    if batch.is_restricted.any():
        is_banned = np.repeat(batch.is_restricted[:, None], edited.shape[1], axis=1)
        is_banned[batch.allowed.row, batch.allowed.token_id] = False
        edited[is_banned] = -np.inf
    edited[batch.banned.row, batch.banned.token_id] = -np.inf
    edited[batch.bias.row, batch.bias.token_id] += batch.bias.value
    _apply_penalties(edited, batch, batch.counts)
    edited[batch.bad.row, batch.bad.token_id] = -np.inf
    if mask_bits is not None:
        edited[~unpack_mask(mask_bits, edited.shape[1])] = -np.inf
    return edited


def _apply_penalties(edited: NDArray[np.float64], batch: SamplerBatch, counts: SparseEdits) -> None:
    row, token_id = counts.row, counts.token_id
    value = edited[row, token_id]
    factor = batch.repetition_penalty[row]
    value = np.where(value > 0, value / factor, value * factor)
    value -= batch.frequency_penalty[row] * counts.value
    value -= batch.presence_penalty[row] * (counts.value > 0)
    edited[row, token_id] = value


def unpack_mask(mask_bits: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Allowed tokens, bool [rows, vocab_size]; bits beyond the vocabulary are ignored."""
    as_bytes = np.ascontiguousarray(mask_bits).astype("<i4").view(np.uint8)
    return np.unpackbits(as_bytes, axis=1, count=vocab_size, bitorder="little").astype(np.bool_)


def log_softmax(row: Row) -> Row:
    """Log-probabilities of one row with a finite maximum; the normaliser is an integer sum."""
    relative: Row = row - row.max()
    return np.subtract(relative, log_of_mass(int(masses(relative).sum())))


def masses(relative: Row) -> NDArray[np.int64]:
    """`exp` of logits relative to the row's maximum, in units of 2**-44."""
    return np.rint(np.exp(relative) * 2.0**MASS_BITS).astype(np.int64)


def log_of_mass(total: int) -> float:
    """Natural logarithm of a sum of masses."""
    return math.log(total * 2.0**-MASS_BITS)


def _filtered(row: Row, batch: SamplerBatch, i: int) -> Row:
    """Log-probabilities of one edited row after temperature and filters."""
    with np.errstate(over="ignore"):
        relative = (row - row.max()) / batch.temperature[i]
    order = np.argsort(-row, kind="stable")
    mass = masses(relative)
    before = np.cumsum(mass[order]) - mass[order]
    survives = np.arange(len(row)) < batch.top_k[i]
    if batch.top_p[i] < 1:
        survives &= before / float(mass.sum()) <= batch.top_p[i]
    if batch.min_p[i] > 0:
        survives &= relative[order] >= math.log(batch.min_p[i])
    survives &= relative[order] > -np.inf
    kept = order[survives]
    log_probs = np.full(len(row), -np.inf)
    log_probs[kept] = relative[kept] - log_of_mass(int(mass[kept].sum()))
    return log_probs
