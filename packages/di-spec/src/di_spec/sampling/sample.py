"""Sampling of a batch of rows: reference on numpy arrays.

The draw is Gumbel-max on the `TARGET` stream: `argmax_v (l_v / T + g(seed, position, v))` over the
surviving tokens. It is a pure function of the row's logits, parameters, seed and position, whatever
else is in the batch. Coupled verification uses the same draw, so speculation does not change the
answer. Engines that use an inverse CDF (`inverse_cdf`; DeepInfer 0.1.0) draw from the same
distribution, with the same survivors, but another token for the same seed.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from di_spec.sampling.batch import SamplerBatch
from di_spec.sampling.gumbel import draw
from di_spec.sampling.transform import (
    Logits,
    RowStatus,
    apply_edits,
    log_softmax,
    logits_status,
    process,
)

__all__ = ["LogprobsMode", "Samples", "sample", "token_logprobs", "top_logprobs"]

LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True)
class Samples:
    """What was drawn.

    Attributes:
        token_ids: Drawn tokens, int64 [rows]; -1 where `status` is not `RowStatus.OK`.
        status: `RowStatus` codes, uint8 [rows].
        logprobs: Log-probability of each drawn token, float32 [rows]; None unless asked for; NaN
            where the row failed.
        top_token_ids: Most likely tokens, most likely first, equal ones by id, int64 [rows, n]; -1
            where fewer than n tokens survive.
        top_logprobs: Their log-probabilities, float32 [rows, n]; -inf where there is none.
    """

    token_ids: NDArray[np.int64]
    status: NDArray[np.uint8]
    logprobs: NDArray[np.float32] | None = None
    top_token_ids: NDArray[np.int64] | None = None
    top_logprobs: NDArray[np.float32] | None = None


def sample(
    logits: Logits,
    batch: SamplerBatch,
    mask_bits: NDArray[np.int32] | None = None,
    *,
    num_top_logprobs: int = 0,
    logprobs: LogprobsMode | None = None,
) -> Samples:
    """Draws one token for every row.

    Args:
        logits: Model outputs, float32 or float64 [rows, V]; not modified.
        batch: Parameters of the rows.
        mask_bits: Allowed tokens, int32 [rows, ceil(V / 32)], see `process`.
        num_top_logprobs: Number of most likely tokens to report per row.
        logprobs: Which log-probabilities to report. `raw`: log-softmax of `logits` as they came,
            before every edit and mask. `processed`: of the distribution that was drawn from; of a
            greedy row, the distribution at temperature 1 after edits and mask.

    Returns:
        Tokens, status and log-probabilities of every row. A row that cannot be drawn from is
        reported in `status`, it raises nothing.

    Raises:
        InvalidSamplingError: If shapes contradict each other.
    """
    processed = process(logits, batch, mask_bits)
    token_ids = draw_processed(logits, processed.log_probs, batch, mask_bits)
    is_good = processed.status == RowStatus.OK
    token_ids[~is_good] = -1
    if logprobs is None:
        return Samples(token_ids, processed.status)
    log_probs = processed.log_probs
    if logprobs == "raw":
        log_probs = np.full(logits.shape, -np.inf)
        for row in np.flatnonzero(logits_status(logits) == RowStatus.OK).tolist():
            log_probs[row] = log_softmax(logits[row].astype(np.float64))
        log_probs[~is_good] = -np.inf
    chosen = np.take_along_axis(log_probs, np.maximum(token_ids, 0)[:, None], axis=1)[:, 0]
    top_ids, top_values = _top(log_probs, num_top_logprobs)
    return Samples(
        token_ids,
        processed.status,
        np.where(is_good, chosen, np.nan).astype(np.float32),
        top_ids,
        top_values,
    )


def draw_processed(
    logits: Logits,
    log_probs: NDArray[np.float64],
    batch: SamplerBatch,
    mask_bits: NDArray[np.int32] | None,
) -> NDArray[np.int64]:
    """Tokens of rows whose survivors are the finite entries of `log_probs`.

    The weights are the scaled logits themselves, not `log_probs`: subtracting the normaliser would
    round them once more, differently for every set of survivors.
    """
    edited = apply_edits(logits, batch, mask_bits)
    token_ids = np.empty(len(logits), np.int64)
    for row, temperature in enumerate(batch.temperature.tolist()):
        survives = log_probs[row] > -np.inf
        if temperature == 0 or not survives.any():
            token_ids[row] = np.argmax(edited[row])
            continue
        relative = (edited[row] - edited[row].max()) / temperature
        weights = np.where(survives, relative, -np.inf)
        only = slice(row, row + 1)
        token_ids[row] = draw(weights[None], batch.seed[only], batch.position[only])[0]
    return token_ids


def token_logprobs(logits: Logits, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Log-softmax of each row at one token, for prompt log-probabilities.

    Args:
        logits: [rows, V].
        token_ids: int64 [rows].

    Returns:
        float32 [rows]; NaN for rows with NaN, +inf or nothing but -inf.
    """
    values = np.full(len(logits), np.nan, np.float32)
    for row in np.flatnonzero(logits_status(logits) == RowStatus.OK).tolist():
        values[row] = log_softmax(logits[row].astype(np.float64))[token_ids[row]]
    return values


def top_logprobs(logits: Logits, n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `n` most likely tokens of each row and their log-softmax, as `Samples.top_token_ids`."""
    log_probs = np.full(logits.shape, -np.inf)
    for row in np.flatnonzero(logits_status(logits) == RowStatus.OK).tolist():
        log_probs[row] = log_softmax(logits[row].astype(np.float64))
    return _top(log_probs, n)


def _top(log_probs: NDArray[np.float64], n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    n = min(n, log_probs.shape[1])
    token_ids = np.argsort(-log_probs, axis=1, kind="stable")[:, :n].astype(np.int64)
    values = np.take_along_axis(log_probs, token_ids, axis=1)
    return np.where(values > -np.inf, token_ids, -1), values.astype(np.float32)
