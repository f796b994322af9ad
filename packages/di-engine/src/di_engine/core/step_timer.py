"""Where the time of a step goes. The clock is handed in, so that tests own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

__all__ = ["Phase", "StepTimer", "StepTimes"]

Phase = Literal["schedule", "model", "sample"]


@dataclass(slots=True)
class StepTimes:
    """Seconds spent since the last reset, by phase.

    Attributes:
        num_steps: Model steps.
        num_tokens: Rows that these steps ran through the model.
        schedule_s: Planning and committing.
        model_s: Batch tensors, forward pass and vocabulary projection.
        sample_s: Sampling, log-probabilities and copies to the host.
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
    ) -> None:
        """Makes a timer.

        Args:
            clock: Returns seconds; only differences are used.
            synchronize: Waits for the device. With it each phase counts its own device work; a
                benchmark wants that, serving does not.
        """
        self.clock = clock
        self._synchronize = synchronize
        self.times = StepTimes()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Adds the time of the `with` block to `name`, also when it raises."""
        begin = self.clock()
        try:
            yield
            if self._synchronize is not None:
                self._synchronize()
        finally:
            field = f"{name}_s"
            setattr(self.times, field, getattr(self.times, field) + self.clock() - begin)

    def count_step(self, num_tokens: int) -> None:
        """Counts one model step of `num_tokens` rows."""
        self.times.num_steps += 1
        self.times.num_tokens += num_tokens

    def reset(self) -> StepTimes:
        """Starts over and returns what was added up."""
        times, self.times = self.times, StepTimes()
        return times
