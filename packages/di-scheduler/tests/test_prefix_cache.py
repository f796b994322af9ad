"""Hits of every length against a fake device that spoils whatever was computed inexactly."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from di_scheduler import Request, Scheduler, SchedulerConfig
from di_scheduler.testing import FakeDevice, FakeEngine, FakeModel, expected_output

MODEL = FakeModel(vocab_size=40, seed=11, draft_error=0.2)
BLOCK = 8
REPLAY = 12  # (5 - 1) * 3
FIELDS = [field.name for field in dataclasses.fields(SchedulerConfig)]


def make_engine(overlapped=False, **fields):
    defaults = {
        "max_model_len": 200,
        "num_blocks": 100,
        "max_running": 4,
        "max_tokens_per_step": 32,
        "block_size": BLOCK,
        "num_draft_tokens": 2,
        "prefix_cache": True,
        "window_size": 5,
        "num_window_layers": 3,
        "ring_slack": 6,
    }
    config = SchedulerConfig(**{**defaults, **fields})
    scheduler = Scheduler(config)
    return FakeEngine(scheduler, FakeDevice(config, MODEL), overlapped)


def run(engine, name, prompt, max_tokens=6):
    """Runs one request to its end, checks its tokens and returns the prompt rows it cost."""
    request = Request(name, prompt, max_tokens=max_tokens)
    before = engine.scheduler.counters.prompt_tokens
    engine.add(request)
    engine.run()
    engine.scheduler.check_integrity()
    expected, _ = expected_output(MODEL, request, engine.scheduler.config)
    assert engine.outputs[name] == expected, f"{name}: {len(prompt)} prompt tokens"
    return engine.scheduler.counters.prompt_tokens - before


PROMPT = np.random.default_rng(1).integers(2, 40, 64).tolist()
SNAPSHOTS = {"num_snapshot_slots": 20, "snapshot_min_gain": BLOCK}
KEPT = {"keep_tokens": 9}


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    "windows", [{"num_window_layers": 0}, {}, SNAPSHOTS, KEPT, KEPT | SNAPSHOTS]
)
def test_warm_equals_cold_for_every_hit_length(overlapped, windows):
    for hit in range(len(PROMPT) + 1):
        engine = make_engine(overlapped, **windows)
        run(engine, "cold", [*PROMPT[:hit], 0], max_tokens=1)
        run(engine, "warm", PROMPT)
        run(engine, "again", PROMPT)


@pytest.mark.parametrize(
    ("length", "computed"),
    [
        (40, REPLAY + 1),  # whole prompt of full blocks: the last token is computed again
        (41, REPLAY + 1),  # exactly one uncached token (vllm-project/vllm-ascend#13980)
        (47, REPLAY + 7),
        (48, REPLAY + 1),
    ],
)
def test_exact_replay_computes_window_less_one_per_layer_and_the_rest(length, computed):
    engine = make_engine()
    assert run(engine, "cold", PROMPT[:length], max_tokens=1) == length
    assert run(engine, "warm", PROMPT[:length]) == computed
    assert engine.views[-1].num_cached_tokens == length - computed


class OneTokenShort(SchedulerConfig):
    """A configuration that replays one token too few."""

    @property
    def replay_tokens(self):
        return REPLAY - 1


def test_replay_of_one_token_less_is_not_exact():
    engine = make_engine()
    fields = {name: getattr(engine.scheduler.config, name) for name in FIELDS}
    short = FakeEngine(Scheduler(OneTokenShort(**fields)), engine.device)
    run(short, "cold", PROMPT[:41], max_tokens=1)
    with pytest.raises(AssertionError, match="warm"):
        run(short, "warm", PROMPT[:41])


def test_approximate_replay_is_shorter_and_not_exact():
    engine = make_engine(replay="approximate")
    run(engine, "cold", PROMPT[:41], max_tokens=1)
    with pytest.raises(AssertionError, match="warm"):
        run(engine, "warm", PROMPT[:41])
    assert engine.scheduler.counters.replayed_tokens == 5


def test_short_hit_shares_blocks_and_recomputes_everything():
    engine = make_engine()
    run(engine, "cold", PROMPT[:9], max_tokens=1)
    assert run(engine, "warm", PROMPT[:10]) == 10
    assert engine.scheduler.counters.cache_hits == 8


def test_restored_snapshot_spares_the_replay():
    engine = make_engine(**SNAPSHOTS)
    run(engine, "cold", PROMPT[:45], max_tokens=1)
    assert engine.scheduler.counters.snapshot_saves == 1
    assert run(engine, "warm", PROMPT[:45]) == 5
    assert engine.scheduler.counters.snapshot_restores == 1


def test_kept_rows_are_computed_whatever_is_cached():
    engine = make_engine(**KEPT, **SNAPSHOTS)
    run(engine, "cold", PROMPT[:45], max_tokens=1)
    # The ring saved at 40 comes too late for the same prompt, whose kept rows begin at 36.
    assert run(engine, "same", PROMPT[:45]) == 45 - 36 + REPLAY
    assert engine.scheduler.counters.snapshot_restores == 0
    assert run(engine, "longer", PROMPT[:60]) == 60 - 40
    assert engine.scheduler.counters.snapshot_restores == 1


def test_a_request_that_needs_all_rows_reads_no_cache_and_is_not_cut():
    engine = make_engine(**KEPT)
    run(engine, "cold", PROMPT[:45], max_tokens=1)
    engine.add(Request("rows", PROMPT[:45], max_tokens=1, needs_all_rows=True))
    plan = engine.step()
    assert plan.query_lens.tolist() == [32]
    assert plan.late_starts.tolist() == [0]
    engine.run()


def test_plans_say_where_the_kept_rows_begin():
    engine = make_engine(**KEPT)
    engine.add(Request("long", PROMPT[:45], max_tokens=2))
    engine.add(Request("short", PROMPT[10:19], max_tokens=2))
    starts = {}
    while engine.scheduler.has_unfinished:
        plan = engine.step()
        if plan is not None:
            for name, start, is_prompt in zip(
                plan.request_ids, plan.late_starts.tolist(), plan.is_prompt, strict=True
            ):
                starts.setdefault((name, bool(is_prompt)), set()).add(start)
    assert starts == {
        ("long", True): {36},
        ("long", False): {0},
        ("short", True): {0},
        ("short", False): {0},
    }


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("aborts", [False, True])
def test_siblings_wait_for_the_ring_that_one_of_them_saves(overlapped, aborts):
    engine = make_engine(overlapped, max_tokens_per_step=16, **SNAPSHOTS)
    run(engine, "first", PROMPT[:60], max_tokens=1)
    counters = engine.scheduler.counters
    requests = [Request(f"r{i}", [*PROMPT[:40], 4 + i, 5], max_tokens=3) for i in range(3)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert engine.scheduler.num_running == 1
    if aborts:
        engine.scheduler.abort("r0")
    engine.run()
    for request in requests[aborts:]:
        assert (
            engine.outputs[request.request_id]
            == (expected_output(MODEL, request, engine.scheduler.config)[0])
        )
    replays = 2 if aborts else 1
    # One token more: the ring may serve a prompt that ends at the boundary.
    assert counters.replayed_tokens == replays * (REPLAY + 1)
    assert counters.snapshot_restores == 2 - aborts
    engine.scheduler.check_integrity()


def test_turn_continues_from_the_ring_saved_while_decoding():
    engine = make_engine(**SNAPSHOTS)
    run(engine, "turn1", PROMPT[:20], max_tokens=40)
    history = PROMPT[:20] + engine.outputs["turn1"]
    assert len(history) == 60
    # 59 positions have keys, 7 full blocks; the boundary at 56 was crossed and saved.
    assert run(engine, "turn2", [*history, 5, 6]) == 62 - 56


def test_snapshot_of_a_chunk_that_never_counted_is_dropped():
    engine = make_engine(overlapped=True, **SNAPSHOTS)
    engine.add(Request("r", PROMPT[:45]))
    engine.step()
    engine.step()
    plan = engine.step()
    assert plan.saves.positions.tolist() == [40]
    engine.scheduler.abort("r")
    engine.run()
    engine.scheduler._core.pool.forget_cached()
    assert engine.scheduler.stats().snapshots_cached == 0


def test_second_comer_makes_the_branch_point_restorable():
    engine = make_engine(**SNAPSHOTS)
    system = PROMPT[:48]
    run(engine, "a", [*system, *range(20, 33)], max_tokens=1)
    assert run(engine, "b", [*system, *range(2, 17)], max_tokens=1) == REPLAY + 1 + 15
    assert run(engine, "c", [*system, 3, 3, 3], max_tokens=1) == 3


def test_fifty_diverging_suffixes_return_everything():  # ggml-org/llama.cpp#25452
    engine = make_engine(num_blocks=24, **SNAPSHOTS)
    for number in range(50):
        run(engine, str(number), PROMPT[:40] + [2 + number % 30, 2 + number // 30] * 3)
    stats = engine.scheduler.stats()
    assert stats.blocks_used == 0
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


def test_four_identical_prompts_answer_the_same():
    engine = make_engine(**SNAPSHOTS)
    for number in range(4):
        run(engine, str(number), PROMPT[:45])


def test_reuse_after_eviction_is_cold_and_right():
    engine = make_engine(num_blocks=12, **SNAPSHOTS)
    run(engine, "first", PROMPT[:40])
    run(engine, "other", list(reversed(PROMPT[:64])), max_tokens=20)
    assert run(engine, "again", PROMPT[:40]) == 40


@pytest.mark.parametrize("past", range(1, BLOCK))
def test_hit_after_a_prefill_that_ended_a_little_past_a_block(past):  # vllm-project/vllm#55766
    engine = make_engine(**SNAPSHOTS)
    run(engine, "cold", PROMPT[: 40 + past], max_tokens=3)
    run(engine, "warm", PROMPT[:60])


def test_other_salt_and_other_seed_do_not_match():
    engine = make_engine()
    run(engine, "cold", PROMPT)
    engine.add(Request("salted", PROMPT, max_tokens=1, cache_salt=b"tenant"))
    engine.run()
    assert engine.scheduler.counters.cache_hits == 0
    run(engine, "warm", PROMPT)
    assert engine.scheduler.counters.cache_hits == 64


def test_request_may_refuse_to_read_the_cache_and_still_fills_it():
    engine = make_engine()
    run(engine, "cold", PROMPT)
    engine.add(Request("all", PROMPT, max_tokens=1, skip_reading_prefix_cache=True))
    engine.run()
    assert engine.scheduler.counters.cache_hits == 0
    assert engine.scheduler.counters.prompt_tokens == 2 * len(PROMPT)


def test_live_requests_share_blocks():
    engine = make_engine(num_window_layers=0)
    engine.add(Request("a", PROMPT, max_tokens=30))
    for _ in range(3):
        engine.step()
    used = engine.scheduler.stats().blocks_used
    engine.add(Request("b", [*PROMPT[:60], 1], max_tokens=30))
    engine.step()
    assert engine.scheduler.stats().blocks_used == used + 1
    tables = engine.scheduler.plan().block_tables()
    assert tables[0, :7].tolist() == tables[1, :7].tolist()
    assert tables[0, 7] != tables[1, 7]


def test_blocks_of_an_uncommitted_step_are_not_shared():
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=64,
            num_blocks=20,
            max_running=2,
            max_tokens_per_step=64,
            block_size=8,
            prefix_cache=True,
        )
    )
    scheduler.add(Request("a", [2] * 20))
    scheduler.plan()
    scheduler.add(Request("b", [2] * 20))
    plan = scheduler.plan()
    assert plan.request_ids == ["a", "b"]
    assert plan.write_floors.tolist() == [0, 0]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), overlapped=st.booleans(), snapshots=st.booleans())
def test_any_family_of_prompts_gives_cold_tokens(data, overlapped, snapshots):
    fields = SNAPSHOTS | {"num_snapshot_slots": 3} if snapshots else {}
    fields = fields | {"keep_tokens": data.draw(st.sampled_from([0, 8, 20]))}
    engine = make_engine(overlapped, num_blocks=data.draw(st.integers(16, 60)), **fields)
    requests = []
    for number in range(data.draw(st.integers(1, 8))):
        keep = data.draw(st.integers(0, 64))
        extra = data.draw(st.lists(st.integers(2, 39), min_size=1, max_size=20))
        limit = data.draw(st.integers(1, 30))
        requests.append(Request(str(number), PROMPT[:keep] + extra, max_tokens=limit))
        engine.add(requests[-1])
        for _ in range(data.draw(st.integers(0, 6))):
            engine.step()
    engine.run()
    engine.scheduler.check_integrity()
    for request in requests:
        if engine.reasons[request.request_id] != "insufficient_system_resource":
            expected, reason = expected_output(MODEL, request, engine.scheduler.config)
            assert engine.outputs[request.request_id] == expected
            assert engine.reasons[request.request_id] == reason
