"""Drafts of a step: what a drafter starts from, what it hands over, and DSpark's way to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from di_engine.cache import Cache
from di_engine.model.drafter import Drafter
from di_engine.runner.sampled_rows import RunningRequest
from di_spec import VerifyMode
from di_spec import torch as spec_torch
from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams
from di_spec.sampling.philox import Stream

__all__ = ["DeviceDrafter", "DraftInputs", "Drafts", "DsparkDrafter"]


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """Where each sampled request of a step stands once its tokens are drawn.

    Attributes:
        requests: The requests. Their histories on the host lack the tokens of this step.
        anchor_ids: Newest token of each, int64 [R], on the device.
        positions: Position of that token, int64 [R], on the device.
        state_slots: State slot of each, int64 [R], on the device.
        window_starts: First position whose window key may be read, int64 [R], on the device.
    """

    requests: Sequence[RunningRequest]
    anchor_ids: Tensor
    positions: Tensor
    state_slots: Tensor
    window_starts: Tensor


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of R requests on the device.

    Attributes:
        token_ids: int64 [R, K].
        confidence: Logits of "accepted, given that the drafts before it are", uncalibrated,
            float [R, K].
        q_logprobs: Log-probabilities that they were drawn from, float32 [R, K, vocab_size]; None
            where they were not drawn by noise of their own.
    """

    token_ids: Tensor
    confidence: Tensor
    q_logprobs: Tensor | None = None


class DeviceDrafter(Protocol):
    """Drafts on the device, right behind the sampling of a step."""

    def draft(self, inputs: DraftInputs) -> Drafts:
        """Drafts for every request of `inputs`, always as many as verification may use."""


class DsparkDrafter:
    """Draws drafts from the checkpoint's drafter.

    For coupled and greedy verification drafts are drawn with the very noise that the target will
    use at the same index, so that both tend to the same token. For the ratio test and block
    verification they have noise of their own, keyed by the place in the block too, so that a token
    drafted again is drawn afresh.

    Args:
        drafter: The blocks.
        cache: The rings with its context.
        num_draft_tokens: Drafts to draw, at most the trained block.
        mode: Rule of verification.
        vocab_size: Width of the logits.
    """

    def __init__(
        self,
        drafter: Drafter,
        cache: Cache,
        *,
        num_draft_tokens: int,
        mode: VerifyMode,
        vocab_size: int,
    ) -> None:
        self._drafter = drafter
        self._cache = cache
        self._num_draft_tokens = num_draft_tokens
        self._keeps_law = mode in ("ratio", "block")
        self._is_greedy = mode == "greedy"
        self._vocab_size = vocab_size

    def draft(self, inputs: DraftInputs) -> Drafts:
        """Runs the trained block and draws its first drafts; see `DeviceDrafter`."""
        block = self._drafter.run(
            inputs.anchor_ids,
            inputs.positions,
            inputs.state_slots,
            inputs.window_starts,
            self._cache,
        )
        params = self._params(inputs.requests)
        token_ids, drawn, confidence, law = inputs.anchor_ids, [], [], []
        for place in range(self._num_draft_tokens):
            logits, confidence_logit = self._drafter.correct(block, place, token_ids)
            positions = inputs.positions + (place + 1)
            token_ids, log_probs = self._draw(logits, params, positions, place)
            drawn.append(token_ids)
            confidence.append(confidence_logit)
            if log_probs is not None:
                law.append(log_probs)
        return Drafts(
            torch.stack(drawn, dim=1),
            torch.stack(confidence, dim=1),
            torch.stack(law, dim=1) if law else None,
        )

    def _draw(
        self, logits: Tensor, params: SamplerBatch, positions: Tensor, place: int
    ) -> tuple[Tensor, Tensor | None]:
        """One draft of each request at its position, and its distribution where that is kept."""
        is_greedy = params.is_greedy | self._is_greedy
        if is_greedy.all() and not params.has_edits.any() and not self._keeps_law:
            return logits.argmax(dim=1), None
        processed = spec_torch.process(logits, params)
        # A bad row is some draft that will not be accepted.
        is_bad = (processed.status != 0).unsqueeze(1)
        log_probs = processed.log_probs.masked_fill(is_bad, 0.0)
        if self._keeps_law:
            log_probs = log_probs.float().double()
            stream, offset = Stream.DRAFT, place
        else:
            stream, offset = Stream.TARGET, 0
        token_ids = spec_torch.gumbel_argmax(log_probs, params.seed, stream, positions, offset)
        if is_greedy.any():
            chosen = torch.from_numpy(is_greedy).to(logits.device, non_blocking=True)
            token_ids = torch.where(chosen, log_probs.argmax(dim=1), token_ids)
        return token_ids, log_probs.float() if self._keeps_law else None

    def _params(self, requests: Sequence[RunningRequest]) -> SamplerBatch:
        """Parameters of one draft row per request, without what depends on its newest tokens."""
        return SamplerBatch.build(
            [SampleRequest(_timeless(r.request.sampling), r.history) for r in requests],
            self._vocab_size,
        )


def _timeless(params: SamplingParams) -> SamplingParams:
    """The parameters without penalties, minimum length and bad words.

    The host does not know yet what they would look at; the target applies them.
    """
    if not (params.has_penalties or params.min_tokens or params.bad_words):
        return params
    return replace(
        params,
        repetition_penalty=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        min_tokens=0,
        bad_words=(),
    )
