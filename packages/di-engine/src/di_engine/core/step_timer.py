"""Where the time of a step goes. The clock is handed in, so that tests own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Phase", "Span", "SpanSink", "StepTimer", "StepTimes"]

Phase = Literal["schedule", "model", "sample"]

Span = Literal["plan", "launch", "wait", "account", "sample"]
"""What the host does in a step: plan it, enqueue its forward pass, wait for the one before it, book
that one's results, enqueue its own sampling."""

_PHASE_OF: dict[Span, Phase] = {
    "plan": "schedule",
    "launch": "model",
    "wait": "sample",
    "account": "schedule",
    "sample": "sample",
}


class SpanSink(Protocol):
    """Whoever wants to know every span, such as `di_engine.core.trace.StepTrace`."""

    def host_span(self, span: Span, step_id: int, begin_s: float, end_s: float) -> None:
        """Takes one span of a step; step 0 stands for no step."""


@dataclass(slots=True)
class StepTimes:
    """Seconds spent since the last reset, by phase.

    Attributes:
        num_steps: Model steps.
        num_tokens: Rows that these steps ran through the model.
        schedule_s: Planning and committing.
        model_s: Batch tensors, forward pass and vocabulary projection.
        sample_s: Sampling, log-probabilities, and waiting for them to reach the host.
    """

    num_steps: int = 0
    num_tokens: int = 0
    schedule_s: float = 0.0
    model_s: float = 0.0
    sample_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of the phases; what the caller does between steps is not in it."""
        return self.schedule_s + self.model_s + self.sample_s


class StepTimer:
    """Adds up the phases of steps."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        synchronize: Callable[[], None] | None = None,
        sink: SpanSink | None = None,
    ) -> None:
        """Makes a timer.

        Args:
            clock: Returns seconds; only differences are used.
            synchronize: Waits for the device. With it each phase counts its own device work; a
                benchmark wants that, serving does not.
            sink: Takes every span.
        """
        self.clock = clock
        self._synchronize = synchronize
        self._sink = sink
        self.times = StepTimes()

    @contextmanager
    def span(self, span: Span, step_id: int = 0) -> Iterator[None]:
        """Adds the time of the `with` block to the span's phase, also when it raises."""
        begin = self.clock()
        try:
            yield
            if self._synchronize is not None:
                self._synchronize()
        finally:
            end = self.clock()
            field = f"{_PHASE_OF[span]}_s"
            setattr(self.times, field, getattr(self.times, field) + end - begin)
            if self._sink is not None:
                self._sink.host_span(span, step_id, begin, end)

    def count_step(self, num_tokens: int) -> None:
        """Counts one model step of `num_tokens` rows."""
        self.times.num_steps += 1
        self.times.num_tokens += num_tokens

    def reset(self) -> StepTimes:
        """Starts over and returns what was added up."""
        times, self.times = self.times, StepTimes()
        return times
