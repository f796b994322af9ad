"""The step loop of one rank.

One call to `Engine.step` is one turn: plan step n, launch it, wait for step n-1 and book what it
brought, sample step n (the order of DeepInfer 0.1.0 `worker.py`). The device computes step n while
the host books step n-1; the wait is the only one, and it is one step late. Sampling comes after the
booking, so that it sees every token of its request.

Without overlap the same turn ends by waiting for step n itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from di_engine.core.step_timer import Span, StepTimer
from di_engine.errors import CapacityError, InvalidRequestError, ModelExecutionError
from di_engine.runner.model_runner import LaunchedStep, ModelRunner, SampledStep, StepResult
from di_engine.runner.request import EngineRequest, RequestEvent
from di_engine.runner.speculation import Speculation
from di_scheduler import CapacityError as SchedulerCapacityError
from di_scheduler import Request as SchedulerRequest
from di_scheduler import Scheduler, SchedulerError, StepPlan, StepUpdate

__all__ = ["Activity", "Engine"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Activity:
    """What the engine is doing, for whoever watches it from another thread.

    Attributes:
        span: The part of the turn.
        step_id: The step it belongs to.
        request_ids: The requests of that step.
        since_s: When it began, in seconds of the timer's clock.
    """

    span: Span
    step_id: int
    request_ids: Sequence[str]
    since_s: float

    def __str__(self) -> str:
        return f"`{self.span}` of step {self.step_id} with requests {', '.join(self.request_ids)}"


class Engine:
    """Steps requests to their end. Every accepted request gets exactly one terminal event."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        *,
        timer: StepTimer | None = None,
        overlap: bool = False,
        log_every_steps: int = 0,
    ) -> None:
        """Joins scheduler and runner, which must agree on blocks and state slots.

        Args:
            scheduler: Decides what runs.
            runner: Runs it.
            timer: Adds up the phases of steps.
            overlap: Whether a step is planned and launched before the one before it is read. The
                tokens are the same; they come one call of `step` later.
            log_every_steps: Steps between two lines of statistics; 0 logs none.
        """
        self._scheduler = scheduler
        self._runner = runner
        self.timer = timer or StepTimer()
        self._overlap = overlap
        self._log_every_steps = log_every_steps
        self._num_steps = 0
        self._in_flight: SampledStep | None = None
        self._open: deque[StepPlan] = deque()
        """Plans that were made and not booked, oldest first; at most two."""
        self.activity: Activity | None = None
        """What `step` is doing; None between two calls. Other threads may read it."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to run or to report."""
        return self._scheduler.has_unfinished

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for statistics and integrity checks."""
        return self._scheduler

    @property
    def speculation(self) -> Speculation | None:
        """Drafts and verification, with their figures; None without."""
        return self._runner.speculation

    def add(self, request: EngineRequest) -> None:
        """Accepts a request, or refuses it at once.

        Raises:
            InvalidRequestError: If it can never be served as it is.
            CapacityError: If it can never fit into this engine's cache.
        """
        self._runner.check(request)
        wants_prompt_rows = request.logprobs.num_prompt is not None
        try:
            self._scheduler.add(
                SchedulerRequest(
                    request_id=request.request_id,
                    prompt_ids=request.prompt_ids,
                    max_tokens=request.max_tokens,
                    min_tokens=request.min_tokens,
                    stop_token_ids=request.stop_token_ids,
                    ignore_eos=request.ignore_eos,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                    skip_reading_prefix_cache=wants_prompt_rows or not request.reads_prefix_cache,
                    needs_all_rows=wants_prompt_rows,
                )
            )
        except SchedulerCapacityError as error:
            raise CapacityError(str(error)) from error
        except SchedulerError as error:
            raise InvalidRequestError(str(error)) from error
        self._runner.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends requests; their terminal events come with a later step. Unknown ids are ignored."""
        self._scheduler.abort(request_ids)

    def finish(self, request_id: str, reason: str, message: str = "") -> None:
        """Ends one request for a reason found outside the core, such as a stop string."""
        self._scheduler.finish(request_id, reason, message)

    def step(self) -> list[RequestEvent]:
        """Makes one turn and returns what it changed.

        A model that fails ends the requests of the failed step with reason `error`, and those of
        the step launched behind it, which reads what it should have left; the others go on.
        """
        try:
            return self._turn()
        except KeyboardInterrupt:
            self._drop("abort", "interrupted")
            raise
        finally:
            self.activity = None

    def _turn(self) -> list[RequestEvent]:
        plan = self._plan()
        launched = None if plan is None else self._launch(plan)
        events = self._account()
        if plan is not None and launched is not None and plan in self._open:
            sampled = launched if isinstance(launched, Exception) else self._sample(launched)
            if isinstance(sampled, Exception):
                self._fail(plan, sampled)
            else:
                self._in_flight = sampled
        if not self._overlap:
            events += self._account()
        # Ends that no booked step carries: aborts while idle, requests of a failed step.
        events += self._events(self._scheduler.flush(), None)
        if plan is not None:
            self._log_statistics()
        return events

    def _plan(self) -> StepPlan | None:
        self._note("plan", 0, ())
        with self.timer.span("plan"):
            plan = self._scheduler.plan()
        if plan is not None:
            self._open.append(plan)
        return plan

    def _launch(self, plan: StepPlan) -> LaunchedStep | Exception:
        """Enqueues a forward pass. What it raises waits until the step before is booked."""
        self._note("launch", plan.step_id, plan.request_ids)
        try:
            with self.timer.span("launch", plan.step_id):
                return self._runner.launch(plan)
        except Exception as error:  # the step is the boundary: its requests fail, the engine lives
            return error

    def _sample(self, launched: LaunchedStep) -> SampledStep | Exception:
        plan = launched.plan
        self._note("sample", plan.step_id, plan.request_ids)
        try:
            with self.timer.span("sample", plan.step_id):
                return self._runner.sample(launched)
        except Exception as error:  # as in `_launch`
            return error

    def _account(self) -> list[RequestEvent]:
        """Waits for the step in flight, if there is one, and books what it brought."""
        sampled, self._in_flight = self._in_flight, None
        if sampled is None:
            return []
        plan = sampled.plan
        self._note("wait", plan.step_id, plan.request_ids)
        try:
            with self.timer.span("wait", plan.step_id):
                result = self._runner.collect(sampled)
        except Exception as error:  # as in `_launch`
            self._fail(plan, error)
            return []
        self._note("account", plan.step_id, plan.request_ids)
        with self.timer.span("account", plan.step_id):
            for request_id, message in result.failures.items():
                self._scheduler.finish(request_id, "error", message)
            update = self._scheduler.commit(plan, result.outcome)
            self._open.popleft()
            if result.verification is not None and self.speculation is not None:
                self.speculation.book(result.verification, update, plan.num_rows)
            events = self._events(update, result)
        self.timer.count_step(plan.num_tokens)
        return events

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        logger.error(
            "step %d failed: %s", plan.step_id, ", ".join(plan.request_ids), exc_info=error
        )
        failure = ModelExecutionError(f"the model failed in step {plan.step_id}: {error!r}")
        self._drop("error", str(failure))

    def _drop(self, reason: str, message: str) -> None:
        """Ends every request of every open step: their results cannot be trusted."""
        self._in_flight = None
        for plan in self._open:
            for request_id in plan.request_ids:
                self._scheduler.finish(request_id, reason, message)
        if self._open:
            self._scheduler.cancel(self._open[0])
        self._open.clear()

    def _note(self, span: Span, step_id: int, request_ids: Sequence[str]) -> None:
        self.activity = Activity(span, step_id, request_ids, self.timer.clock())

    def _events(self, update: StepUpdate, result: StepResult | None) -> list[RequestEvent]:
        events = []
        for view in update:
            request_id = view.request_id
            logprobs = prompt_logprobs = None
            if view.token_ids and result is not None:
                entries = result.logprobs.get(view.row)
                logprobs = None if entries is None else entries[: len(view.token_ids)]
                prompt_logprobs = result.prompt_logprobs.get(view.row)
            failure = self._runner.append(request_id, view.token_ids)
            started_s = self._runner.started_s(request_id)
            reason, message = view.finish_reason, view.message
            if view.finished:
                self._runner.remove(request_id)
                if failure is not None:
                    reason, message = "error", failure
            elif failure is not None:
                self._scheduler.finish(request_id, "error", failure)
            events.append(
                RequestEvent(
                    request_id,
                    list(view.token_ids),
                    logprobs,
                    prompt_logprobs,
                    reason if view.finished else None,
                    message,
                    view.num_cached_tokens,
                    started_s,
                )
            )
        return events

    def _log_statistics(self) -> None:
        self._num_steps += 1
        if self._log_every_steps and self._num_steps % self._log_every_steps == 0:
            logger.info(
                "step %d: %d running, %d waiting",
                self._num_steps,
                self._scheduler.num_running,
                self._scheduler.num_waiting,
            )
