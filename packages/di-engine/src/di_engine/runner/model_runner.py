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
import numpy.typing as npt
import torch

from di_engine.cache import Cache, RingSnapshots
from di_engine.errors import ModelExecutionError
from di_engine.model.batch import StepBatch
from di_engine.platforms import Event, HostEvent
from di_engine.runner.grammar import StepMasks
from di_engine.runner.host_copy import copy_to_host
from di_engine.runner.prompt_logprobs import PromptLogprobs
from di_engine.runner.request import EngineRequest, PositionLogprobs
from di_engine.runner.sampled_rows import (
    EmittedTokens,
    RunningRequest,
    SampledRows,
    StepLogprobs,
    draw,
)
from di_engine.runner.slot_state import SlotState
from di_engine.runner.speculation import HostDrafts, Speculation, StepVerification
from di_engine.runner.step_inputs import (
    TruncationMode,
    depends_on_device,
    make_step_batch,
    upload,
)
from di_scheduler import StepOutcome, StepPlan
from di_spec.sampling import RowStatus, TokenHistory

__all__ = ["LaunchedStep", "Model", "ModelRunner", "SampledStep", "StepResult"]


_Counts = npt.NDArray[np.int64]


class Model(Protocol):
    """The part of the model that steps need; `di_engine.model.backbone.Backbone` is one."""

    def forward(self, batch: StepBatch, cache: Any) -> torch.Tensor:
        """Runs the backbone and writes `cache`; returns hidden states (num_tokens, hidden_size)."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Projects hidden rows to the vocabulary; float32 or float64, shape (rows, vocab_size)."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose forward pass is enqueued.

    Attributes:
        plan: The step's plan.
        logits: One row per sampled row, requests in order, shape (rows, vocab_size), on the device.
        batch: Inputs as they ran.
        requests: The sampled requests, in row order. They are held by object: by the time the step
            is collected, an id may belong to another request.
        begun: Recorded before the forward pass, where step times are wanted.
        forwarded: Recorded behind it.
    """

    plan: StepPlan
    logits: torch.Tensor
    batch: StepBatch
    requests: list[RunningRequest]
    begun: Event | None = None
    forwarded: Event | None = None


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step whose sampling is enqueued. Tensors are copies on the host, complete after `done`.

    Attributes:
        plan: The step's plan.
        rows: Its sampled rows.
        token_ids: New tokens of each sampled request, in order, int64 [R, W].
        num_emitted: How many, int64 [R].
        status: `RowStatus` of each sampled request.
        logprobs: By mode.
        done: Recorded behind everything.
        drafts: Drafts for the next step.
        begun: As in `LaunchedStep`.
        forwarded: As in `LaunchedStep`.
    """

    plan: StepPlan
    rows: SampledRows
    token_ids: torch.Tensor
    num_emitted: torch.Tensor
    status: torch.Tensor
    logprobs: dict[str, StepLogprobs]
    done: Event
    drafts: HostDrafts | None = None
    begun: Event | None = None
    forwarded: Event | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's results on the host, by row of its plan.

    Attributes:
        outcome: Tokens for the scheduler; rows that failed carry a placeholder.
        failures: Request id to what is wrong with its logits or its grammar, for requests that
            still run.
        logprobs: Row to the log-probabilities of its new tokens, where wanted.
        prompt_logprobs: Row to its prompt's log-probabilities, with its first token.
        verification: What was verified, with speculation.
    """

    outcome: StepOutcome
    failures: dict[str, str] = field(default_factory=dict)
    logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)
    verification: StepVerification | None = None


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
        truncation: TruncationMode = "off",
        num_mask_threads: int = 1,
        make_event: Callable[[], Event] = HostEvent,
        sync_guard: Callable[[], AbstractContextManager[object]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
        speculation: Speculation | None = None,
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
            truncation: How the decoder half is spared the prompt rows that plans let it skip.
            num_mask_threads: Threads that fill grammar masks.
            make_event: Makes an event of the device.
            sync_guard: Makes a context for what `launch` and `sample` enqueue, for example one in
                which a host that waits for the device is an error (`runner.sync_guard`).
            clock: Seconds, for the start of requests; the same as that of request times.
            speculation: Drafts and verification; None makes one token per request and step.
        """
        self._clock = clock
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._history_len = history_len
        self._device = device
        self._snapshots = snapshots
        self._truncation: TruncationMode = truncation
        self._make_event = make_event
        self._sync_guard = sync_guard
        self._slots = (
            SlotState(num_state_slots, num_draft_tokens=0, device=device)
            if speculation is None
            else speculation.slots
        )
        self.speculation = speculation
        """Drafts and verification, with their figures; None without."""
        self._masks = StepMasks(vocab_size, device, num_mask_threads)
        self._requests: dict[str, RunningRequest] = {}

    @property
    def num_requests(self) -> int:
        """Requests that are kept between steps."""
        return len(self._requests)

    def check(self, request: EngineRequest) -> None:
        """Refuses a request that cannot be run as this runner is set up.

        Raises:
            InvalidRequestError: Saying what contradicts what.
        """
        if self.speculation is not None:
            self.speculation.check(request)

    def add(self, request: EngineRequest) -> None:
        """Takes a request that later plans may name."""
        if self.speculation is not None:
            self.speculation.begin(request)
        num_prompt = request.logprobs.num_prompt
        self._requests[request.request_id] = RunningRequest(
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
            if self.speculation is not None:
                self.speculation.end(request_id)

    def started_s(self, request_id: str) -> float | None:
        """When the first step that contains a request was launched, by the runner's clock."""
        running = self._requests.get(request_id)
        return None if running is None else running.started_s

    def append(self, request_id: str, token_ids: Sequence[int]) -> str | None:
        """Records tokens that the scheduler has accepted.

        Returns:
            Why the request cannot go on; None if it can.
        """
        running = self._requests.get(request_id)
        if running is None:
            return None
        running.history.extend(token_ids)
        grammar = running.request.grammar
        if grammar is not None and running.failure is None and token_ids:
            try:
                grammar.advance(token_ids)
            except Exception as error:  # the request is the boundary, whatever its grammar raises
                running.failure = f"the output has left its grammar: {error}"
        return running.failure

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Enqueues the forward pass and the vocabulary projection of the sampled rows."""
        request_ids = plan.request_ids
        self._note_starts(plan, request_ids)
        begun = self._timing_event()
        with self._sync_guard():
            self._copy_rings(plan)
            batch = self._make_batch(plan)
            hidden = self._model.forward(batch, self._cache)
            self._add_prompt_logprobs(plan, hidden)
            logits = self._model.logits(hidden[batch.logits_rows])
        forwarded = self._timing_event()
        sampled = [request_ids[row] for row in np.flatnonzero(plan.needs_sample)]
        return LaunchedStep(
            plan,
            logits,
            batch,
            [self._requests[request_id] for request_id in sampled],
            begun,
            forwarded,
        )

    @torch.inference_mode()
    def sample(self, launched: LaunchedStep) -> SampledStep:
        """Enqueues sampling of the rows that end a request's part.

        The step before must be booked: the host then knows every token and draft of its requests.
        """
        rows = self._sampled_rows(launched)
        with self._sync_guard():
            emitted = self._draw(launched, rows)
            drafts = self._record(launched, emitted)
        token_ids, num_emitted = copy_to_host(emitted.token_ids), copy_to_host(emitted.num_emitted)
        status = copy_to_host(emitted.status)
        done = self._make_event()
        done.record()
        return SampledStep(
            launched.plan,
            rows,
            token_ids,
            num_emitted,
            status,
            emitted.logprobs,
            done,
            drafts,
            launched.begun,
            launched.forwarded,
        )

    def wait(self, sampled: SampledStep) -> None:
        """Waits until everything that a step brings to the host has arrived."""
        sampled.done.synchronize()

    def collect(self, sampled: SampledStep) -> StepResult:
        """Waits for a step and makes host values of its results."""
        self.wait(sampled)
        plan, requests = sampled.plan, sampled.rows.requests
        rows = np.flatnonzero(plan.needs_sample).tolist()
        emitted, status = sampled.token_ids.numpy(), sampled.status.numpy()
        num_emitted = sampled.num_emitted.numpy()
        # A request whose first row is bad emits a placeholder; it is about to fail.
        token_ids = np.zeros((plan.num_rows, emitted.shape[1]), dtype=np.int64)
        token_ids[plan.needs_sample] = np.maximum(emitted, 0)
        num_tokens = np.zeros(plan.num_rows, np.int64)
        num_tokens[plan.needs_sample] = np.maximum(num_emitted, 1)
        verification, num_drafts, query_lens = self._collect_drafts(sampled)
        result = StepResult(
            StepOutcome(token_ids, num_tokens, num_drafts, query_lens), verification=verification
        )
        # A bad row behind good ones is the first row of the request's next step.
        for index in np.flatnonzero(num_emitted == 0).tolist():
            running = requests[index]
            if not running.is_removed:
                message = RowStatus(int(status[index])).message
                result.failures[running.request.request_id] = message
        for running in requests:
            if running.failure is not None and not running.is_removed:
                result.failures[running.request.request_id] = running.failure
        for part in sampled.logprobs.values():
            for index, place in part.places.items():
                num_top = requests[index].request.logprobs.num_output or 0
                result.logprobs[rows[index]] = [
                    part.tensors.entry(place + number, num_top)
                    for number in range(int(num_emitted[index]))
                ]
        for index, running in enumerate(requests):
            if running.prompt_logprobs is not None and running.history.num_output_tokens == 0:
                result.prompt_logprobs[rows[index]] = running.prompt_logprobs.take()
        return result

    def _sampled_rows(self, launched: LaunchedStep) -> SampledRows:
        if self.speculation is None:
            return SampledRows(launched.requests, [[] for _ in launched.requests])
        return self.speculation.rows(launched.plan, launched.requests)

    def _draw(self, launched: LaunchedStep, rows: SampledRows) -> EmittedTokens:
        mask_bits = self._masks.fill(rows)
        if self.speculation is None:
            return draw(launched.logits, rows, self._vocab_size, mask_bits)
        needs_sample = upload(np.flatnonzero(launched.plan.needs_sample), self._device)
        law = self.speculation.law(launched.batch.state_slots[needs_sample])
        mode = self.speculation.mode
        return draw(launched.logits, rows, self._vocab_size, mask_bits, mode=mode, law=law)

    def _collect_drafts(
        self, sampled: SampledStep
    ) -> tuple[StepVerification | None, _Counts | None, _Counts | None]:
        """What was verified, drafts now held and rows computed, by plan row."""
        speculation, plan = self.speculation, sampled.plan
        if speculation is None:
            return None, None, None
        verification = speculation.verification(plan, sampled.rows, sampled.num_emitted.numpy())
        num_drafts = speculation.accept_drafts(
            plan, sampled.rows, sampled.drafts, sampled.token_ids.numpy(), verification
        )
        if sampled.begun is not None and sampled.forwarded is not None:
            forward_s = sampled.forwarded.elapsed_ms(sampled.begun) / 1e3
            sampler_s = sampled.done.elapsed_ms(sampled.forwarded) / 1e3
            speculation.observe_times(plan, forward_s, sampler_s)
        query_lens = plan.query_lens.astype(np.int64)
        query_lens[verification.rows] = verification.num_verified + 1
        return verification, num_drafts, query_lens

    def _timing_event(self) -> Event | None:
        """A recorded event, if somebody learns from step times."""
        if self.speculation is None or not self.speculation.wants_times:
            return None
        event = self._make_event()
        event.record()
        return event

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
        batch = make_step_batch(
            plan,
            history_len=self._history_len,
            device=self._device,
            truncation=self._truncation,
        )
        if not depends_on_device(plan):
            return batch
        if self.speculation is not None:
            return self.speculation.repair(batch, plan, self._history_len)
        return self._slots.repair(batch, None)

    def _record(self, launched: LaunchedStep, emitted: EmittedTokens) -> HostDrafts | None:
        """Leaves the new tokens, and drafts behind them, where the next step looks for them."""
        plan, needs_sample = launched.plan, launched.plan.needs_sample
        if self.speculation is not None:
            return self.speculation.draft(plan, launched.batch, launched.requests, emitted)
        slots = launched.batch.state_slots
        if not needs_sample.all():
            slots = slots[upload(np.flatnonzero(needs_sample), self._device)]
        # A row that failed has no token; its request ends when the host learns of it.
        self._slots.record_newest(slots, emitted.token_ids[:, 0].clamp(min=0))
        return None

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
