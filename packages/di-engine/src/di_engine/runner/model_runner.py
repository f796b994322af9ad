"""Runs step plans: batch tensors, forward pass, sampling, and what comes back to the host.

The three calls of a step are separate, in the order of the step loop: `launch` and `sample` enqueue
device work, `collect` is the only one that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from di_engine.cache import Cache
from di_engine.errors import ModelExecutionError
from di_engine.model.batch import StepBatch
from di_engine.runner.prompt_logprobs import PromptLogprobs, position_logprobs
from di_engine.runner.request import EngineRequest, LogprobsSpec, PositionLogprobs
from di_engine.runner.step_inputs import make_step_batch
from di_scheduler import StepOutcome, StepPlan
from di_spec import torch as spec_torch
from di_spec.sampling import RowStatus, SamplerBatch, SampleRequest, TokenHistory

__all__ = ["LaunchedStep", "Model", "ModelRunner", "SampledStep", "StepResult"]


class Model(Protocol):
    """The part of the model that steps need; `di_engine.model.backbone.Backbone` is one."""

    def forward(self, batch: StepBatch, cache: Any) -> torch.Tensor:
        """Runs the backbone and writes `cache`; returns hidden states (num_tokens, hidden_size)."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Projects hidden rows to the vocabulary; float32 or float64, shape (rows, vocab_size)."""


@dataclass(slots=True)
class _RunningRequest:
    """What the runner keeps of a request between steps; keyed by id, never by batch row."""

    request: EngineRequest
    history: TokenHistory
    prompt_logprobs: PromptLogprobs | None


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose forward pass is enqueued.

    Attributes:
        plan: The step's plan.
        logits: One row per sampled request, shape (num_sampled, vocab_size), on the device.
    """

    plan: StepPlan
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step whose sampling is enqueued; every tensor is on the device.

    Attributes:
        plan: The step's plan.
        logits: As in `LaunchedStep`; kept for raw log-probabilities.
        samples: Tokens, row status and processed log-probabilities, one row per sampled request.
    """

    plan: StepPlan
    logits: torch.Tensor
    samples: spec_torch.Samples


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's results on the host.

    Attributes:
        outcome: Tokens for the scheduler; rows that failed carry a placeholder.
        failures: Request id to what is wrong with its logits.
        logprobs: Request id to the log-probabilities of its new token, where wanted.
        prompt_logprobs: Request id to its prompt's log-probabilities, with its first token.
    """

    outcome: StepOutcome
    failures: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, PositionLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[PositionLogprobs]] = field(default_factory=dict)


class ModelRunner:
    """Runs plans on one device."""

    def __init__(
        self,
        model: Model,
        cache: Cache | None,
        *,
        vocab_size: int,
        history_len: int,
        device: torch.device,
    ) -> None:
        """Joins a model with its cache.

        Args:
            model: Weights and forward pass.
            cache: Blocks and state slots that plans refer to; None for a model without one.
            vocab_size: Width of the logits.
            history_len: Tokens before a step's first row that the model looks up (n-grams).
            device: Where batch tensors are made.
        """
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._history_len = history_len
        self._device = device
        self._requests: dict[str, _RunningRequest] = {}

    @property
    def num_requests(self) -> int:
        """Requests that are kept between steps."""
        return len(self._requests)

    def add(self, request: EngineRequest) -> None:
        """Takes a request that later plans may name."""
        num_prompt = request.logprobs.num_prompt
        self._requests[request.request_id] = _RunningRequest(
            request=request,
            history=TokenHistory(request.prompt_ids),
            prompt_logprobs=(
                None if num_prompt is None else PromptLogprobs(request.prompt_ids, num_prompt)
            ),
        )

    def remove(self, request_id: str) -> None:
        """Forgets a finished request."""
        self._requests.pop(request_id, None)

    def append(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Records tokens that the scheduler has accepted."""
        running = self._requests.get(request_id)
        if running is not None:
            running.history.extend(token_ids)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Enqueues the forward pass and the vocabulary projection of the sampled rows."""
        batch = make_step_batch(plan, history_len=self._history_len, device=self._device)
        hidden = self._model.forward(batch, self._cache)
        self._add_prompt_logprobs(plan, hidden)
        return LaunchedStep(plan, self._model.logits(hidden[batch.logits_rows]))

    @torch.inference_mode()
    def sample(self, launched: LaunchedStep) -> SampledStep:
        """Enqueues sampling of the rows that end a request's part."""
        wanted = [self._requests[i] for i in _sampled_ids(launched.plan)]
        batch = SamplerBatch.build(
            [SampleRequest(r.request.sampling, r.history) for r in wanted], self._vocab_size
        )
        processed = [
            spec.num_output
            for spec in (r.request.logprobs for r in wanted)
            if spec.num_output is not None and spec.mode == "processed"
        ]
        samples = spec_torch.sample(
            launched.logits,
            batch,
            num_top_logprobs=min(max(processed, default=0), self._vocab_size),
            logprobs="processed" if processed else None,
        )
        return SampledStep(launched.plan, launched.logits, samples)

    @torch.inference_mode()
    def collect(self, sampled: SampledStep) -> StepResult:
        """Waits for a step and brings its results to the host."""
        plan = sampled.plan
        request_ids = _sampled_ids(plan)
        token_ids = sampled.samples.token_ids.tolist()
        failures = {
            request_id: RowStatus(status).message
            for request_id, status in zip(request_ids, sampled.samples.status.tolist(), strict=True)
            if status != RowStatus.OK
        }
        rows = np.zeros((plan.num_rows, 1), dtype=np.int64)
        rows[plan.needs_sample, 0] = np.maximum(token_ids, 0)
        result = StepResult(
            StepOutcome(token_ids=rows, num_tokens=plan.needs_sample.astype(np.int64)), failures
        )
        for row, request_id in enumerate(request_ids):
            if request_id in failures:
                continue
            running = self._requests[request_id]
            spec = running.request.logprobs
            if spec.num_output is not None:
                result.logprobs[request_id] = _output_logprobs(sampled, row, token_ids[row], spec)
            if running.prompt_logprobs is not None and running.history.num_output_tokens == 0:
                result.prompt_logprobs[request_id] = running.prompt_logprobs.take()
        return result

    def _add_prompt_logprobs(self, plan: StepPlan, hidden: torch.Tensor) -> None:
        begin = 0
        for row, request_id in enumerate(plan.request_ids):
            query_len = int(plan.query_lens[row])
            collector = self._requests[request_id].prompt_logprobs
            if collector is not None and plan.is_prompt[row]:
                first_position = int(plan.context_lens[row]) - query_len
                collector.add_chunk(
                    hidden[begin : begin + query_len], first_position, self._model.logits
                )
            begin += query_len


def _sampled_ids(plan: StepPlan) -> list[str]:
    return [plan.request_ids[row] for row in np.flatnonzero(plan.needs_sample)]


def _output_logprobs(
    sampled: SampledStep, row: int, token_id: int, spec: LogprobsSpec
) -> PositionLogprobs:
    num_top = spec.num_output or 0
    if spec.mode == "raw":
        return position_logprobs(sampled.logits[row : row + 1], [token_id], num_top)[0]
    samples = sampled.samples
    if samples.logprobs is None or samples.top_token_ids is None or samples.top_logprobs is None:
        raise ModelExecutionError("the sampler returned no processed log-probabilities")
    return PositionLogprobs(
        token_id,
        float(samples.logprobs[row]),
        samples.top_token_ids[row, :num_top].tolist(),
        samples.top_logprobs[row, :num_top].tolist(),
    )
