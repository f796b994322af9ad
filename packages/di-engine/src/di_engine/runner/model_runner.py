"""Runs step plans: batch tensors, forward pass, sampling, and what comes back to the host.

The three calls of a step are separate, in the order of the step loop: `launch` and `sample` enqueue
device work, `collect` is the only one that waits for it. A step may be launched while the one
before it is sampled but not collected; it takes that one's tokens from the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from di_engine.cache import Cache, RingSnapshots
from di_engine.errors import ModelExecutionError
from di_engine.model.batch import StepBatch
from di_engine.platforms import Event, HostEvent
from di_engine.runner.host_copy import copy_to_host
from di_engine.runner.logprobs import LogprobTensors, raw_logprobs
from di_engine.runner.prompt_logprobs import PromptLogprobs
from di_engine.runner.request import EngineRequest, PositionLogprobs
from di_engine.runner.slot_state import SlotState
from di_engine.runner.step_inputs import (
    depends_on_device,
    make_step_batch,
    upload,
)
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
    is_removed: bool = False
    started_s: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose forward pass is enqueued.

    Attributes:
        plan: The step's plan.
        logits: One row per sampled request, shape (num_sampled, vocab_size), on the device.
        slots: State slots of the plan's rows, int64, on the device.
        requests: The sampled requests, in row order. They are held by object: by the time the step
            is collected, an id may belong to another request.
    """

    plan: StepPlan
    logits: torch.Tensor
    slots: torch.Tensor
    requests: list[_RunningRequest]


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step whose sampling is enqueued. Tensors are copies on the host, complete after `done`.

    Attributes:
        plan: The step's plan.
        requests: As in `LaunchedStep`.
        token_ids: New token of each sampled request.
        status: `RowStatus` of each sampled request.
        logprobs: By mode, row of the sampled request to row of the tensors, and the tensors.
        done: Recorded behind everything.
    """

    plan: StepPlan
    requests: list[_RunningRequest]
    token_ids: torch.Tensor
    status: torch.Tensor
    logprobs: dict[str, tuple[dict[int, int], LogprobTensors]]
    done: Event


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's results on the host, by row of its plan.

    Attributes:
        outcome: Tokens for the scheduler; rows that failed carry a placeholder.
        failures: Request id to what is wrong with its logits, for requests that still run.
        logprobs: Row to the log-probabilities of its new token, where wanted.
        prompt_logprobs: Row to its prompt's log-probabilities, with its first token.
    """

    outcome: StepOutcome
    failures: dict[str, str] = field(default_factory=dict)
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)


class ModelRunner:
    """Runs plans on one device."""

    def __init__(
        self,
        model: Model,
        cache: Cache | None,
        *,
        vocab_size: int,
        history_len: int,
        num_state_slots: int,
        device: torch.device,
        snapshots: RingSnapshots | None = None,
        make_event: Callable[[], Event] = HostEvent,
        sync_guard: Callable[[], AbstractContextManager[object]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Joins a model with its cache.

        Args:
            model: Weights and forward pass.
            cache: Blocks and state slots that plans refer to; None for a model without one.
            vocab_size: Width of the logits.
            history_len: Tokens before a step's first row that the model looks up (n-grams).
            num_state_slots: State slots of the scheduler, the reserved one included.
            device: Where batch tensors are made.
            snapshots: Saved window rings; None if plans save none.
            make_event: Makes an event of the device.
            sync_guard: Makes a context for `launch`, for example one in which a host that waits for
                the device is an error (`runner.sync_guard`).
            clock: Seconds, for the start of requests; the same as that of request times.
        """
        self._clock = clock
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._history_len = history_len
        self._device = device
        self._snapshots = snapshots
        self._make_event = make_event
        self._sync_guard = sync_guard
        self._slots = SlotState(num_state_slots, num_draft_tokens=0, device=device)
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
        """Forgets a finished request. Steps that still hold it compute rows nobody reads."""
        running = self._requests.pop(request_id, None)
        if running is not None:
            running.is_removed = True

    def started_s(self, request_id: str) -> float | None:
        """When the first step that contains a request was launched, by the runner's clock."""
        running = self._requests.get(request_id)
        return None if running is None else running.started_s

    def append(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Records tokens that the scheduler has accepted."""
        running = self._requests.get(request_id)
        if running is not None:
            running.history.extend(token_ids)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Enqueues the forward pass and the vocabulary projection of the sampled rows."""
        request_ids = plan.request_ids
        self._note_starts(plan, request_ids)
        with self._sync_guard():
            self._copy_rings(plan)
            batch = self._make_batch(plan)
            hidden = self._model.forward(batch, self._cache)
            self._add_prompt_logprobs(plan, hidden)
            logits = self._model.logits(hidden[batch.logits_rows])
        sampled = [request_ids[row] for row in np.flatnonzero(plan.needs_sample)]
        return LaunchedStep(plan, logits, batch.state_slots, [self._requests[i] for i in sampled])

    @torch.inference_mode()
    def sample(self, launched: LaunchedStep) -> SampledStep:
        """Enqueues sampling of the rows that end a request's part."""
        plan, requests = launched.plan, launched.requests
        batch = SamplerBatch.build(
            [SampleRequest(r.request.sampling, r.history) for r in requests], self._vocab_size
        )
        wanted = _wanted_logprobs(requests)
        num_processed = max((n for _, n in wanted.get("processed", [])), default=0)
        samples = spec_torch.sample(
            launched.logits,
            batch,
            num_top_logprobs=min(num_processed, self._vocab_size),
            logprobs="processed" if "processed" in wanted else None,
        )
        self._record(launched, samples.token_ids)
        logprobs = {
            mode: _logprob_tensors(mode, launched.logits, samples, rows)
            for mode, rows in wanted.items()
        }
        token_ids, status = copy_to_host(samples.token_ids), copy_to_host(samples.status)
        done = self._make_event()
        done.record()
        return SampledStep(plan, requests, token_ids, status, logprobs, done)

    def wait(self, sampled: SampledStep) -> None:
        """Waits until everything that a step brings to the host has arrived."""
        sampled.done.synchronize()

    def collect(self, sampled: SampledStep) -> StepResult:
        """Waits for a step and makes host values of its results."""
        self.wait(sampled)
        plan = sampled.plan
        rows = np.flatnonzero(plan.needs_sample).tolist()
        token_ids = np.zeros((plan.num_rows, 1), dtype=np.int64)
        token_ids[plan.needs_sample, 0] = np.maximum(sampled.token_ids.numpy(), 0)
        result = StepResult(
            StepOutcome(token_ids=token_ids, num_tokens=plan.needs_sample.astype(np.int64))
        )
        status = sampled.status.numpy()
        for index in np.flatnonzero(status != RowStatus.OK).tolist():
            running = sampled.requests[index]
            if not running.is_removed:
                message = RowStatus(int(status[index])).message
                result.failures[running.request.request_id] = message
        for places, tensors in sampled.logprobs.values():
            for index, place in places.items():
                num_top = sampled.requests[index].request.logprobs.num_output or 0
                if status[index] == RowStatus.OK:
                    result.logprobs[rows[index]] = tensors.entry(place, num_top)
        for index, running in enumerate(sampled.requests):
            if running.prompt_logprobs is not None and running.history.num_output_tokens == 0:
                result.prompt_logprobs[rows[index]] = running.prompt_logprobs.take()
        return result

    def _note_starts(self, plan: StepPlan, request_ids: list[str]) -> None:
        now_s = self._clock()
        for row in np.flatnonzero(plan.is_prompt).tolist():
            running = self._requests[request_ids[row]]
            if running.started_s is None:
                running.started_s = now_s

    def _copy_rings(self, plan: StepPlan) -> None:
        """Saves window rings, then restores others: a slot may be due for both."""
        saves, restored = plan.saves, plan.restore_ids >= 0
        if len(saves) == 0 and not restored.any():
            return
        if self._cache is None or self._snapshots is None:
            raise ModelExecutionError("the plan saves or restores window rings; there is no room")
        device = self._device
        if len(saves):
            slots, ids = upload(saves.slots, device), upload(saves.snapshot_ids, device)
            self._snapshots.save(self._cache, slots, ids)
        if restored.any():
            slots = upload(plan.slots[restored], device)
            ids = upload(plan.restore_ids[restored], device)
            self._snapshots.restore(self._cache, slots, ids)

    def _make_batch(self, plan: StepPlan) -> StepBatch:
        batch = make_step_batch(plan, history_len=self._history_len, device=self._device)
        return self._slots.repair(batch, None) if depends_on_device(plan) else batch

    def _record(self, launched: LaunchedStep, token_ids: torch.Tensor) -> None:
        """Leaves the new tokens where the next step looks for them."""
        slots, needs_sample = launched.slots, launched.plan.needs_sample
        if not needs_sample.all():
            slots = slots[upload(np.flatnonzero(needs_sample), self._device)]
        # A row that failed has no token; its request ends when the host learns of it.
        self._slots.record_newest(slots, token_ids.clamp(min=0))

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


def _wanted_logprobs(requests: list[_RunningRequest]) -> dict[str, list[tuple[int, int]]]:
    """Sampled rows and alternatives wanted, by mode."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    for index, running in enumerate(requests):
        spec = running.request.logprobs
        if spec.num_output is not None:
            wanted.setdefault(spec.mode, []).append((index, spec.num_output))
    return wanted


def _logprob_tensors(
    mode: str,
    logits: torch.Tensor,
    samples: spec_torch.Samples,
    wanted: list[tuple[int, int]],
) -> tuple[dict[int, int], LogprobTensors]:
    """Log-probabilities of the wanted rows, on their way to the host."""
    if mode == "raw":
        rows = upload(np.array([index for index, _ in wanted]), logits.device)
        num_top = max(n for _, n in wanted)
        tensors = raw_logprobs(logits[rows], samples.token_ids[rows], num_top)
        return {index: place for place, (index, _) in enumerate(wanted)}, tensors.to_host()
    if samples.logprobs is None or samples.top_token_ids is None or samples.top_logprobs is None:
        raise ModelExecutionError("the sampler returned no processed log-probabilities")
    tensors = LogprobTensors(
        samples.token_ids, samples.logprobs, samples.top_token_ids, samples.top_logprobs
    )
    return {index: index for index, _ in wanted}, tensors.to_host()
