"""Policies on one rank, and ranks that must agree, each in a thread of its own."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from di_scheduler import Request, Scheduler, SchedulerConfig, StepOutcome
from di_scheduler.testing import FakeDevice, FakeEngine, FakeModel, expected_output

MODEL = FakeModel(vocab_size=40, seed=5)


def make_config(**fields):
    defaults = {
        "max_model_len": 400,
        "num_blocks": 400,
        "max_running": 4,
        "max_tokens_per_step": 16,
        "block_size": 8,
        "policy": "decode_first",
        "prefill_all_interval": 7,
        "prefill_any_interval": 10,
        "idle_check_interval": 4,
    }
    return SchedulerConfig(**{**defaults, **fields})


def advance(scheduler):
    plan = scheduler.plan()
    if plan is not None:
        ones = np.ones(plan.num_rows, np.int64)
        scheduler.commit(plan, StepOutcome(np.full((plan.num_rows, 1), 9), ones))
    return plan


def kinds(scheduler, count):
    return "".join(advance(scheduler).kind[0] for _ in range(count))


def test_mixed_policy_puts_decode_rows_first_and_fills_up_with_a_chunk():
    scheduler = Scheduler(make_config(policy="mixed"))
    scheduler.add(Request("a", [2] * 5))
    advance(scheduler)
    scheduler.add(Request("b", [3] * 40))
    plan = advance(scheduler)
    assert plan.kind == "mixed"
    assert plan.request_ids == ["a", "b"]
    assert plan.query_lens.tolist() == [1, 15]
    assert plan.is_prompt.tolist() == [False, True]
    assert plan.needs_sample.tolist() == [True, False]


def test_prefill_first_runs_prompts_as_soon_as_they_arrive_and_decodes_alone():
    scheduler = Scheduler(make_config(policy="prefill_first"))
    scheduler.add(Request("a", [2] * 5))
    assert kinds(scheduler, 3) == "pdd"
    scheduler.add(Request("b", [3] * 40))
    assert kinds(scheduler, 5) == "pppdd"


def test_decode_first_lets_a_prompt_wait_for_its_interval_and_alternates_chunks():
    scheduler = Scheduler(make_config())
    scheduler.add(Request("a", [2] * 5))
    assert kinds(scheduler, 3) == "pdd"  # nobody decodes: the prompt starts at once
    scheduler.add(Request("b", [3] * 5))
    # Two decode steps are done; the ALL point is the 7th. Right after it comes another one.
    assert kinds(scheduler, 7) == "dddddpd"
    scheduler.add(Request("c", [3] * 40))
    assert kinds(scheduler, 10) == "dddddd" + "pppd"


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "decode_first"])
@pytest.mark.parametrize("overlapped", [False, True])
def test_policies_differ_in_time_only(policy, overlapped):
    config = make_config(policy=policy, num_draft_tokens=3, eos_token_ids=(1,))
    scheduler = Scheduler(config)
    engine = FakeEngine(scheduler, FakeDevice(config, MODEL), overlapped)
    rng = np.random.default_rng(0)
    requests = [
        Request(f"r{i}", rng.integers(2, 40, rng.integers(1, 60)).tolist(), max_tokens=20)
        for i in range(8)
    ]
    for request in requests:
        engine.add(request)
        engine.step()
    engine.run()
    for request in requests:
        tokens, reason = expected_output(MODEL, request, config)
        assert (engine.outputs[request.request_id], engine.reasons[request.request_id]) == (
            tokens,
            reason,
        )


class ThreadVote:
    """Reduces over threads; a rank that votes alone runs into the barrier's time-out."""

    def __init__(self, world_size):
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=20)
        self._values = {}
        self.calls = {}

    def rank(self, index):
        outer = self

        class Rank:
            world_size = outer.world_size

            def reduce_min(self, values):
                assert all(type(value) is int for value in values)
                outer._values[index] = list(values)
                outer.calls[index] = outer.calls.get(index, 0) + 1
                outer._barrier.wait()
                result = [min(column) for column in zip(*outer._values.values(), strict=True)]
                outer._barrier.wait()
                return result

        return Rank()


def run_ranks(schedulers, work, steps):
    """Runs every rank for `steps` steps; `work[rank][step]` requests arrive before a step."""
    kinds = [[] for _ in schedulers]
    failures = []

    def loop(rank):
        try:
            for step in range(steps):
                for request in work[rank].get(step, []):
                    schedulers[rank].add(request)
                plan = advance(schedulers[rank])
                kinds[rank].append((plan.kind, plan.is_placeholder))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(r,)) for r in range(len(schedulers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    return kinds


def make_ranks(count, **fields):
    vote = ThreadVote(count)
    return vote, [Scheduler(make_config(**fields), vote=vote.rank(r)) for r in range(count)]


def test_lone_prompt_starts_at_once_while_all_ranks_idle():
    _, ranks = make_ranks(2)
    kinds = run_ranks(ranks, [{3: [Request("a", [2] * 5)]}, {}], 6)
    assert kinds[0][3] == ("prompt", False)
    assert kinds[1][3] == ("prompt", True)
    assert kinds[0][4] == ("decode", False)
    assert kinds[1][4] == ("decode", True)


def test_lone_prompt_waits_for_the_any_point_while_another_rank_decodes():
    _, ranks = make_ranks(2)
    work = [{0: [Request("a", [2] * 5)]}, {2: [Request("b", [2] * 5)]}]
    kinds = run_ranks(ranks, work, 14)
    # Step 0 is the prompt of rank 0; ten decode steps later comes the ANY point.
    assert [kind for kind, _ in kinds[1]].index("prompt", 1) == 11
    assert kinds[1][11] == ("prompt", False)
    assert kinds[0][11] == ("prompt", True)


def test_two_prompts_meet_at_the_all_point():
    _, ranks = make_ranks(2)
    work = [
        {0: [Request("a", [2] * 5)], 2: [Request("c", [2] * 5)]},
        {0: [Request("b", [2] * 5)], 3: [Request("d", [2] * 5)]},
    ]
    kinds = run_ranks(ranks, work, 10)
    assert [kind for kind, _ in kinds[0]].index("prompt", 1) == 8
    assert kinds[0][8] == kinds[1][8] == ("prompt", False)


def test_vote_that_builds_nothing_lets_everybody_decode():
    # One block is missing for the second prompt, although slots and usage would allow it.
    _, ranks = make_ranks(2, num_blocks=11, prefill_usage_limit=1.0)
    work = [{0: [Request("a", [2] * 40, max_tokens=30), Request("b", [3] * 79)]}, {}]
    kinds = run_ranks(ranks, work, 60)
    decodes = [kind for kind, _ in kinds[0]]
    for start in range(4, 28):
        assert "decode" in decodes[start : start + 2]
    assert ("prompt", False) in kinds[0][30:]  # the second one runs when the first is done


arrivals = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(1, 50), st.integers(1, 12)),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(arrivals=arrivals, policy=st.sampled_from(["prefill_first", "decode_first", "mixed"]))
def test_ranks_take_the_same_steps_and_votes_and_finish(arrivals, policy):
    vote, ranks = make_ranks(2, policy=policy, num_blocks=30, max_running=2)
    work = [{}, {}]
    for number, (rank, step, length, output) in enumerate(arrivals):
        request = Request(str(number), [2] * length, max_tokens=output)
        work[rank].setdefault(step, []).append(request)
    kinds = run_ranks(ranks, work, 400)
    assert [kind for kind, _ in kinds[0]] == [kind for kind, _ in kinds[1]]
    assert vote.calls.get(0, 0) == vote.calls.get(1, 0)
    for scheduler in ranks:
        scheduler.check_integrity()
        assert not scheduler.has_unfinished
