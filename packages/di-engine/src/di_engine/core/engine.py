"""The step loop of one rank.

One call to `Engine.step` is one step: plan, launch, sample, collect, commit. The order is that of
the overlapped loop (plan n, launch n, collect n-1, commit n-1, sample n) with nothing in flight
between two calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from di_engine.core.step_timer import StepTimer
from di_engine.errors import CapacityError, InvalidRequestError, ModelExecutionError
from di_engine.runner.model_runner import ModelRunner, StepResult
from di_engine.runner.request import EngineRequest, RequestEvent
from di_scheduler import CapacityError as SchedulerCapacityError
from di_scheduler import Request as SchedulerRequest
from di_scheduler import Scheduler, SchedulerError, StepPlan, StepUpdate

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine:
    """Steps requests to their end. Every accepted request gets exactly one terminal event."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        *,
        timer: StepTimer | None = None,
        log_every_steps: int = 0,
    ) -> None:
        """Joins scheduler and runner, which must agree on blocks and state slots.

        Args:
            scheduler: Decides what runs.
            runner: Runs it.
            timer: Adds up the phases of steps.
            log_every_steps: Steps between two lines of statistics; 0 logs none.
        """
        self._scheduler = scheduler
        self._runner = runner
        self.timer = timer or StepTimer()
        self._log_every_steps = log_every_steps
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to run or to report."""
        return self._scheduler.has_unfinished

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for statistics and integrity checks."""
        return self._scheduler

    def add(self, request: EngineRequest) -> None:
        """Accepts a request, or refuses it at once.

        Raises:
            InvalidRequestError: If it can never be served as it is.
            CapacityError: If it can never fit into this engine's cache.
        """
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
        """Runs one step and returns what it changed.

        A model that fails ends the requests of that step with reason `error`; the others go on.
        """
        with self.timer.phase("schedule"):
            plan = self._scheduler.plan()
        if plan is None:
            return self._events(self._scheduler.flush(), None)
        result = self._run(plan)
        with self.timer.phase("schedule"):
            if result is None:
                update = self._scheduler.flush()
            else:
                for request_id, message in result.failures.items():
                    self._scheduler.finish(request_id, "error", message)
                update = self._scheduler.commit(plan, result.outcome)
            events = self._events(update, result)
        self._log_statistics()
        return events

    def _run(self, plan: StepPlan) -> StepResult | None:
        try:
            with self.timer.phase("model"):
                launched = self._runner.launch(plan)
            with self.timer.phase("sample"):
                result = self._runner.collect(self._runner.sample(launched))
        except KeyboardInterrupt:
            self._drop(plan, "abort", "interrupted")
            raise
        except Exception as error:  # the step is the boundary: its requests fail, the engine lives
            logger.exception("step %d failed: %s", plan.step_id, ", ".join(plan.request_ids))
            failure = ModelExecutionError(f"the model failed in step {plan.step_id}: {error!r}")
            self._drop(plan, "error", str(failure))
            return None
        self.timer.count_step(plan.num_tokens)
        return result

    def _drop(self, plan: StepPlan, reason: str, message: str) -> None:
        """Ends every request of a step whose results cannot be trusted."""
        for request_id in plan.request_ids:
            self._scheduler.finish(request_id, reason, message)
        self._scheduler.cancel(plan)

    def _events(self, update: StepUpdate, result: StepResult | None) -> list[RequestEvent]:
        events = []
        for view in update:
            request_id = view.request_id
            logprobs = prompt_logprobs = None
            if view.token_ids and result is not None:
                entry = result.logprobs.get(request_id)
                logprobs = None if entry is None else [entry]
                prompt_logprobs = result.prompt_logprobs.get(request_id)
            self._runner.append(request_id, view.token_ids)
            if view.finished:
                self._runner.remove(request_id)
            events.append(
                RequestEvent(
                    request_id,
                    list(view.token_ids),
                    logprobs,
                    prompt_logprobs,
                    view.finish_reason if view.finished else None,
                    view.message,
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
