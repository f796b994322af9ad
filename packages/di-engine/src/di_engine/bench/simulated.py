"""A device of fixed speed: shows what the host costs, whatever the model does."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from di_engine.core.engine import Engine
from di_engine.core.step_timer import StepTimer
from di_engine.core.trace import StepTrace
from di_engine.model.batch import StepBatch
from di_engine.platforms import Event
from di_engine.runner.model_runner import ModelRunner
from di_engine.runner.request import EngineRequest
from di_scheduler import Scheduler, SchedulerConfig
from di_spec.sampling import SamplingParams

__all__ = ["SimulatedDevice", "bench_overlap"]

_VOCAB_SIZE = 64


class SimulatedDevice:
    """A queue that works off one thing after another, each in a fixed time.

    The engine around it is the real one. What runs in no time here, the host's part of a forward
    pass, is the launch of a captured graph on a real device.
    """

    def __init__(
        self,
        forward_s: float,
        sampling_s: float,
        trace: StepTrace,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Makes an idle device.

        Args:
            forward_s: Time of a forward pass.
            sampling_s: Time of sampling.
            trace: Told what the device does.
            clock: Seconds.
            sleep: Lets seconds pass on that clock.
        """
        self._forward_s = forward_s
        self._sampling_s = sampling_s
        self._trace = trace
        self._clock = clock
        self._sleep = sleep
        self._free_at_s = clock()
        self._num_steps = 0

    def forward(self, batch: StepBatch, cache: object) -> torch.Tensor:
        """Queues a forward pass."""
        self._num_steps += 1
        begin_s, end_s = self._submit(self._forward_s)
        self._trace.device_span("forward", self._num_steps, begin_s, end_s)
        return torch.zeros(batch.num_rows, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits for which greedy sampling finds token 0."""
        return torch.zeros(len(hidden), _VOCAB_SIZE)

    def event(self) -> Event:
        """An event behind the step's sampling."""
        return _SimulatedEvent(self)

    def finish_sampling(self) -> float:
        """Queues sampling; returns when it will be done."""
        begin_s, end_s = self._submit(self._sampling_s)
        self._trace.device_span("sampling", self._num_steps, begin_s, end_s)
        return end_s

    def wait_until(self, time_s: float) -> None:
        """Lets the host wait."""
        while (remaining_s := time_s - self._clock()) > 0:
            self._sleep(remaining_s)

    def _submit(self, duration_s: float) -> tuple[float, float]:
        begin_s = max(self._clock(), self._free_at_s)
        self._free_at_s = begin_s + duration_s
        return begin_s, self._free_at_s


class _SimulatedEvent:
    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._done_at_s = 0.0

    def record(self) -> None:
        self._done_at_s = self._device.finish_sampling()

    def query(self) -> bool:
        return self._device._clock() >= self._done_at_s

    def synchronize(self) -> None:
        self._device.wait_until(self._done_at_s)

    def elapsed_ms(self, earlier: Event) -> float:
        assert isinstance(earlier, _SimulatedEvent), "an event of the same device"
        return (self._done_at_s - earlier._done_at_s) * 1e3


def bench_overlap(
    *,
    forward_s: float,
    sampling_s: float,
    batch_size: int,
    num_steps: int,
    overlap: bool,
    prompt_len: int = 64,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, object], StepTrace]:
    """Measures decode steps of the real engine around a simulated device.

    Args:
        forward_s: Device time of a forward pass.
        sampling_s: Device time of sampling.
        batch_size: Requests side by side.
        num_steps: Decode steps to measure.
        overlap: Whether the engine overlaps steps.
        prompt_len: Prompt tokens of each request.
        clock: Seconds.
        sleep: Lets seconds pass on that clock.

    Returns:
        The step-time account with the measured step time and its ratio to the device's, and the
        trace it is made from.
    """
    num_warmup = 8
    length = prompt_len + num_steps + num_warmup + 8
    config = SchedulerConfig(
        max_model_len=length,
        num_blocks=batch_size * (length // 128 + 2) + 1,
        max_running=batch_size,
        max_tokens_per_step=batch_size * prompt_len,
        vocab_size=_VOCAB_SIZE,
        prefix_cache=True,
    )
    trace = StepTrace()
    device = SimulatedDevice(forward_s, sampling_s, trace, clock, sleep)
    runner = ModelRunner(
        device,
        None,
        vocab_size=_VOCAB_SIZE,
        history_len=2,
        num_state_slots=config.state_slots,
        device=torch.device("cpu"),
        make_event=device.event,
    )
    engine = Engine(Scheduler(config), runner, timer=StepTimer(clock, sink=trace), overlap=overlap)
    random = np.random.default_rng(0)
    for number in range(batch_size):
        engine.add(
            EngineRequest(
                request_id=str(number),
                prompt_ids=random.integers(0, _VOCAB_SIZE, prompt_len, dtype=np.int32),
                sampling=SamplingParams(temperature=0),
                max_tokens=length - prompt_len,
                ignore_eos=True,
            )
        )
    for _ in range(num_warmup):
        engine.step()
    trace.clear()
    begin_s = clock()
    for _ in range(num_steps):
        engine.step()
    step_s = (clock() - begin_s) / num_steps
    account: dict[str, object] = {
        "benchmark": "overlap",
        "overlap": overlap,
        "batch_size": batch_size,
        "step_ms": step_s * 1e3,
        "device_step_ms": (forward_s + sampling_s) * 1e3,
        "ratio": step_s / (forward_s + sampling_s),
    }
    return account | trace.account(), trace
