"""`AsyncLLM`: streams side by side, leaving, limits, and everything that may die under load."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from di_engine import AsyncLLM, SamplingParams, StreamDelta
from di_engine.errors import CapacityError, EngineStoppedError
from di_engine.llm import async_llm as module
from di_engine.llm.mailbox import joined
from di_engine.testing.counting_engine import CountingEngine

GREEDY = SamplingParams(temperature=0, max_tokens=5)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
TIME_LIMIT_S = 60


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `AsyncLLM` run on a given counting engine."""
    return lambda counting: monkeypatch.setattr(module, "assemble", counting.assemble)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, TIME_LIMIT_S))


async def deltas_of(llm: AsyncLLM, prompt: Any, params: SamplingParams) -> list[StreamDelta]:
    return [delta async for delta in llm.stream(prompt, params)]


def reasons(streams: list[list[StreamDelta]]) -> list[str | None]:
    """How each stream ended; every one ends exactly once, with its last delta."""
    for deltas in streams:
        assert [delta.ends_request for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    return [deltas[-1].finish_reason for deltas in streams]


def test_many_streams_run_side_by_side(use: Any) -> None:
    counting = CountingEngine(overlap=True)
    use(counting)

    async def main() -> None:
        async with AsyncLLM() as llm:
            texts = await asyncio.gather(*(llm.generate(p, GREEDY) for p in ["a", [100], "f"]))
            assert [output.text for output in texts] == ["bcdef", "bcdef", "ghijk"]
            streams = await asyncio.gather(*(deltas_of(llm, "a", GREEDY) for _ in range(20)))
            assert reasons(streams) == ["length"] * 20
            assert {"".join(d.text for d in deltas) for deltas in streams} == {"bcdef"}
            refused = await llm.generate("", GREEDY)
            assert refused.error is not None
            assert llm.num_unfinished == 0

    run(main())
    assert not counting.engine.has_work
    counting.scheduler.check_integrity()


def test_leaving_the_iterator_aborts_the_request(use: Any) -> None:
    counting = CountingEngine(overlap=True)
    use(counting)

    async def main() -> None:
        async with AsyncLLM() as llm:
            async for delta in llm.stream("a", LONG):
                if delta.text:
                    break
            task = asyncio.create_task(llm.generate("a", LONG))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await llm.generate("x", GREEDY)).text == "yz{|}"

    run(main())
    assert counting.scheduler.counters.aborted >= 1
    assert not counting.engine.has_work


def test_a_full_engine_lets_callers_wait_or_refuses(use: Any) -> None:
    use(CountingEngine(overlap=True))

    async def main() -> None:
        async with AsyncLLM(max_unfinished=2) as llm:
            tasks = [asyncio.create_task(llm.generate("a", GREEDY)) for _ in range(6)]
            await asyncio.sleep(0)
            assert llm.is_full
            with pytest.raises(CapacityError, match="`max_unfinished` is 2"):
                await llm.generate("a", GREEDY, waits=False)
            outputs = await asyncio.gather(*tasks)
            assert [output.text for output in outputs] == ["bcdef"] * 6

    run(main())


def test_a_slow_reader_finds_its_deltas_joined(use: Any) -> None:
    use(CountingEngine(overlap=True))

    async def main() -> None:
        async with AsyncLLM() as llm:
            stream = llm.stream("a", GREEDY)
            found = [await anext(stream)]
            while llm._thread.num_unfinished:
                await asyncio.sleep(0.001)
            found += [delta async for delta in stream]
            assert len(found) <= 3
            assert "".join(delta.text for delta in found) == "bcdef"
            assert [i for delta in found for i in delta.token_ids] == [101, 102, 103, 104, 105]

    run(main())


def test_joined_deltas_keep_everything() -> None:
    first = StreamDelta(0, "0", 0, "ab", [1, 2], logprobs=[{}, {}], prompt_logprobs=[None])
    last = StreamDelta(0, "0", 0, "c", [3], logprobs=[{}], finish_reason="stop", ends_request=True)
    both = joined(first, last)
    assert (both.text, both.token_ids, both.finish_reason) == ("abc", [1, 2, 3], "stop")
    assert both.logprobs == [{}, {}, {}]
    assert both.prompt_logprobs == [None]
    assert both.ends_request


def test_shutdown_lets_requests_finish_and_then_refuses(use: Any) -> None:
    counting = CountingEngine(overlap=True)
    use(counting)
    go = slow_down(counting)  # no request ends before all are there

    async def main() -> None:
        llm = AsyncLLM()
        tasks = [asyncio.create_task(deltas_of(llm, "a", GREEDY)) for _ in range(5)]
        while llm._thread.num_unfinished < 5:
            await asyncio.sleep(0)
        go.set()
        await llm.shutdown(grace_s=TIME_LIMIT_S)
        assert reasons(await asyncio.gather(*tasks)) == ["length"] * 5
        with pytest.raises(EngineStoppedError):
            await llm.generate("a", GREEDY)

    run(main())


# --- what may die under load --------------------------------------------------------------------


def slow_down(counting: CountingEngine) -> threading.Event:
    """Keeps the model waiting until the event is set, so that a test can act in between."""
    go = threading.Event()
    original = counting.model.forward

    def forward(batch: Any, cache: object) -> Any:
        assert go.wait(TIME_LIMIT_S)
        return original(batch, cache)

    counting.model.forward = forward  # type: ignore[method-assign]
    return go


def test_an_exception_in_the_model_ends_its_requests_with_a_reason(use: Any) -> None:
    counting = CountingEngine(overlap=True, max_running=4)
    counting.model.fail_on_step = 3
    use(counting)

    async def main() -> None:
        async with AsyncLLM() as llm:
            streams = await asyncio.gather(*(deltas_of(llm, "a", GREEDY) for _ in range(12)))
        ended = reasons(streams)
        failed = [deltas[-1] for deltas in streams if deltas[-1].finish_reason == "error"]
        assert 1 <= len(failed) <= 8
        assert ended.count("length") == 12 - len(failed)
        for delta in failed:
            assert delta.error is not None
            assert delta.error.kind == "model"
            assert "told to fail" in delta.error.message

    run(main())
    counting.scheduler.check_integrity()


def test_an_exhausted_pool_ends_requests_with_the_numbers(use: Any) -> None:
    counting = CountingEngine(
        overlap=True, num_blocks=4, max_model_len=400, preemption="abort", max_running=3
    )
    use(counting)

    async def main() -> None:
        async with AsyncLLM() as llm:
            params = SamplingParams(temperature=0, max_tokens=200)
            streams = await asyncio.gather(*(deltas_of(llm, [50] * 120, params) for _ in range(3)))
        errors = [deltas[-1].error for deltas in streams]
        assert None in errors
        capacity = [error for error in errors if error is not None]
        assert capacity
        assert {error.kind for error in capacity} == {"capacity"}
        assert all("blocks" in error.message for error in capacity)
        reasons(streams)

    run(main())
    counting.scheduler.check_integrity()


def test_a_consumer_whose_loop_died_is_aborted(use: Any) -> None:
    counting = CountingEngine(overlap=True)
    use(counting)
    go = slow_down(counting)
    made: list[Any] = []

    async def main() -> None:
        llm = AsyncLLM()
        made.append((llm, await llm._submit("a", LONG, True)))

    asyncio.run(main())  # the loop is closed, nobody reads the mailbox
    llm, mailbox = made[0]
    go.set()
    llm._thread.stop("end of the test")
    assert llm._thread.join(TIME_LIMIT_S)
    assert mailbox.has_ended
    assert counting.scheduler.counters.aborted == 1
    counting.scheduler.check_integrity()


def test_sigterm_under_load_gives_everyone_a_last_delta(use: Any) -> None:
    counting = CountingEngine(overlap=True, max_running=2)
    use(counting)
    go = slow_down(counting)

    async def main() -> None:
        llm = AsyncLLM()
        llm.shut_down_on(signal.SIGTERM, grace_s=0.0)
        tasks = [asyncio.create_task(deltas_of(llm, "a", LONG)) for _ in range(8)]
        while llm._thread.num_unfinished < 8:
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        go.set()
        streams = await asyncio.gather(*tasks)
        assert reasons(streams) == ["abort"] * 8
        for deltas in streams:
            assert deltas[-1].error is not None
            assert deltas[-1].error.kind == "stopped"
            assert "shut down" in deltas[-1].error.message

    run(main())
    counting.scheduler.check_integrity()


def test_a_broken_engine_thread_ends_every_request(use: Any) -> None:
    counting = CountingEngine(overlap=True)
    use(counting)

    scheduler, real_plan = counting.scheduler, counting.scheduler.plan

    def plan() -> Any:
        if scheduler.num_waiting + scheduler.num_running == 4:
            raise ValueError("a bug")
        return real_plan()

    scheduler.plan = plan  # type: ignore[method-assign]
    threading.excepthook, original = lambda _: None, threading.excepthook

    async def main() -> None:
        llm = AsyncLLM()
        streams = await asyncio.gather(*(deltas_of(llm, "a", LONG) for _ in range(4)))
        assert reasons(streams) == ["error"] * 4
        assert streams[0][-1].error is not None
        assert "a bug" in streams[0][-1].error.message
        with pytest.raises(EngineStoppedError, match="a bug"):
            await llm.generate("a", GREEDY)

    try:
        run(main())
    finally:
        threading.excepthook = original


def test_the_watchdog_names_request_and_phase_of_a_stuck_step(use: Any) -> None:
    # vllm-project/vllm#41125
    counting = CountingEngine(overlap=True)
    counting.engine.timer.clock = time.perf_counter
    use(counting)
    go = slow_down(counting)

    async def main() -> None:
        llm = AsyncLLM(step_timeout_s=0.2)
        (deltas,) = await asyncio.gather(deltas_of(llm, "a", LONG))
        assert reasons([deltas]) == ["error"]
        assert deltas[-1].error is not None
        message = deltas[-1].error.message
        assert "`launch` of step 1 with requests 0" in message
        assert "step_timeout_s" in message
        go.set()
        await llm.shutdown()

    run(main())
    assert not counting.engine.has_work
