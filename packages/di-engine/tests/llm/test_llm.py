"""`LLM` around a model that counts: batches, streams, interruption, closing."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from di_engine import LLM, EngineConfig, SamplingParams
from di_engine.errors import ConfigError, EngineStoppedError, InvalidRequestError
from di_engine.llm import llm as llm_module
from di_engine.testing.counting_engine import CountingEngine


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    engine = CountingEngine()
    monkeypatch.setattr(llm_module, "assemble", engine.assemble)
    return engine


@pytest.fixture
def llm(counting: CountingEngine) -> Iterator[LLM]:
    with LLM(model="anything") as made:
        yield made
    counting.scheduler.check_integrity()
    assert counting.runner.num_requests == 0


GREEDY = SamplingParams(temperature=0, max_tokens=5)


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (7, 1, 3)]
    outputs = llm.generate(["a", [100], {"prompt": "x"}], params)
    assert [output.text for output in outputs] == ["bcdefgh", "b", "yz{"]


def test_one_prompt_gives_a_list_of_one(llm: LLM) -> None:
    assert [output.text for output in llm.generate("a", GREEDY)] == ["bcdef"]
    assert [output.text for output in llm.generate([100], GREEDY)] == ["bcdef"]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert list(llm.stream([])) == []


def test_defaults_apply_without_parameters(llm: LLM) -> None:
    (output,) = llm.generate("a")
    assert len(output.outputs[0].token_ids) <= 16


def test_one_wrong_member_fails_alone(llm: LLM) -> None:
    outputs = llm.generate(["a", "", 5], [GREEDY, GREEDY, {"max_tokens": 2}])
    assert [output.error is None for output in outputs] == [True, False, False]
    assert outputs[0].text == "bcdef"


def test_the_number_of_parameters_must_fit(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="got 1 for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])


def test_progress_is_told_after_every_step(llm: LLM) -> None:
    calls: list[tuple[int, int, int]] = []
    llm.generate(["a", "b"], GREEDY, progress=lambda *numbers: calls.append(numbers))
    assert calls[-1] == (2, 2, 10)
    assert calls == sorted(calls)


def test_a_stream_adds_up_to_the_output(llm: LLM) -> None:
    deltas = list(llm.stream(["a", ""], GREEDY))
    assert "".join(d.text for d in deltas if d.request_index == 0) == "bcdef"
    refusals = [d for d in deltas if d.request_index == 1]
    assert [d.finish_reason for d in refusals] == ["error"]
    assert refusals[0].error is not None


def test_streams_may_be_read_in_turns(llm: LLM) -> None:
    first, second = llm.stream("a", GREEDY), llm.stream("x", GREEDY)
    texts = ["", ""]
    for one, other in zip(first, second, strict=True):
        texts[0] += one.text
        texts[1] += other.text
    assert texts == ["bcdef", "yz{|}"]


def test_leaving_a_stream_aborts_its_requests(llm: LLM, counting: CountingEngine) -> None:
    stream = llm.stream("a", SamplingParams(temperature=0, max_tokens=400))
    assert next(stream).text == "b"
    stream.close()  # type: ignore[attr-defined]
    (output,) = llm.generate("x", GREEDY)
    assert output.text == "yz{|}"
    assert len(counting.model.batches) < 20


def test_interrupt_ends_every_request_with_an_output(llm: LLM) -> None:
    def stop_early(finished: int, total: int, num_tokens: int) -> None:
        if num_tokens >= 6:
            llm.interrupt()

    outputs = llm.generate(
        ["a", "x"], SamplingParams(temperature=0, max_tokens=400), progress=stop_early
    )
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "abort"]
    assert outputs[0].text.startswith("bcd")


def test_ctrl_c_ends_the_requests_and_is_passed_on(llm: LLM, counting: CountingEngine) -> None:
    original = counting.model.forward

    def forward(batch: Any, cache: object) -> Any:
        if len(counting.model.batches) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(batch, cache)

    counting.model.forward = forward  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        llm.generate("a", SamplingParams(temperature=0, max_tokens=400))
    assert not counting.engine.has_work
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (output,) = llm.generate("x", GREEDY)
    assert output.text == "yz{|}"


def test_a_closed_llm_says_so(counting: CountingEngine) -> None:
    llm = LLM(model="anything")
    stream = llm.stream("a", GREEDY)
    next(stream)
    llm.close()
    llm.close()
    assert not counting.engine.has_work
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate("a")


def test_the_environment_comes_after_arguments(
    counting: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_SCHEDULER__MAX_RUNNING", "5")
    monkeypatch.setenv("DI_DETERMINISTIC", "true")
    config = LLM(model="anything", max_running=4).config
    assert (config.scheduler.max_running, config.deterministic) == (4, True)
    assert LLM().config.scheduler.max_running == 5


def test_a_whole_configuration_or_its_fields_but_not_both(counting: CountingEngine) -> None:
    config = EngineConfig.from_flat(model="anything", max_running=3)
    assert LLM(config).config.scheduler.max_running == 3
    assert LLM(model="anything", max_running=4).config.scheduler.max_running == 4
    with pytest.raises(ConfigError, match="`max_running`"):
        LLM(config, max_running=4)
    with pytest.raises(ConfigError, match="max_runing"):
        LLM(model="anything", max_runing=4)
