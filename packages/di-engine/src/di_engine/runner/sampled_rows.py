"""The rows of a step that tokens are drawn from, and what was drawn.

A request that ends a prompt has one row, a decoding one a row for its newest token and one for each
draft that it verifies. Everything that looks at the past (penalties, minimum length, grammar masks)
is made for each of these rows, never once for the request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from di_engine.errors import ModelExecutionError
from di_engine.runner.logprobs import LogprobTensors, raw_logprobs
from di_engine.runner.prompt_logprobs import PromptLogprobs
from di_engine.runner.request import EngineRequest
from di_engine.runner.step_inputs import upload
from di_spec import NO_DRAFT, Proposal, QKind, VerifyMode
from di_spec import torch as spec_torch
from di_spec.sampling import RowStatus, SamplerBatch, SampleRequest, TokenHistory

__all__ = ["EmittedTokens", "RunningRequest", "SampledRows", "StepLogprobs", "draw"]


def _no_drafts() -> npt.NDArray[np.float64]:
    return np.empty(0)


@dataclass(slots=True)
class RunningRequest:
    """What the runner keeps of a request between steps; keyed by id, never by batch row.

    Attributes:
        request: The request.
        history: Its committed tokens.
        prompt_logprobs: Collects what it wants of its prompt.
        draft_token_ids: Drafts that its next decode step may verify, as the host knows them.
        survival: Probability that each of them is reached and accepted, float64 [K].
        confidence: Uncalibrated logits behind that, float64 [K].
        is_removed: Whether it has ended; steps in flight may still hold it.
        started_s: When its first step was launched, by the runner's clock.
        failure: What is wrong with its grammar; such a request is about to end.
    """

    request: EngineRequest
    history: TokenHistory
    prompt_logprobs: PromptLogprobs | None
    draft_token_ids: list[int] = field(default_factory=list)
    survival: npt.NDArray[np.float64] = field(default_factory=_no_drafts)
    confidence: npt.NDArray[np.float64] = field(default_factory=_no_drafts)
    is_removed: bool = False
    started_s: float | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Rows of the logits of one step, known on the host once the step before it is booked.

    Attributes:
        requests: The sampled requests, in row order.
        draft_token_ids: Drafts that each of them verifies in this step, in order.
    """

    requests: list[RunningRequest]
    draft_token_ids: list[list[int]]

    @property
    def num_rows(self) -> int:
        """Rows of the logits: one for each request and one for each draft."""
        return len(self.requests) + sum(map(len, self.draft_token_ids))

    def sampler_batch(self, vocab_size: int) -> SamplerBatch:
        """Sampling parameters of every row."""
        pairs = zip(self.requests, self.draft_token_ids, strict=True)
        return SamplerBatch.build(
            [SampleRequest(r.request.sampling, r.history, drafts) for r, drafts in pairs],
            vocab_size,
        )

    def wanted_logprobs(self) -> dict[str, list[tuple[int, int]]]:
        """Requests that want log-probabilities and how many alternatives, by mode."""
        wanted: dict[str, list[tuple[int, int]]] = {}
        for index, running in enumerate(self.requests):
            spec = running.request.logprobs
            if spec.num_output is not None:
                wanted.setdefault(spec.mode, []).append((index, spec.num_output))
        return wanted


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probabilities of some rows of a step, on their way to the host.

    Attributes:
        places: Place in `tensors` of the first row of each request that wants them.
        tensors: The values.
    """

    places: dict[int, int]
    tensors: LogprobTensors


@dataclass(frozen=True, slots=True)
class EmittedTokens:
    """What a step draws for its sampled requests, on the device.

    Attributes:
        token_ids: Emitted tokens in order, -1 behind the last, int64 [R, most rows of a request].
        num_emitted: How many; 0 where the first row is bad, int64 [R].
        status: `RowStatus` of the row that ended each request's part, uint8 [R].
        logprobs: By mode.
    """

    token_ids: torch.Tensor
    num_emitted: torch.Tensor
    status: torch.Tensor
    logprobs: dict[str, StepLogprobs]


def draw(
    logits: torch.Tensor,
    rows: SampledRows,
    vocab_size: int,
    mask_bits: torch.Tensor | None = None,
    *,
    mode: VerifyMode = "coupled",
    law: torch.Tensor | None = None,
) -> EmittedTokens:
    """Draws the tokens of a step, verifying drafts where requests have some.

    Args:
        logits: One row per sampled row, shape (num_rows, vocab_size).
        rows: What the rows are.
        vocab_size: Width of the logits.
        mask_bits: Grammar masks of the rows, int32 [num_rows, ceil(vocab_size / 32)].
        mode: Rule by which drafts are accepted.
        law: Log-probabilities that the drafts were drawn from, float32 [R, K, vocab_size], for
            `ratio` and `block`; None where a draft is certain, such as an n-gram's.
    """
    batch = rows.sampler_batch(vocab_size)
    wanted = rows.wanted_logprobs()
    if mode in ("ratio", "block") and batch.num_rows > len(rows.requests):
        return _verify_law(logits, rows, batch, mask_bits, mode, law, wanted)
    num_processed = max((n for _, n in wanted.get("processed", [])), default=0)
    samples = spec_torch.sample(
        logits,
        batch,
        mask_bits,
        num_top_logprobs=min(num_processed, vocab_size),
        logprobs="processed" if "processed" in wanted else None,
    )
    logprobs = {
        name: _sampled_logprobs(name, logits, samples, batch.row_offsets, requests)
        for name, requests in wanted.items()
    }
    if batch.num_rows > len(rows.requests):
        verified = spec_torch.accept_samples(samples, batch)
        return EmittedTokens(verified.token_ids, verified.num_emitted, verified.status, logprobs)
    num_emitted = (samples.status == RowStatus.OK).long()
    return EmittedTokens(samples.token_ids.unsqueeze(1), num_emitted, samples.status, logprobs)


def _verify_law(
    logits: torch.Tensor,
    rows: SampledRows,
    batch: SamplerBatch,
    mask_bits: torch.Tensor | None,
    mode: VerifyMode,
    law: torch.Tensor | None,
    wanted: dict[str, list[tuple[int, int]]],
) -> EmittedTokens:
    """Verification that keeps the output law and not the tokens: ratio test and block."""
    lengths = np.array([len(drafts) for drafts in rows.draft_token_ids], np.int64)
    padded = np.full((len(lengths), int(lengths.max())), NO_DRAFT, np.int64)
    for index, drafts in enumerate(rows.draft_token_ids):
        padded[index, : len(drafts)] = drafts
    on_device = None if law is None else np.empty((*padded.shape, 0))
    kind = QKind.ONE_HOT if law is None else QKind.DENSE
    verified = spec_torch.verify(
        logits,
        Proposal(padded, lengths, kind, q_logprobs=on_device),
        batch,
        mode=mode,
        mask_bits=mask_bits,
        q_logprobs=law,
    )
    logprobs = {}
    for name, requests in wanted.items():
        values = logits
        if name == "processed":
            # The logarithms of a distribution are logits of it.
            values = spec_torch.process(logits, batch, mask_bits).log_probs
        places, picked = _picked_rows(batch.row_offsets, requests)
        row_request = np.repeat(np.arange(len(lengths)), lengths + 1)
        row_place = np.arange(batch.num_rows) - batch.row_offsets[row_request]
        tokens = verified.token_ids[
            upload(row_request, logits.device), upload(row_place, logits.device)
        ]
        chosen = upload(picked, logits.device)
        tensors = raw_logprobs(values[chosen], tokens[chosen], max(n for _, n in requests))
        logprobs[name] = StepLogprobs(places, tensors.to_host())
    return EmittedTokens(verified.token_ids, verified.num_emitted, verified.status, logprobs)


def _sampled_logprobs(
    mode: str,
    logits: torch.Tensor,
    samples: spec_torch.Samples,
    row_offsets: npt.NDArray[np.int64],
    wanted: list[tuple[int, int]],
) -> StepLogprobs:
    """Log-probabilities of what was drawn in all rows of the requests that want them."""
    if mode == "raw":
        places, rows = _picked_rows(row_offsets, wanted)
        picked = upload(rows, logits.device)
        num_top = max(n for _, n in wanted)
        tensors = raw_logprobs(logits[picked], samples.token_ids[picked], num_top)
        return StepLogprobs(places, tensors.to_host())
    if samples.logprobs is None or samples.top_token_ids is None or samples.top_logprobs is None:
        raise ModelExecutionError("the sampler returned no processed log-probabilities")
    tensors = LogprobTensors(
        samples.token_ids, samples.logprobs, samples.top_token_ids, samples.top_logprobs
    )
    places = {index: int(row_offsets[index]) for index, _ in wanted}
    return StepLogprobs(places, tensors.to_host())


def _picked_rows(
    row_offsets: npt.NDArray[np.int64], wanted: list[tuple[int, int]]
) -> tuple[dict[int, int], npt.NDArray[np.int64]]:
    """Rows of some requests side by side, and where each request's begin among them."""
    places, picked, num_rows = {}, [], 0
    for index, _ in wanted:
        first, end = row_offsets[index : index + 2].tolist()
        places[index] = num_rows
        picked.append(np.arange(first, end))
        num_rows += end - first
    return places, np.concatenate(picked)
