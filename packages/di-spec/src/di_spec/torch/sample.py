"""Sampling of a batch of rows on tensors: the tokens of `di_spec.sampling.sample`, faster.

Three ways through, chosen on the host from the parameters, so that a plain greedy row costs one
maximum, a filtered row needs noise for its survivors only, and an unfiltered row needs one Philox
call for four tokens:

* greedy rows: the maximum of the (edited) logits;
* rows with top-k, top-p or min-p: candidates in order, filters, Gumbel-max over the survivors;
* other sampled rows: Gumbel-max over the whole row. Scores are screened with the device's own
  logarithm, and those within its error of the best are scored again with the portable one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_spec.sampling.batch import SamplerBatch
from di_spec.sampling.philox import Stream
from di_spec.sampling.sample import LogprobsMode
from di_spec.sampling.transform import RowStatus, check_shapes
from di_spec.torch import noise
from di_spec.torch.filters import (
    all_on_host,
    apply_edits,
    exact_top,
    log_of_mass,
    log_softmax,
    logits_status,
    masses,
    survivors,
    to_device,
)

__all__ = ["Processed", "Samples", "process", "sample", "token_logprobs", "top_logprobs"]

_SCREEN_MARGIN = 1e-9
"""Scores this close to the best are decided by the portable logarithm. The error of a device's
float64 `log` in a score is below 1e-13."""

_NUM_CANDIDATES = 3
"""Scores that a GPU decides among; see `decide_among_few`."""

_CACHED_LOGITS = 2**17
_SPARE_LOGITS = 2**25
"""Logits at a time on a CPU and elsewhere."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What was drawn; fields as in `di_spec.sampling.Samples`, tensors on the logits' device."""

    token_ids: Tensor
    status: Tensor
    logprobs: Tensor | None = None
    top_token_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Processed:
    """Distributions of all rows; fields as in `di_spec.sampling.Processed`."""

    log_probs: Tensor
    status: Tensor


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Tokens with their log-probabilities, float64; without those, the last three are empty.

    `chosen` is [rows], `top_token_ids` and `top_logprobs` are [rows, n].
    """

    token_ids: Tensor
    chosen: Tensor
    top_token_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def empty(cls, token_ids: Tensor, num_top: int = 0) -> "_Drawn":
        """A copy of `token_ids` with room for log-probabilities."""
        shape = (len(token_ids), num_top)
        return cls(
            token_ids.clone(),
            token_ids.new_empty(len(token_ids), dtype=torch.float64),
            token_ids.new_empty(shape),
            token_ids.new_empty(shape, dtype=torch.float64),
        )

    def put(self, rows: Tensor | slice, drawn: "_Drawn") -> None:
        """Writes the rows of `drawn` to their places."""
        self.token_ids[rows] = drawn.token_ids
        self.chosen[rows] = drawn.chosen
        self.top_token_ids[rows] = drawn.top_token_ids
        self.top_logprobs[rows] = drawn.top_logprobs


def sample(
    logits: Tensor,
    batch: SamplerBatch,
    mask_bits: Tensor | None = None,
    *,
    num_top_logprobs: int = 0,
    logprobs: LogprobsMode | None = None,
) -> Samples:
    """Draws one token for every row; see `di_spec.sampling.sample` for the meaning of everything.

    The token of a row depends on its logits, parameters, seed and position alone: bitwise stable
    under any change of the batch around it, on any device.

    Args:
        logits: Model outputs, float32 or float64 [rows, V], any device; not modified.
        batch: Parameters of the rows, on the host.
        mask_bits: Allowed tokens, int32 [rows, ceil(V / 32)], same device.
        num_top_logprobs: Number of most likely tokens to report per row.
        logprobs: Which log-probabilities to report, if any.

    Raises:
        InvalidSamplingError: If shapes contradict each other.
    """
    check_shapes(logits.shape, batch, None if mask_bits is None else mask_bits.shape)
    largest, first = logits.max(dim=1)
    status = logits_status(largest)
    is_edited = batch.has_edits | (mask_bits is not None)
    is_plain = ~is_edited & batch.is_greedy
    want_processed = logprobs == "processed"
    if is_plain.all() and not want_processed:
        token_ids = first
        drawn = _Drawn.empty(first)
    else:
        drawn = _draw_groups(
            logits, first, batch, mask_bits, status, want_processed, num_top_logprobs
        )
        token_ids = drawn.token_ids
    token_ids = token_ids.masked_fill(status != RowStatus.OK, -1)
    if logprobs is None:
        return Samples(token_ids, status)
    if logprobs == "raw":
        drawn = _raw_logprobs(logits, token_ids, num_top_logprobs)
    return Samples(
        token_ids,
        status,
        drawn.chosen.masked_fill(status != RowStatus.OK, torch.nan).float(),
        *_blank_missing(drawn, status),
    )


def _draw_groups(
    logits: Tensor,
    first: Tensor,
    batch: SamplerBatch,
    mask_bits: Tensor | None,
    status: Tensor,
    want_logprobs: bool,
    num_top: int,
) -> _Drawn:
    """Sends each kind of row its own way and puts the results back in order.

    Writes `RowStatus.NOTHING_ALLOWED` into `status` where edits leave nothing.
    """
    is_edited = batch.has_edits | (mask_bits is not None)
    is_filtered = (batch.top_k < batch.vocab_size) | (batch.top_p < 1) | (batch.min_p > 0)
    kind = np.where(batch.is_greedy, 0, np.where(is_filtered, 1, 2)) + 3 * is_edited
    if not want_logprobs:
        kind[batch.is_greedy & ~is_edited] = -1  # `first` has them already
    result = _Drawn.empty(first, min(num_top, batch.vocab_size) if want_logprobs else 0)
    for code in np.unique(kind[kind >= 0]).tolist():
        for host_rows in _pieces(np.flatnonzero(kind == code), logits):
            is_whole = len(host_rows) == len(logits)
            rows = slice(None) if is_whole else to_device(host_rows, logits.device)
            part = batch if is_whole else batch.of_rows(host_rows)
            values = logits[rows]
            if code >= 3:
                values = apply_edits(values, part, None if mask_bits is None else mask_bits[rows])
            largest = values.max(dim=1).values
            is_empty = largest.isneginf() & (status[rows] == RowStatus.OK)
            status[rows] = status[rows].masked_fill(is_empty, int(RowStatus.NOTHING_ALLOWED))
            is_bad = ~largest.isfinite()
            if logits.device.type != "cpu" or not all_on_host(~is_bad):
                values = values.masked_fill(is_bad.unsqueeze(1), 0.0)
            way = (_greedy, _filtered, _unfiltered)[code % 3]
            num_wanted = result.top_token_ids.shape[1]
            drawn = way(values, largest.masked_fill(is_bad, 0.0), part, want_logprobs, num_wanted)
            result.put(rows, drawn)
    return result


def _pieces(host_rows: NDArray[np.int64], logits: Tensor) -> list[NDArray[np.int64]]:
    """`host_rows` in pieces whose float64 copies fit a processor's cache, or a GPU's spare room."""
    limit = _CACHED_LOGITS if logits.device.type == "cpu" else _SPARE_LOGITS
    size = max(1, limit // logits.shape[1])
    return [host_rows[start : start + size] for start in range(0, len(host_rows), size)]


def _greedy(
    rows: Tensor, largest: Tensor, batch: SamplerBatch, want_logprobs: bool, num_top: int
) -> _Drawn:
    token_ids = rows.max(dim=1).indices
    if not want_logprobs:
        return _Drawn.empty(token_ids)
    return _dense_logprobs(log_softmax(rows.double(), largest.double()), token_ids, num_top)


def _filtered(
    rows: Tensor, largest: Tensor, batch: SamplerBatch, want_logprobs: bool, num_top: int
) -> _Drawn:
    kept = survivors(rows, largest, batch)
    used = (
        max(1, int((kept.relative.numpy() > -np.inf).sum(1).max()))
        if rows.device.type == "cpu"
        else None
    )
    token_ids, relative = kept.token_ids[:, :used], kept.relative[:, :used]
    scores = relative + noise.gumbel(batch.seed, Stream.TARGET, batch.position, token_ids)
    is_best = scores == scores.amax(1, keepdim=True)
    chosen_ids = token_ids.masked_fill(~is_best, batch.vocab_size).amin(1)
    if not want_logprobs:
        return _Drawn.empty(chosen_ids)
    log_probs = relative - log_of_mass(masses(relative).sum(1)).unsqueeze(1)
    place = (token_ids == chosen_ids.unsqueeze(1)).int().argmax(1, keepdim=True)
    padding = max(0, num_top - log_probs.shape[1])
    return _Drawn(
        chosen_ids,
        log_probs.gather(1, place).squeeze(1),
        torch.nn.functional.pad(token_ids[:, :num_top], (0, padding), value=-1),
        torch.nn.functional.pad(log_probs[:, :num_top], (0, padding), value=-torch.inf),
    )


def _unfiltered(
    rows: Tensor, largest: Tensor, batch: SamplerBatch, want_logprobs: bool, num_top: int
) -> _Drawn:
    temperature = to_device(batch.temperature, rows.device).unsqueeze(1)
    relative = (rows - largest.double().unsqueeze(1)) / temperature
    token_ids = gumbel_argmax(relative, batch.seed, Stream.TARGET, batch.position)
    if not want_logprobs:
        return _Drawn.empty(token_ids)
    log_probs = relative - log_of_mass(masses(relative).sum(1)).unsqueeze(1)
    return _dense_logprobs(log_probs, token_ids, num_top)


def gumbel_argmax(
    log_weights: Tensor,
    seed: NDArray[np.uint64],
    stream: Stream,
    position: NDArray[np.uint64] | Tensor,
    offset: NDArray[np.int64] | Tensor | int = 0,
) -> Tensor:
    """Draws one token per row by Gumbel-max: the tokens of `di_spec.sampling.draw`.

    Args:
        log_weights: float64 [rows, V]; -inf is never drawn from a row with a finite entry.
        seed: Seeds, uint64 [rows], host.
        stream: Purpose of the draw.
        position: Positions, uint64 [rows] on the host, or int64 [rows] where the weights are.
        offset: Offset inside the draft block, one number or [rows], likewise.
    """
    bits = noise.row_bits(seed, stream, position, log_weights.shape[1], log_weights.device, offset)
    exponential = (1.0 - (bits.to(torch.float64) + 0.5) * 2.0**-32).log_().neg_()
    screened = log_weights - exponential.log_()
    if log_weights.device.type != "cpu":
        return decide_among_few(log_weights, bits, screened)
    is_close = screened >= screened.amax(1, keepdim=True) - _SCREEN_MARGIN
    row, column = map(torch.from_numpy, np.nonzero(is_close.numpy()))
    if len(row) == len(log_weights):
        return column  # one candidate in each row
    scores = log_weights[row, column] + noise.gumbel_of_bits(bits[row, column].to(torch.int64))
    best = torch.full((len(log_weights),), -torch.inf, dtype=torch.float64, device=row.device)
    best = best.scatter_reduce(0, row, scores, "amax")
    column = column.masked_fill(scores < best[row], log_weights.shape[1])
    token_ids = torch.full_like(best, log_weights.shape[1], dtype=torch.int64)
    return token_ids.scatter_reduce(0, row, column, "amin")


def decide_among_few(log_weights: Tensor, bits: Tensor, screened: Tensor) -> Tensor:
    """The end of `gumbel_argmax` without waiting for how many candidates there are.

    Takes the three best. That a fourth lies within the margin has a probability of about 1e-27 a
    row: gaps between the largest of many Gumbel variables are of order one. Modifies `screened`.
    """
    values, columns = [], []
    for _ in range(_NUM_CANDIDATES):
        value, column = screened.max(1, keepdim=True)
        screened.scatter_(1, column, -torch.inf)
        values.append(value)
        columns.append(column)
    candidates = torch.cat(columns, 1)
    is_close = torch.cat(values, 1) >= values[0] - _SCREEN_MARGIN
    noise_of = noise.gumbel_of_bits(bits.gather(1, candidates).to(torch.int64))
    scores = log_weights.gather(1, candidates) + noise_of
    scores = scores.masked_fill(~is_close, -torch.inf)
    is_best = is_close & (scores == scores.amax(1, keepdim=True))
    return candidates.masked_fill(~is_best, log_weights.shape[1]).amin(1)


def process(logits: Tensor, batch: SamplerBatch, mask_bits: Tensor | None = None) -> Processed:
    """Distributions after every step, float64 [rows, V]; see `di_spec.sampling.process`."""
    check_shapes(logits.shape, batch, None if mask_bits is None else mask_bits.shape)
    status = logits_status(logits.max(dim=1).values)
    rows = apply_edits(logits, batch, mask_bits)
    largest = rows.max(dim=1).values
    is_empty = largest.isneginf() & (status == RowStatus.OK)
    status.masked_fill_(is_empty, int(RowStatus.NOTHING_ALLOWED))
    is_bad = status != RowStatus.OK
    rows.masked_fill_(is_bad.unsqueeze(1), 0.0)
    log_probs = log_softmax(rows, largest.masked_fill(is_bad, 0.0))
    host_rows = np.flatnonzero(~batch.is_greedy)
    if len(host_rows):
        chosen = to_device(host_rows, logits.device)
        part = batch.of_rows(host_rows)
        kept = survivors(rows[chosen], largest.masked_fill(is_bad, 0.0)[chosen], part)
        values = kept.relative - log_of_mass(masses(kept.relative).sum(1)).unsqueeze(1)
        dense = torch.full_like(rows[chosen], -torch.inf)
        log_probs[chosen] = dense.scatter(1, kept.token_ids, values)
    return Processed(log_probs.masked_fill(is_bad.unsqueeze(1), -torch.inf), status)


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-softmax of each row at one token, float32 [rows]; NaN for rows that have none.

    Args:
        logits: [rows, V].
        token_ids: int64 [rows], same device.
    """
    drawn = _raw_logprobs(logits, token_ids, 0)
    return drawn.chosen.masked_fill(~logits.max(dim=1).values.isfinite(), torch.nan).float()


def top_logprobs(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The `n` most likely tokens of each row, int64 [rows, n], and their log-softmax, float32."""
    drawn = _raw_logprobs(
        logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device), n
    )
    token_ids, values = _blank_missing(drawn, logits_status(logits.max(dim=1).values))
    return token_ids, values


def _raw_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> _Drawn:
    result = _Drawn.empty(token_ids, min(num_top, logits.shape[1]))
    for host_rows in _pieces(np.arange(len(logits)), logits):
        piece = slice(int(host_rows[0]), int(host_rows[-1]) + 1)
        rows = logits[piece].double()
        largest = rows.max(dim=1).values
        is_bad = ~largest.isfinite()
        rows = rows.masked_fill(is_bad.unsqueeze(1), 0.0)
        log_probs = log_softmax(rows, largest.masked_fill(is_bad, 0.0))
        result.put(piece, _dense_logprobs(log_probs, token_ids[piece].clamp(min=0), num_top))
    return result


def _dense_logprobs(log_probs: Tensor, token_ids: Tensor, num_top: int) -> _Drawn:
    chosen = log_probs.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    if num_top:
        values, top_ids = exact_top(log_probs, num_top)
    else:
        values, top_ids = log_probs[:, :0], token_ids.new_empty((len(token_ids), 0))
    return _Drawn(token_ids, chosen, top_ids, values)


def _blank_missing(drawn: _Drawn, status: Tensor) -> tuple[Tensor, Tensor]:
    """Top tokens with -1 and -inf where there is no such token."""
    is_bad = (status != RowStatus.OK).unsqueeze(1)
    values = drawn.top_logprobs.masked_fill(is_bad, -torch.inf)
    return drawn.top_token_ids.masked_fill(values == -torch.inf, -1), values.float()
