"""Any mix of requests gives the tokens that each request gives alone, synchronous or overlapped."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from di_scheduler import Request, Scheduler, SchedulerConfig
from di_scheduler.testing import FakeDevice, FakeEngine, FakeModel, expected_output

SHARED = np.random.default_rng(2).integers(0, 20, 40).tolist()


class ThirdRow:
    """A budget that changes with the slot, split again by the device."""

    splits_on_device = True

    def rows(self, slots, max_rows):
        return 1 + (max_rows - 1) * (slots % 3) // 2


@dataclass
class Event:
    """One request and what happens before the next one arrives."""

    shared_len: int
    own: list
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    priority: int
    steps: int
    aborted_after: int | None


events = st.lists(
    st.builds(
        Event,
        shared_len=st.integers(0, 40),
        own=st.lists(st.integers(0, 19), min_size=1, max_size=12),
        max_tokens=st.integers(1, 20),
        min_tokens=st.integers(0, 3),
        ignore_eos=st.booleans(),
        priority=st.integers(0, 1),
        steps=st.integers(0, 5),
        aborted_after=st.one_of(st.none(), st.none(), st.integers(0, 10)),
    ),
    min_size=1,
    max_size=10,
)

configs = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([12, 20, 100]),
        "num_draft_tokens": st.integers(0, 7),
        "drafts_after_prefill": st.booleans(),
        "max_tokens_per_step": st.sampled_from([24, 40, 80]),
        "policy": st.sampled_from(["mixed", "prefill_first", "decode_first"]),
        "prefix_cache": st.booleans(),
        "num_window_layers": st.sampled_from([0, 2]),
        "num_snapshot_slots": st.sampled_from([0, 3]),
        "keep_tokens": st.sampled_from([0, 0, 12, 30]),
        "prefill_usage_limit": st.sampled_from([0.5, 1.0]),
    }
)


def simulate(fields, schedule, seed, overlapped, budget):
    """Runs a schedule of arrivals and aborts; returns requests and what they received."""
    if not fields["prefix_cache"]:
        fields = {**fields, "num_snapshot_slots": 0}
    config = SchedulerConfig(
        max_model_len=60, max_running=3, block_size=8, eos_token_ids=(3,), window_size=4,
        ring_slack=16, snapshot_min_gain=4, prefill_all_interval=3, prefill_any_interval=5,
        **fields,
    )  # fmt: skip
    model = FakeModel(vocab_size=20, seed=seed)
    scheduler = Scheduler(config, budget)
    device = FakeDevice(config, model, splits_rows=budget is not None)
    engine = FakeEngine(scheduler, device, overlapped)
    requests, aborts, turn = [], {}, 0
    pending = list(enumerate(schedule))
    wait = 0
    while pending or scheduler.has_unfinished:
        while pending and wait == 0:
            number, event = pending.pop(0)
            request = Request(
                str(number),
                SHARED[: event.shared_len] + event.own,
                max_tokens=event.max_tokens,
                min_tokens=min(event.min_tokens, event.max_tokens),
                ignore_eos=event.ignore_eos,
                priority=event.priority,
            )
            engine.add(request)
            requests.append(request)
            if event.aborted_after is not None:
                aborts.setdefault(turn + event.aborted_after, []).append(str(number))
            wait = event.steps
        scheduler.abort(aborts.pop(turn, []))
        engine.step()
        scheduler.check_integrity()
        assert turn < 3000, f"stuck: {engine.unfinished()}"
        turn += 1
        wait = max(0, wait - 1)
    assert device.max_position_end <= config.position_limit
    stats = scheduler.stats()
    assert stats.blocks_used == stats.running == stats.steps_in_flight == 0
    return config, model, requests, engine


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, ThirdRow()], ids=["all_rows", "device_split"])
@pytest.mark.parametrize("overlapped", [False, True], ids=["sync", "overlapped"])
@settings(max_examples=80, deadline=None)
@given(fields=configs, schedule=events, seed=st.integers(0, 1000))
def test_every_request_gets_the_tokens_it_gets_alone(overlapped, budget, fields, schedule, seed):
    config, model, requests, engine = simulate(fields, schedule, seed, overlapped, budget)
    assert set(engine.reasons) == {request.request_id for request in requests}
    for request in requests:
        name = request.request_id
        tokens, reason = expected_output(model, request, config)
        if engine.reasons[name] == "abort":
            assert engine.outputs[name] == tokens[: len(engine.outputs[name])]
        else:
            assert (engine.outputs[name], engine.reasons[name]) == (tokens, reason)


@pytest.mark.slow
def test_position_limit_is_reached_and_never_exceeded():
    """With every draft accepted the bound is exact."""
    for count in range(6):
        ends = set()
        for length in range(1, 30):
            config = SchedulerConfig(
                max_model_len=40, num_blocks=30, max_running=1, max_tokens_per_step=40,
                block_size=8, num_draft_tokens=count,
            )  # fmt: skip
            device = FakeDevice(config, FakeModel(draft_error=0.0))
            engine = FakeEngine(Scheduler(config), device, overlapped=True)
            worst = 0
            engine.add(Request("r", [1] * length))
            while engine.scheduler.has_unfinished:
                plan = engine.step()
                if plan is not None:
                    worst = max(worst, int((plan.context_lens).max()))
            ends.add(worst)
        assert max(ends) == config.position_limit
