"""The step loop: one terminal event per request, whatever happens in between."""

import logging

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from di_engine.errors import CapacityError, InvalidRequestError
from di_engine.runner.request import EngineRequest
from di_engine.testing.counting_engine import CountingEngine
from di_spec.sampling import SamplingParams


def request(request_id: str, prompt: list[int], max_tokens: int = 4) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_ids=np.array(prompt, dtype=np.int32),
        sampling=SamplingParams(temperature=0),
        max_tokens=max_tokens,
    )


def test_a_step_reports_the_tokens_it_made() -> None:
    counting = CountingEngine()
    counting.engine.add(request("r", [10, 11]))
    events = [event for _ in range(4) for event in counting.engine.step()]
    assert [event.token_ids for event in events] == [[12], [13], [14], [15]]
    assert [event.finish_reason for event in events] == [None, None, None, "length"]
    assert not counting.engine.has_work


def test_refusals_are_errors_of_this_package() -> None:
    counting = CountingEngine(num_blocks=2, max_model_len=300)
    engine = counting.engine
    with pytest.raises(CapacityError, match="block"):
        engine.add(request("large", [5] * 200))
    engine.add(request("r", [5]))
    with pytest.raises(InvalidRequestError):
        engine.add(request("r", [5]))
    assert counting.runner.num_requests == 1


def test_phases_are_timed_and_steps_counted() -> None:
    ticks = iter(range(10_000))
    counting = CountingEngine(clock=lambda: float(next(ticks)))
    counting.engine.add(request("r", [5, 6, 7]))
    counting.engine.step()
    times = counting.engine.timer.reset()
    assert (times.num_steps, times.num_tokens) == (1, 3)
    assert times.schedule_s == 2.0
    assert times.model_s == 2.0  # one reading in between, for the start of the request
    assert times.sample_s == 2.0  # sampling, and the wait for it


def test_a_failed_step_is_logged_once_with_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = CountingEngine()
    counting.model.fail_on_step = 0
    counting.engine.add(request("one", [5]))
    counting.engine.add(request("two", [6]))
    with caplog.at_level(logging.ERROR):
        events = counting.engine.step()
    assert {event.request_id: event.finish_reason for event in events} == {
        "one": "error",
        "two": "error",
    }
    assert len(caplog.records) == 1
    assert "one, two" in caplog.text
    counting.scheduler.check_integrity()


def test_finish_from_outside_is_reported_with_its_reason() -> None:
    counting = CountingEngine()
    counting.engine.add(request("r", [5], max_tokens=50))
    counting.engine.step()
    counting.engine.finish("r", "stop")
    events = counting.engine.step()
    assert [(event.request_id, event.finish_reason) for event in events] == [("r", "stop")]
    assert not counting.engine.has_work


class RequestLives(RuleBasedStateMachine):
    """Adds, steps, aborts and breaks steps at will; nothing leaks and everything ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = CountingEngine(
            num_blocks=6, max_running=3, max_tokens_per_step=48, nan_after=[250]
        )
        self.added: set[str] = set()
        self.ended: dict[str, str] = {}
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, list[int]] = {}

    @rule(
        length=st.sampled_from([1, 2, 40, 127, 128, 129, 200]),
        first=st.integers(3, 255),
        max_tokens=st.sampled_from([1, 2, 7, 90]),
    )
    def add(self, length: int, first: int, max_tokens: int) -> None:
        request_id = f"r{len(self.added)}"
        prompt = [first] * length
        self.counting.engine.add(request(request_id, prompt, max_tokens))
        self.added.add(request_id)
        self.prompts[request_id] = prompt
        self.tokens[request_id] = []

    @rule(number=st.integers(0, 30))
    def abort(self, number: int) -> None:
        self.counting.engine.abort([f"r{number}"])

    @precondition(lambda self: self.counting.engine.has_work)
    @rule(num_steps=st.integers(1, 8), breaks=st.booleans())
    def step(self, num_steps: int, breaks: bool) -> None:
        if breaks:
            self.counting.model.fail_on_step = len(self.counting.model.batches)
        for _ in range(num_steps):
            self._step()

    def _step(self) -> None:
        for event in self.counting.engine.step():
            assert event.request_id not in self.ended, "an event after the terminal one"
            self.tokens[event.request_id] += event.token_ids
            if event.finish_reason is not None:
                self.ended[event.request_id] = event.finish_reason

    @invariant()
    def pool_is_whole(self) -> None:
        self.counting.scheduler.check_integrity()
        assert self.counting.runner.num_requests == len(self.added) - len(self.ended)

    def teardown(self) -> None:
        self.counting.model.fail_on_step = None
        for _ in range(5000):
            if not self.counting.engine.has_work:
                break
            self._step()
        assert self.added == set(self.ended)
        assert self.counting.runner.num_requests == 0
        self.counting.scheduler.check_integrity()
        for request_id, token_ids in self.tokens.items():
            first = self.prompts[request_id][-1] + 1
            assert token_ids == [(first + i) % 259 for i in range(len(token_ids))]


TestRequestLives = pytest.mark.slow(RequestLives.TestCase)
TestRequestLives.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
