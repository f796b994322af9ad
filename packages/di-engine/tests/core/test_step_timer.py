"""Step times: phases add up on the clock that was handed in."""

import pytest

from di_engine.core.step_timer import StepTimer


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_phases_add_up_and_reset() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    for _ in range(2):
        with timer.span("plan"):
            clock.now_s += 1.0
        with timer.span("launch"):
            clock.now_s += 4.0
        with timer.span("sample"):
            clock.now_s += 2.0
        clock.now_s += 8.0  # the caller's own time
        timer.count_step(3)
    times = timer.reset()
    assert (times.schedule_s, times.model_s, times.sample_s) == (2.0, 8.0, 4.0)
    assert times.total_s == 14.0
    assert (times.num_steps, times.num_tokens) == (2, 6)
    assert timer.times.total_s == 0.0


def test_a_phase_that_raises_is_counted() -> None:
    clock = Clock()
    timer = StepTimer(clock)

    def fail() -> None:
        with timer.span("launch"):
            clock.now_s += 3.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert timer.times.model_s == 3.0


def test_the_device_is_waited_for_inside_the_phase() -> None:
    clock = Clock()

    def synchronize() -> None:
        clock.now_s += 5.0

    timer = StepTimer(clock, synchronize)
    with timer.span("launch"):
        clock.now_s += 1.0
    assert timer.times.model_s == 6.0
