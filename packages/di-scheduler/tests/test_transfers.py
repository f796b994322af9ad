"""Prefill and decode ranks, and loads from a store, against fake memory that must add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from di_scheduler import ConfigError, InvalidRequestError, Request, Scheduler, SchedulerConfig
from di_scheduler.testing import (
    FakeConnector,
    FakeDevice,
    FakeEngine,
    FakeModel,
    FakeStore,
    expected_output,
)

MODEL = FakeModel(vocab_size=40, seed=3)


def make_engine(store, role="both", overlapped=False, connector=None, **fields):
    defaults = {
        "max_model_len": 80,
        "num_blocks": 60,
        "max_running": 3,
        "max_tokens_per_step": 24,
        "block_size": 8,
        "num_draft_tokens": 2,
        "eos_token_ids": (1,),
        "prefix_cache": True,
        "window_size": 4,
        "num_window_layers": 2,
        "ring_slack": 6,
        "role": role,
        "preemption": "abort" if role == "decode" else "recompute",
    }
    config = SchedulerConfig(**{**defaults, **fields})
    device = FakeDevice(config, MODEL)
    link = FakeConnector(store, device, **(connector or {}))
    scheduler = Scheduler(config, connector=link)
    return FakeEngine(scheduler, device, overlapped)


def prompts(count=6, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.integers(2, 40, 40).tolist()
    return [[*shared[: rng.integers(1, 40)], 2 + i] for i in range(count)]


def assert_empty(engine):
    engine.scheduler.check_integrity()
    stats = engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


@pytest.mark.parametrize("overlapped", [False, True])
def test_prefill_rank_hands_over_and_decode_rank_finishes(overlapped):
    store = FakeStore()
    prefill, decode = (make_engine(store, role, overlapped) for role in ("prefill", "decode"))
    requests = [Request(f"r{i}", p, max_tokens=9) for i, p in enumerate(prompts())]
    for request in requests:
        prefill.add(request)
    prefill.run()
    assert set(prefill.reasons.values()) <= {"prefilled", "stop"}
    for request in requests:
        if prefill.reasons[request.request_id] == "prefilled":
            first = prefill.outputs[request.request_id]
            decode.add(
                Request(request.request_id, request.prompt_ids, max_tokens=9, output_ids=first)
            )
    decode.run()
    for request in requests:
        name = request.request_id
        whole = prefill.outputs[name] + decode.outputs.get(name, [])
        expected, reason = expected_output(MODEL, request, prefill.scheduler.config)
        assert whole == expected
        assert {**prefill.reasons, **decode.reasons}[name] == reason
    assert_empty(prefill)
    assert_empty(decode)


def test_decode_rank_never_computes_a_prompt_row():
    store = FakeStore()
    prefill, decode = make_engine(store, "prefill"), make_engine(store, "decode")
    prefill.add(Request("r", prompts(1)[0], max_tokens=9))
    prefill.run()
    decode.add(Request("r", prompts(1)[0], max_tokens=9, output_ids=prefill.outputs["r"]))
    while decode.scheduler.has_unfinished:
        plan = decode.step()
        assert plan is None or not plan.is_prompt.any()


def test_decode_rank_refuses_a_request_without_output_and_ends_one_without_state():
    decode = make_engine(FakeStore(), "decode")
    with pytest.raises(InvalidRequestError, match="`output_ids`"):
        decode.add(Request("r", [2, 3]))
    decode.add(Request("s", [2, 3], output_ids=[4]))
    decode.run()
    assert decode.reasons == {"s": "error"}
    assert "no store holds the state after 2 tokens" in decode.messages["s"]
    assert_empty(decode)


def test_roles_need_a_connector():
    config = SchedulerConfig(max_model_len=9, num_blocks=9, role="prefill")
    with pytest.raises(ConfigError, match="`role` = prefill needs a connector"):
        Scheduler(config)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_external_hit_shortens_the_prompt_and_a_failed_load_costs_only_time(with_state, fails):
    store = FakeStore()
    prefill = make_engine(store, "prefill")
    prefill.add(Request("p", list(range(2, 34)), max_tokens=2))
    prefill.run()
    options = {"with_state": with_state, "fails": ["r"] if fails else []}
    engine = make_engine(store, connector=options)
    request = Request("r", [*range(2, 34), 7, 8, 9], max_tokens=12)
    engine.add(request)
    engine.run()
    assert engine.outputs["r"] == expected_output(MODEL, request, engine.scheduler.config)[0]
    computed = engine.scheduler.counters.prompt_tokens
    replay = 0 if with_state else engine.scheduler.config.replay_tokens
    assert computed == (35 if fails else 3 + replay)
    assert engine.scheduler.counters.external_hits == (0 if fails else 32)
    assert_empty(engine)


def test_failed_load_ends_a_request_of_a_decode_rank():
    store = FakeStore()
    prefill = make_engine(store, "prefill")
    prefill.add(Request("r", [2, 3, 4], max_tokens=9))
    prefill.run()
    decode = make_engine(store, "decode", connector={"fails": ["r"]})
    decode.add(Request("r", [2, 3, 4], max_tokens=9, output_ids=prefill.outputs["r"]))
    decode.run()
    assert decode.reasons == {"r": "error"}
    assert "transfer failed" in decode.messages["r"]
    assert_empty(decode)


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_abort_keeps_slot_and_blocks_until_the_transfer_has_ended(role, turns):
    store = FakeStore()
    prefill = make_engine(store, "prefill", connector={"delay": 3})
    engine = prefill
    prefill.add(Request("r", list(range(2, 30)), max_tokens=9))
    if role == "decode":
        prefill.run()
        engine = make_engine(store, "decode", connector={"delay": 3})
        first = prefill.outputs["r"]
        engine.add(Request("r", list(range(2, 30)), max_tokens=9, output_ids=first))
    for _ in range(turns):
        engine.step()
        engine.scheduler.check_integrity()
    engine.scheduler.abort("r")
    engine.run()
    assert list(engine.reasons) == ["r"]
    assert_empty(engine)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_mix_of_hand_overs_and_aborts_gives_the_tokens_of_one_rank(data):
    store = FakeStore()
    overlapped = data.draw(st.booleans())
    link = {"delay": data.draw(st.integers(0, 4))}
    num_blocks = data.draw(st.sampled_from([14, 60]))
    ranks = {
        role: make_engine(store, role, overlapped, link, num_blocks=num_blocks)
        for role in ("prefill", "decode")
    }
    requests = [Request(f"r{i}", p, max_tokens=9) for i, p in enumerate(prompts(5, seed=4))]
    aborts = data.draw(
        st.lists(st.tuples(st.sampled_from([*ranks]), st.integers(0, 4), st.integers(0, 40)))
    )
    handed = set()
    for request in requests:
        ranks["prefill"].add(request)
    for turn in range(400):
        for role, number, when in aborts:
            if when == turn:
                ranks[role].scheduler.abort(f"r{number}")
        for engine in ranks.values():
            engine.step()
            engine.scheduler.check_integrity()
        for request in requests:
            name = request.request_id
            if name not in handed and ranks["prefill"].reasons.get(name) == "prefilled":
                handed.add(name)
                first = ranks["prefill"].outputs[name]
                ranks["decode"].add(
                    Request(name, request.prompt_ids, max_tokens=9, output_ids=first)
                )
        if not any(engine.scheduler.has_unfinished for engine in ranks.values()):
            break
    for engine in ranks.values():
        assert_empty(engine)
    for request in requests:
        name = request.request_id
        reason = ranks["prefill"].reasons[name]
        reason = ranks["decode"].reasons[name] if reason == "prefilled" else reason
        whole = ranks["prefill"].outputs[name] + ranks["decode"].outputs.get(name, [])
        expected, expected_reason = expected_output(
            MODEL, request, ranks["decode"].scheduler.config
        )
        if reason in ("abort", "insufficient_system_resource"):
            assert whole == expected[: len(whole)]
        else:
            assert (whole, reason) == (expected, expected_reason)
