"""Overlapped and synchronous stepping give the same tokens, whatever comes together."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from di_engine import EngineConfig
from di_engine.core.assembly import assemble
from di_engine.core.engine import Engine
from di_engine.runner.request import EngineRequest, LogprobsSpec
from di_engine.testing.counting_engine import CountingEngine
from di_engine.testing.request_mix import Arrival, Received, run_mix
from di_spec.sampling import SamplingParams


def compare(mix: list[Arrival], one: dict[str, Received], other: dict[str, Received]) -> None:
    for arrival in mix:
        request_id = arrival.request.request_id
        first, second = one[request_id], other[request_id]
        if arrival.abort_at is None:
            assert first == second
        else:
            shared = min(len(first.token_ids), len(second.token_ids))
            assert first.token_ids[:shared] == second.token_ids[:shared]


PREFIXES = [[10 + i % 240 for i in range(300)], [7] * 200, [5, 6] * 80]
"""Beginnings that requests of a mix may share: more than two blocks, one, one."""


@st.composite
def mixes(
    draw: st.DrawFn, *, vocab_size: int, max_requests: int, most_tokens: int
) -> list[Arrival]:
    mix = []
    for number in range(draw(st.integers(1, max_requests))):
        prefix = draw(st.sampled_from([[], *PREFIXES]))
        length = draw(st.integers(0, len(prefix)))
        tail = draw(st.lists(st.integers(3, vocab_size - 1), min_size=1, max_size=6))
        max_tokens = draw(st.integers(1, most_tokens))
        is_greedy = draw(st.booleans())
        sampling = SamplingParams(
            temperature=0.0 if is_greedy else draw(st.sampled_from([0.7, 1.0, 3.0])),
            top_k=draw(st.sampled_from([-1, 5])),
            top_p=draw(st.sampled_from([1.0, 0.9])),
            repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
            seed=number,
        )
        num_logprobs = draw(st.sampled_from([None, None, 0, 2]))
        request = EngineRequest(
            request_id=f"r{number}",
            prompt_ids=np.array(prefix[:length] + tail, np.int32),
            sampling=sampling,
            max_tokens=max_tokens,
            stop_token_ids=tuple(draw(st.lists(st.integers(0, vocab_size - 1), max_size=20))),
            ignore_eos=draw(st.booleans()),
            logprobs=LogprobsSpec(
                num_logprobs,
                draw(st.sampled_from([None, None, None, 1])),
                draw(st.sampled_from(["raw", "processed"])),
            ),
        )
        at_step = draw(st.integers(0, 12))
        abort_at = draw(st.one_of(st.none(), st.none(), st.integers(at_step, at_step + 10)))
        mix.append(Arrival(request, at_step, abort_at))
    return mix


@settings(max_examples=25, deadline=None)
@given(
    mix=mixes(vocab_size=259, max_requests=8, most_tokens=40),
    num_blocks=st.sampled_from([7, 64]),
    max_running=st.sampled_from([2, 8]),
    policy=st.sampled_from(["mixed", "prefill_first", "decode_first"]),
    prefix_cache=st.booleans(),
)
def test_a_counting_model_counts_the_same(
    mix: list[Arrival], num_blocks: int, max_running: int, policy: str, prefix_cache: bool
) -> None:
    results = []
    for overlap in (False, True):
        counting = CountingEngine(
            overlap=overlap,
            num_blocks=num_blocks,
            max_running=max_running,
            policy=policy,
            prefix_cache=prefix_cache,
        )
        results.append(run_mix(counting.engine, mix))
        assert counting.runner.num_requests == 0
    compare(mix, *results)


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    """The built-in checkpoint, synchronous and overlapped; few blocks, so that some are preempted.

    Both live through all examples, so that later ones meet a used cache.
    """
    made = []
    for overlap in (False, True):
        config = EngineConfig.from_flat(
            model="tiny",
            arithmetic="float32",
            deterministic=True,
            overlap=overlap,
            max_running=4,
            max_model_len=512,
            max_tokens_per_step=128,
            num_blocks=9,
            snapshot_slots=3,
            device="cpu",
        )
        made.append(assemble(config).engine)
    return made[0], made[1]


@pytest.mark.slow
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mix=mixes(vocab_size=3840, max_requests=4, most_tokens=6))
def test_the_model_says_the_same(engines: tuple[Engine, Engine], mix: list[Arrival]) -> None:
    synchronous, overlapped = engines
    compare(mix, run_mix(synchronous, mix), run_mix(overlapped, mix))


SAMPLED = [
    SamplingParams(temperature=0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7, top_p=0.9),
    SamplingParams(seed=3, top_k=5, min_p=0.05),
    SamplingParams(seed=4, repetition_penalty=1.2, presence_penalty=0.1, logit_bias={5: 2.0}),
]
WANTED = [LogprobsSpec(), LogprobsSpec(2), LogprobsSpec(2, None, "processed"), LogprobsSpec(0, 1)]


def sampled_mix(length: int) -> list[Arrival]:
    """Every way through the sampler, prompts of several chunks, hits and decode rows together."""
    prompt = np.random.default_rng(1).integers(3, 250, length).astype(np.int32)
    mix = []
    for number, sampling in enumerate(SAMPLED):
        ids = np.append(prompt[: length - 7 * number], np.int32(3 + number))
        wanted = WANTED[number % len(WANTED)]
        request = EngineRequest(f"r{number}", ids, sampling, 3, ignore_eos=True, logprobs=wanted)
        mix.append(Arrival(request, 2 * number))
    return mix


def test_sampling_waits_for_nothing() -> None:
    guarded = CountingEngine(overlap=True, forbids_syncs=True)
    plain = CountingEngine()
    mix = sampled_mix(90)
    compare(mix, run_mix(guarded.engine, mix), run_mix(plain.engine, mix))


@pytest.mark.slow
def test_the_model_waits_for_nothing() -> None:
    config = EngineConfig.from_flat(
        model="tiny",
        overlap=True,
        max_running=8,
        max_model_len=512,
        max_tokens_per_step=64,
        snapshot_slots=3,
        forbid_host_syncs=True,
        device="cpu",
    )
    received = run_mix(assemble(config).engine, sampled_mix(40))
    assert {got.reason for got in received.values()} == {"length"}


def test_a_step_is_launched_before_the_one_before_it_is_read() -> None:
    counting = CountingEngine(overlap=True)
    request = EngineRequest("r", np.array([10], np.int32), SamplingParams(temperature=0), 3)
    counting.engine.add(request)
    assert counting.engine.step() == []
    assert [e.token_ids for e in counting.engine.step()] == [[11]]
    # The second step ran on a token that the host had not seen.
    assert [b.token_ids.tolist() for b in counting.model.batches] == [[10], [11]]
    assert [e.token_ids for e in counting.engine.step()] == [[12]]
    # A step more would be in vain: the third token is on its way.
    assert [(e.token_ids, e.finish_reason) for e in counting.engine.step()] == [([13], "length")]
    assert len(counting.model.batches) == 3


@pytest.mark.parametrize("fail_on_step", [0, 1, 2, 5])
def test_a_failed_step_takes_nobody_else_with_it(fail_on_step: int) -> None:
    counting = CountingEngine(overlap=True, max_running=2)
    counting.model.fail_on_step = fail_on_step
    mix = [
        Arrival(EngineRequest(f"r{i}", np.array([10 * i + 3], np.int32), GREEDY, 6), 0)
        for i in range(5)
    ]
    received = run_mix(counting.engine, mix)
    reasons = [got.reason for got in received.values()]
    assert reasons.count("error") == 2
    assert reasons.count("length") == 3
    for number, got in enumerate(received.values()):
        first = 10 * number + 4
        assert got.token_ids == list(range(first, first + len(got.token_ids)))
    assert counting.runner.num_requests == 0


GREEDY = SamplingParams(temperature=0)


def test_a_failure_while_sampling_or_waiting_ends_the_open_steps() -> None:
    for broken in ("sample", "collect"):
        counting = CountingEngine(overlap=True)
        counting.engine.add(EngineRequest("r", np.array([10], np.int32), GREEDY, 9))
        counting.engine.step()
        original = getattr(counting.runner, broken)

        def fail(*_: object) -> None:
            raise RuntimeError("told to fail")

        setattr(counting.runner, broken, fail)
        events = counting.engine.step()
        assert [e.finish_reason for e in events][-1] == "error"
        assert "told to fail" in events[-1].message
        setattr(counting.runner, broken, original)
        assert not counting.engine.has_work
        counting.scheduler.check_integrity()
        counting.engine.add(EngineRequest("r", np.array([10], np.int32), GREEDY, 2))
        (got,) = run_to_end(counting.engine).values()
        assert got == [11, 12]


def run_to_end(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens


def test_an_id_may_be_used_again_while_its_last_step_is_in_flight() -> None:
    counting = CountingEngine(overlap=True)
    engine = counting.engine
    engine.add(EngineRequest("r", np.array([10], np.int32), GREEDY, 9, stop_token_ids=(12,)))
    reasons: list[str | None] = []
    while "stop" not in reasons:
        reasons += [event.finish_reason for event in engine.step()]
    # Its zombie row is in flight; the same name starts over with another prompt.
    assert engine.has_work
    engine.add(EngineRequest("r", np.array([50], np.int32), GREEDY, 3))
    assert run_to_end(engine) == {"r": [51, 52, 53]}
