"""Requests end to end around a model that counts: one bad request never harms another."""

from typing import Any

import pytest

from di_engine import RequestOutput, SamplingParams, StreamDelta
from di_engine.testing import ByteTokenizer
from di_engine.testing.counting_engine import CountingEngine

A = ord("a") + 3


def run(
    engine: CountingEngine, requests: list[tuple[Any, Any]]
) -> tuple[list[RequestOutput], list[StreamDelta]]:
    """Runs requests to their end, checking what holds for every run."""
    states = [
        engine.requests.submit(prompt, params, index)
        for index, (prompt, params) in enumerate(requests)
    ]
    deltas = []
    while engine.requests.has_unfinished:
        deltas += [delta for _, delta in engine.requests.step()]
        engine.scheduler.check_integrity()
    outputs = [state.output() for state in states]
    assert all(output.finished for output in outputs)
    assert engine.runner.num_requests == 0
    ends = [delta.request_index for delta in deltas if delta.ends_request]
    assert sorted(ends) == [i for i, output in enumerate(outputs) if output.outputs]
    for index, output in enumerate(outputs):
        for completion in output.outputs:
            mine = [d for d in deltas if (d.request_index, d.index) == (index, completion.index)]
            assert "".join(d.text for d in mine) == completion.text
            assert [t for d in mine for t in d.token_ids] == completion.token_ids
            assert [d.finish_reason for d in mine[:-1]] == [None] * (len(mine) - 1)
            assert mine[-1].finish_reason == completion.finish_reason
    return outputs, deltas


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 5} | fields)


def test_text_is_generated_until_max_tokens() -> None:
    ((output,), deltas) = run(CountingEngine(), [("a", greedy())])
    assert output.text == "bcdef"
    assert output.outputs[0].finish_reason == "length"
    assert output.prompt == "a"
    assert output.prompt_token_ids == [0, A]
    assert len(deltas) == 5


def test_priorities_decide_who_starts_and_salts_who_shares() -> None:
    engine = CountingEngine(max_running=1, prefix_cache=True)
    prompt = [50] * 200
    params = [
        greedy(priority=1),
        greedy(cache_salt="b"),
        greedy(priority=-1, cache_salt="a"),
        greedy(priority=2, cache_salt="a"),
    ]
    states = [engine.requests.submit(prompt, one, i) for i, one in enumerate(params)]
    ended: list[int] = []
    while engine.requests.has_unfinished:
        deltas = engine.requests.step()
        ended += [delta.request_index for _, delta in deltas if delta.ends_request]
    assert ended == [2, 1, 0, 3]
    assert [state.metrics.num_cached_tokens for state in states] == [0, 0, 0, 128]


BAD: list[tuple[Any, Any, str]] = [
    ("", None, "the prompt is empty"),
    ([], None, "the prompt is empty"),
    ([259], None, "outside the vocabulary"),
    ([0.5], None, "must be integers"),
    (None, None, "a prompt is text or a list"),
    ("a", {"max_tokens": 0}, "`max_tokens` must be"),
    ("a", {"temprature": 1}, "did you mean `temperature`"),
    ("a", {"temperature": "hot"}, "`temperature` must be"),
    ("a", 7, "got int"),
    ("a", {"logit_bias": {300: 1.0}}, "outside the vocabulary"),
    ("a" * 600, None, "601 tokens, at most 511"),
]


@pytest.mark.parametrize(("prompt", "params", "message"), BAD)
def test_a_bad_request_comes_back_alone_at_its_own_index(
    prompt: Any, params: Any, message: str
) -> None:
    outputs, _ = run(CountingEngine(), [("a", greedy()), (prompt, params), ("x", greedy())])
    assert [output.text for output in outputs] == ["bcdef", "", "yz{|}"]
    error = outputs[1].error
    assert error is not None
    assert error.kind == "invalid_request"
    assert message in error.message
    assert outputs[1].outputs == []


def test_a_prompt_larger_than_the_pool_is_refused_with_the_numbers() -> None:
    engine = CountingEngine(num_blocks=3, max_model_len=512)
    outputs, _ = run(engine, [("a" * 400, greedy()), ("a", greedy())])
    assert outputs[0].error is not None
    assert outputs[0].error.kind == "capacity"
    assert "2" in outputs[0].error.message
    assert outputs[1].text == "bcdef"


def test_nan_logits_fail_only_their_request() -> None:
    engine = CountingEngine(nan_after=[A + 3])
    outputs, _ = run(engine, [("a", greedy()), ("x", greedy())])
    assert outputs[0].outputs[0].text == "bcd"
    assert outputs[0].outputs[0].finish_reason == "error"
    assert outputs[0].error is not None
    assert outputs[0].error.kind == "model"
    assert "NaN" in outputs[0].error.message or "nan" in outputs[0].error.message
    assert outputs[1].text == "yz{|}"
    assert outputs[1].error is None


def test_a_failing_step_ends_its_requests_and_the_engine_lives() -> None:
    engine = CountingEngine()
    engine.model.fail_on_step = 2
    outputs, _ = run(engine, [("a", greedy()), ("x", greedy())])
    for output in outputs:
        assert output.error is not None
        assert "told to fail" in output.error.message
        assert output.outputs[0].finish_reason == "error"
    assert outputs[0].text == "bc"
    outputs, _ = run(engine, [("a", greedy())])
    assert outputs[0].text == "bcdef"


def test_eos_ends_the_text_and_is_not_shown() -> None:
    bias = {ByteTokenizer.eos_token_id: 1000.0}
    outputs, _ = run(
        CountingEngine(),
        [
            ("a", greedy(logit_bias=bias)),
            ("a", greedy(logit_bias=bias, ignore_eos=True, max_tokens=3)),
            ("a", greedy(logit_bias=bias, min_tokens=2)),
        ],
    )
    first = outputs[0].outputs[0]
    assert (first.token_ids, first.text, first.finish_reason) == ([1], "", "stop")
    assert first.stop_reason is None
    assert outputs[1].outputs[0].token_ids == [1, 1, 1]
    assert outputs[1].outputs[0].finish_reason == "length"
    assert outputs[2].outputs[0].token_ids == [A + 1, A + 2, 1]


@pytest.mark.parametrize(("include", "text"), [(False, "b"), (True, "bc")])
def test_a_stop_token_ends_the_text(include: bool, text: str) -> None:
    params = greedy(stop_token_ids=[A + 2], include_stop_str_in_output=include)
    (output,), _ = run(CountingEngine(), [("a", params)])
    completion = output.outputs[0]
    assert completion.token_ids == [A + 1, A + 2]
    assert (completion.text, completion.finish_reason) == (text, "stop")
    assert completion.stop_reason == A + 2


@pytest.mark.parametrize("max_tokens", [4, 5, 20])
def test_a_stop_string_ends_the_text(max_tokens: int) -> None:
    engine = CountingEngine()
    outputs, _ = run(
        engine, [("a", greedy(stop=["zz", "de"], max_tokens=max_tokens)), ("a", greedy())]
    )
    completion = outputs[0].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (
        "bc",
        "stop",
        "de",
    )
    assert len(completion.token_ids) == 4
    assert outputs[1].text == "bcdef"


def test_several_completions_differ_by_seed_and_repeat_exactly() -> None:
    params = SamplingParams(n=3, seed=11, temperature=5.0, max_tokens=6)
    (first,), _ = run(CountingEngine(), [("a", params)])
    texts = [tuple(completion.token_ids) for completion in first.outputs]
    assert len(set(texts)) == 3
    (again, _), _ = run(CountingEngine(), [("a", params), ("b", params)])
    assert [tuple(completion.token_ids) for completion in again.outputs] == texts
    (single,), _ = run(
        CountingEngine(), [("a", SamplingParams(seed=12, temperature=5.0, max_tokens=6))]
    )
    assert tuple(single.outputs[0].token_ids) == texts[1]


def test_unseeded_requests_do_not_share_a_stream() -> None:
    # NVIDIA/TensorRT-LLM#19487
    engine = CountingEngine()
    texts = set()
    for _ in range(20):
        (output,), _ = run(engine, [("a", SamplingParams(temperature=5.0, max_tokens=4))])
        texts.add(tuple(output.outputs[0].token_ids))
    assert len(texts) > 15


def test_the_seed_is_honoured_whatever_ran_before() -> None:
    # NVIDIA/TensorRT-LLM PR#17599
    params = SamplingParams(temperature=5.0, max_tokens=8, seed=2**64 - 1)
    engine = CountingEngine()
    (first,), _ = run(engine, [("a", params)])
    run(engine, [(chr(97 + i), SamplingParams(max_tokens=9)) for i in range(12)])
    (later, twin), _ = run(engine, [("a", params), ("a", params)])
    assert first.outputs[0].token_ids == later.outputs[0].token_ids
    assert first.outputs[0].token_ids == twin.outputs[0].token_ids


def test_logprobs_name_the_token_first() -> None:
    params = greedy(logprobs=2, max_tokens=2, banned_token_ids=[A + 1])
    (output,), _ = run(CountingEngine(), [("a", params)])
    completion = output.outputs[0]
    assert completion.token_ids == [A + 2, A + 3]
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    assert list(first) == [A + 2, A + 1]
    assert first[A + 2].decoded_token == "c"
    assert [entry.rank for entry in first.values()] == [2, 1]
    assert first[A + 1].logprob - first[A + 2].logprob == pytest.approx(1.0, abs=1e-5)
    assert completion.cumulative_logprob == pytest.approx(
        sum(
            entry[token].logprob
            for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)
        )
    )


def test_processed_and_raw_logprobs_live_in_one_batch() -> None:
    fields = {"max_tokens": 1, "logprobs": 1, "banned_token_ids": [A + 1]}
    outputs, _ = run(
        CountingEngine(),
        [
            ("a", greedy(logprobs_mode="processed", **fields)),
            ("a", greedy(logprobs_mode="raw", **fields)),
            ("a", greedy(max_tokens=1)),
        ],
    )
    processed = outputs[0].outputs[0].logprobs
    raw = outputs[1].outputs[0].logprobs
    assert processed is not None
    assert raw is not None
    assert list(processed[0]) == [A + 2]
    assert list(raw[0]) == [A + 2, A + 1]
    assert outputs[2].outputs[0].logprobs is None


@pytest.mark.parametrize("max_tokens_per_step", [8, 64])
def test_prompt_logprobs_do_not_depend_on_chunks(max_tokens_per_step: int) -> None:
    engine = CountingEngine(max_tokens_per_step=max_tokens_per_step)
    (output,), deltas = run(engine, [("abcdefghijklmnopqrstuvwxyz", greedy(prompt_logprobs=1))])
    entries = output.prompt_logprobs
    assert entries is not None
    assert entries[0] is None
    assert len(entries) == len(output.prompt_token_ids) == 27
    for token_id, entry in zip(output.prompt_token_ids[2:], entries[2:], strict=True):
        assert entry is not None
        assert entry[token_id].rank == 1
    assert [delta.prompt_logprobs is not None for delta in deltas] == [True] + [False] * 4


def test_preemption_changes_nothing() -> None:
    params = greedy(max_tokens=140, prompt_logprobs=0, logprobs=0)
    requests = [(chr(97 + i) * 100, params) for i in range(4)]
    small = CountingEngine(num_blocks=6, max_tokens_per_step=256)
    large = CountingEngine(num_blocks=64, max_tokens_per_step=256)
    assert run(small, requests)[0] == run(large, requests)[0]
    assert len(small.model.batches) > len(large.model.batches)


def test_many_requests_in_turn_all_finish() -> None:
    # vllm-project/vllm#40969: a hang after about six requests with chunked prefill.
    engine = CountingEngine(num_blocks=8, max_running=2, max_tokens_per_step=48)
    for number in range(200):
        prompt = chr(97 + number % 20) * (1 + 37 * number % 150)
        (output,), _ = run(engine, [(prompt, greedy(max_tokens=1 + number % 3))])
        assert len(output.outputs[0].token_ids) == 1 + number % 3


def test_abort_ends_a_request_with_what_it_has() -> None:
    engine = CountingEngine()
    states = [engine.requests.submit("a", greedy(max_tokens=50, n=2), 0)]
    states.append(engine.requests.submit("x", greedy(), 1))
    for _ in range(3):
        engine.requests.step()
    engine.requests.abort(states[:1])
    while engine.requests.has_unfinished:
        engine.requests.step()
    output = states[0].output()
    assert [completion.finish_reason for completion in output.outputs] == ["abort", "abort"]
    assert output.outputs[0].text.startswith("bcd")
    assert output.error is None
    assert states[1].output().text == "yz{|}"
    engine.scheduler.check_integrity()


def test_times_come_from_the_clock() -> None:
    ticks = iter(range(1000))
    engine = CountingEngine(clock=lambda: float(next(ticks)))
    (output,), _ = run(engine, [("a", greedy())])
    metrics = output.metrics
    assert metrics.first_token_s is not None
    assert metrics.finished_s is not None
    assert metrics.arrival_s < metrics.first_token_s < metrics.finished_s
