import numpy as np
import pytest

from di_scheduler import (
    OutcomeError,
    PlanOrderError,
    Request,
    Scheduler,
    SchedulerConfig,
    StepOutcome,
)


def make_scheduler(row_budget=None, metrics=None, **fields):
    defaults = {
        "max_model_len": 64,
        "num_blocks": 40,
        "max_running": 4,
        "max_tokens_per_step": 32,
        "block_size": 8,
        "eos_token_ids": (1,),
    }
    return Scheduler(SchedulerConfig(**{**defaults, **fields}), row_budget, metrics=metrics)


def answer(scheduler, plan, tokens, **fields):
    """Commits `plan`; `tokens` is one list per row."""
    width = max(1, *map(len, tokens)) if tokens else 1
    ids = np.full((len(tokens), width), -1)
    for row, values in enumerate(tokens):
        ids[row, : len(values)] = values
    counts = np.array([len(values) for values in tokens])
    return list(scheduler.commit(plan, StepOutcome(ids, counts, **fields)))


def run_with(scheduler, rows):
    """Runs one request to its end, its steps emitting `rows` in turn."""
    tokens, reason = [], None
    for emitted in rows:
        (view,) = answer(scheduler, scheduler.plan(), [emitted])
        tokens += view.token_ids
        reason = view.finish_reason
    return tokens, reason


# --- stop rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rows", "tokens", "reason"),
    [
        ({}, [[5], [1]], [5, 1], "stop"),
        ({"ignore_eos": True, "max_tokens": 3}, [[5], [1], [6]], [5, 1, 6], "length"),
        ({"stop_token_ids": (7, 8)}, [[5], [8]], [5, 8], "stop"),
        ({"ignore_eos": True, "stop_token_ids": (7,)}, [[1], [7]], [1, 7], "stop"),
        ({"max_tokens": 1}, [[5]], [5], "length"),
        ({"max_tokens": 1}, [[1]], [1], "stop"),
        ({"min_tokens": 2}, [[1], [1], [1]], [1, 1, 1], "stop"),
        ({"min_tokens": 1, "stop_token_ids": (9,)}, [[9], [9]], [9, 9], "stop"),
        ({"min_tokens": 2, "max_tokens": 2}, [[1], [1]], [1, 1], "length"),
        ({"prompt_ids": [2] * 62}, [[5], [6]], [5, 6], "length"),
    ],
)
def test_stop_rule_ends_the_request_at_its_token(fields, rows, tokens, reason):
    scheduler = make_scheduler(max_tokens_per_step=64)
    scheduler.add(Request("r", **{"prompt_ids": [2, 3], **fields}))
    assert run_with(scheduler, rows) == (tokens, reason)
    assert not scheduler.has_unfinished
    scheduler.check_integrity()


@pytest.mark.parametrize(
    ("fields", "emitted", "kept", "reason"),
    [
        ({}, [4, 1, 5, 6], [4, 1], "stop"),
        ({"max_tokens": 5}, [4, 5, 6, 7], [4, 5, 6, 7], "length"),
        ({"max_tokens": 5}, [4, 5, 6, 1], [4, 5, 6, 1], "stop"),
        ({"stop_token_ids": (6,), "min_tokens": 4}, [6, 6, 6, 6], [6, 6, 6, 6], "stop"),
        ({"stop_token_ids": (6,), "min_tokens": 3}, [6, 6, 6, 6], [6, 6, 6], "stop"),
    ],
)
def test_tokens_behind_a_stop_in_the_same_step_are_cut(fields, emitted, kept, reason):
    scheduler = make_scheduler(num_draft_tokens=3)
    scheduler.add(Request("r", [2, 3], **fields))
    answer(scheduler, scheduler.plan(), [[3]], num_drafts=np.array([3]))
    plan = scheduler.plan()
    assert plan.query_lens.tolist() == [4]
    (view,) = answer(scheduler, plan, [emitted])
    assert (view.token_ids, view.finish_reason) == (kept, reason)
    assert (view.num_output_tokens, view.num_draft_tokens) == (1 + len(kept), 3)
    assert view.num_accepted_tokens == len(emitted) - 1


def test_padding_behind_the_emitted_tokens_is_never_looked_at():
    scheduler = make_scheduler(num_draft_tokens=3)
    scheduler.add(Request("r", [2, 3]))
    answer(scheduler, scheduler.plan(), [[3]], num_drafts=np.array([3]))
    outcome = StepOutcome(np.array([[4, 1, 1, 1]]), np.array([1]))
    (view,) = scheduler.commit(scheduler.plan(), outcome)
    assert (view.token_ids, view.finished) == ([4], False)


def test_rows_never_exceed_what_the_request_may_still_emit():
    scheduler = make_scheduler(num_draft_tokens=3)
    scheduler.add(Request("r", [2, 3], max_tokens=3))
    answer(scheduler, scheduler.plan(), [[3]], num_drafts=np.array([3]))
    assert scheduler.plan().query_lens.tolist() == [2]


def test_request_that_certainly_ends_in_the_step_in_flight_is_not_planned_again():
    scheduler = make_scheduler(num_draft_tokens=3)
    scheduler.add(Request("r", [2, 3], max_tokens=2))
    first = scheduler.plan()
    second = scheduler.plan()
    answer(scheduler, first, [[3]])
    assert scheduler.plan() is None
    (view,) = answer(scheduler, second, [[4]])
    assert view.finish_reason == "length"


# --- the plan -----------------------------------------------------------------------------------


def test_chunks_of_one_prompt_follow_each_other_and_only_the_last_samples():
    scheduler = make_scheduler(max_tokens_per_step=8, max_running=2)
    scheduler.add(Request("r", list(range(2, 22))))
    seen = []
    while scheduler.num_waiting or not seen or not seen[-1][3]:
        plan = scheduler.plan()
        seen.append(
            (
                int(plan.context_lens[0] - plan.query_lens[0]),
                plan.token_ids.tolist(),
                plan.history(2).tolist(),
                bool(plan.needs_sample[0]),
            )
        )
        answer(scheduler, plan, [[9]])
    assert seen == [
        (0, list(range(2, 10)), [[-1, -1]], False),
        (8, list(range(10, 18)), [[8, 9]], False),
        (16, list(range(18, 22)), [[16, 17]], True),
    ]


def test_plan_over_an_uncommitted_step_reserves_the_worst_case():
    scheduler = make_scheduler(num_draft_tokens=3)
    scheduler.add(Request("r", [2] * 6))
    answer(scheduler, scheduler.plan(), [[3]], num_drafts=np.array([3]))
    first = scheduler.plan()
    assert (first.query_lens[0], first.context_lens[0], first.reserved_lens[0]) == (4, 10, 0)
    assert first.token_ids.tolist() == [3, -1, -1, -1]
    assert first.prev_rows.tolist() == [-1]
    second = scheduler.plan()
    # k = C + r + q: 6 committed, 4 reserved by the first step, 4 of its own.
    assert (second.query_lens[0], second.context_lens[0], second.reserved_lens[0]) == (4, 14, 4)
    assert second.token_ids.tolist() == [-1] * 4
    assert second.prev_rows.tolist() == [0]
    assert second.block_tables().shape == (1, 2)
    assert second.true_context_lens(np.array([2])).tolist() == [6 + 2 + 4]
    assert second.true_context_lens(np.array([2]), np.array([3])).tolist() == [6 + 2 + 3]
    answer(scheduler, first, [[4, 5]])
    third = scheduler.plan()
    # The first step committed e = 2 of its r = 4 rows: C = 8.
    assert (third.context_lens[0], third.reserved_lens[0]) == (8 + 4 + 4, 4)
    assert third.history(3).tolist() == [[-1, -1, -1]]


def test_first_token_after_a_final_chunk_in_flight_is_gathered_on_the_device():
    scheduler = make_scheduler()
    scheduler.add(Request("r", [2] * 6))
    scheduler.plan()
    plan = scheduler.plan()
    assert plan.is_prompt.tolist() == [False]
    assert plan.token_ids.tolist() == [-1]
    assert (plan.context_lens[0], plan.reserved_lens[0], plan.prev_rows[0]) == (7, 6, 0)


def test_new_block_entries_rebuild_the_block_tables():
    scheduler = make_scheduler(num_draft_tokens=3, max_tokens_per_step=16)
    mirror = np.full((scheduler.config.state_slots, 12), -1)
    rng = np.random.default_rng(0)
    for number in range(6):
        scheduler.add(Request(str(number), [2] * int(rng.integers(1, 30)), max_tokens=20))
    while scheduler.has_unfinished:
        plan = scheduler.plan()
        mirror[plan.new_block_slots, plan.new_block_indices] = plan.new_block_ids
        tables = plan.block_tables(12)
        for row, slot in enumerate(plan.slots):
            length = scheduler.config.blocks_for(int(plan.context_lens[row]))
            assert mirror[slot, :length].tolist() == tables[row, :length].tolist()
        most = plan.max_query_lens
        counts = np.where(plan.is_prompt, 1, rng.integers(1, most + 1))
        scheduler.commit(plan, StepOutcome(np.full((plan.num_rows, 4), 5), counts))


class OneRow:
    splits_on_device = True

    def rows(self, slots, max_rows):
        return np.ones_like(max_rows)


def test_budget_that_splits_on_the_device_reserves_all_rows():
    scheduler = make_scheduler(OneRow(), num_draft_tokens=3)
    scheduler.add(Request("r", [2] * 6))
    answer(scheduler, scheduler.plan(), [[3]], num_drafts=np.array([3]))
    plan = scheduler.plan()
    assert (plan.query_lens[0], plan.max_query_lens[0], plan.context_lens[0]) == (1, 4, 7)
    assert scheduler.plan().reserved_lens.tolist() == [4]
    (view,) = answer(scheduler, plan, [[4, 5, 6]], query_lens=np.array([4]))
    assert (view.num_draft_tokens, view.num_accepted_tokens) == (3, 2)


class WrongBudget:
    splits_on_device = False

    def rows(self, slots, max_rows):
        return max_rows + 1


def test_budget_outside_its_bounds_is_refused():
    scheduler = make_scheduler(WrongBudget())
    scheduler.add(Request("r", [2]))
    answer(scheduler, scheduler.plan(), [[3]])
    with pytest.raises(ValueError, match="row budget must return between 1 and `max_rows`"):
        scheduler.plan()


# --- order and errors ---------------------------------------------------------------------------


def test_third_plan_and_commit_out_of_order_are_refused():
    scheduler = make_scheduler()
    scheduler.add(Request("r", [2]))
    first, second = scheduler.plan(), scheduler.plan()
    with pytest.raises(PlanOrderError, match="steps 1 and 2 are uncommitted"):
        scheduler.plan()
    with pytest.raises(PlanOrderError, match="step 2 cannot be closed now: step 1 is the oldest"):
        answer(scheduler, second, [[3]])
    answer(scheduler, first, [[3]])
    answer(scheduler, second, [[3]])
    with pytest.raises(PlanOrderError, match="no step is the oldest"):
        scheduler.cancel(second)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (StepOutcome(np.zeros((2, 1), int), np.ones(1, int)), r"shape \(1, W\)"),
        (StepOutcome(np.zeros((1, 1)), np.ones(1, int)), "float64"),
        (StepOutcome(np.zeros((1, 1), int), np.ones(2, int)), r"`num_tokens`.*\(1,\)"),
        (StepOutcome(np.zeros((1, 1), int), np.zeros(1, int)), r"0 tokens, allowed are 1 \.\. 1"),
        (StepOutcome(np.zeros((1, 4), int), np.full(1, 2)), r"2 tokens, allowed are 1 \.\. 1"),
        (StepOutcome(np.zeros((1, 1), int), np.ones(1, int), np.ones(3, int)), "`num_drafts`"),
    ],
)
def test_outcome_that_does_not_fit_changes_nothing(outcome, words):
    scheduler = make_scheduler(num_draft_tokens=2)
    scheduler.add(Request("r", [2]))
    plan = scheduler.plan()
    with pytest.raises(OutcomeError, match=words):
        scheduler.commit(plan, outcome)
    assert answer(scheduler, plan, [[5]])[0].token_ids == [5]


def test_cancel_ends_the_requests_of_both_steps_with_error():
    scheduler = make_scheduler(prefix_cache=True)
    scheduler.add(Request("a", [2] * 20))
    first = scheduler.plan()
    scheduler.add(Request("b", [3] * 5))
    scheduler.plan()
    scheduler.cancel(first, "NaN in layer 3")
    views = {view.request_id: view for view in scheduler.flush()}
    assert {name: view.finish_reason for name, view in views.items()} == {
        "a": "error",
        "b": "error",
    }
    assert views["a"].message == "NaN in layer 3"
    scheduler.check_integrity()
    stats = scheduler.stats()
    assert (stats.blocks_free, stats.steps_in_flight) == (stats.blocks_total, 0)
    assert not scheduler.has_unfinished


# --- finish from outside ------------------------------------------------------------------------


def test_stop_string_found_by_the_engine_drops_the_tokens_in_flight():
    scheduler = make_scheduler()
    scheduler.add(Request("r", [2]))
    answer(scheduler, scheduler.plan(), [[3]])
    plan = scheduler.plan()
    assert scheduler.finish("r", "stop")
    assert not scheduler.finish("r", "stop")
    (view,) = answer(scheduler, plan, [[4]])
    assert (view.finish_reason, view.token_ids, view.num_output_tokens) == ("stop", [], 1)
    assert view.row == -1


def test_abort_of_unknown_and_finished_ids_is_no_error():
    scheduler = make_scheduler()
    scheduler.add(Request("a", [2]))
    scheduler.add(Request("b", [2]))
    assert scheduler.abort(["a", "x", "a"]) == 1
    assert scheduler.abort("a") == 0
    assert [view.request_id for view in scheduler.flush()] == ["a"]


def test_zombie_keeps_blocks_until_its_step_is_committed():
    scheduler = make_scheduler()
    scheduler.add(Request("r", [2] * 20))
    first, second = scheduler.plan(), scheduler.plan()
    (view,) = answer(scheduler, first, [[1]])
    assert view.finished
    assert scheduler.stats().blocks_used == 3
    assert answer(scheduler, second, [[5]]) == []
    assert scheduler.stats().blocks_used == 0


# --- preemption, order --------------------------------------------------------------------------


def drain(scheduler, steps=500):
    reasons, outputs = {}, {}
    for _ in range(steps):
        if not scheduler.has_unfinished:
            return reasons, outputs
        plan = scheduler.plan()
        tokens = [[5]] * plan.num_rows if plan else []
        for view in answer(scheduler, plan, tokens) if plan else scheduler.flush():
            outputs.setdefault(view.request_id, []).extend(view.token_ids)
            if view.finished:
                assert view.request_id not in reasons
                reasons[view.request_id] = view
        scheduler.check_integrity()
    raise AssertionError("stuck")


def test_youngest_request_is_preempted_and_computed_again():
    scheduler = make_scheduler(num_blocks=7, prefill_usage_limit=1.0)
    scheduler.add(Request("old", [2] * 20, max_tokens=20))
    scheduler.add(Request("young", [3] * 20, max_tokens=20))
    preempted = []
    while scheduler.has_unfinished:
        before = scheduler.counters.preempted
        plan = scheduler.plan()
        if scheduler.counters.preempted > before:
            preempted.append([name for name in ("old", "young") if name not in plan.request_ids])
        answer(scheduler, plan, [[5]] * plan.num_rows)
        scheduler.check_integrity()
    assert preempted == [["young"]]
    assert scheduler.counters.finished == 2


def test_low_priority_is_preempted_before_late_arrival():
    scheduler = make_scheduler(num_blocks=7, prefill_usage_limit=1.0)
    scheduler.add(Request("low", [2] * 20, max_tokens=20, priority=1))
    scheduler.add(Request("high", [3] * 20, max_tokens=20))
    order = list(drain(scheduler)[0])
    assert order == ["high", "low"]


def test_pool_that_is_exactly_full_preempts_nobody():
    scheduler = make_scheduler(num_blocks=7, prefill_usage_limit=1.0)
    scheduler.add(Request("a", [2] * 20, max_tokens=5))  # 24 positions: 3 blocks
    scheduler.add(Request("b", [3] * 20, max_tokens=5))
    drain(scheduler)
    assert scheduler.counters.preempted == 0


def test_preemption_may_be_told_to_end_requests_instead():
    scheduler = make_scheduler(num_blocks=7, prefill_usage_limit=1.0, preemption="abort")
    scheduler.add(Request("a", [2] * 20, max_tokens=20))
    scheduler.add(Request("b", [3] * 20, max_tokens=20))
    reasons, outputs = drain(scheduler)
    assert reasons["a"].finish_reason == "length"
    assert reasons["b"].finish_reason == "insufficient_system_resource"
    assert "of 6 blocks are available" in reasons["b"].message
    # Its prompt ended one step after the other one's; then that one needed a fourth block.
    assert len(outputs["b"]) == 4


def test_request_that_outgrows_the_whole_pool_ends_with_the_numbers():
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(Request("r", [2] * 20))
    reasons, outputs = drain(scheduler)
    assert reasons["r"].finish_reason == "insufficient_system_resource"
    assert "25 tokens in 3 blocks cannot grow: 0 of 3 blocks" in reasons["r"].message
    assert len(outputs["r"]) == 5


def test_drafts_are_given_up_before_anybody_is_preempted():
    fields = {"prefill_usage_limit": 1.0, "num_draft_tokens": 3, "max_tokens_per_step": 64}
    for num_blocks, drafts in ((9, [3, 3]), (7, [0, 0])):
        scheduler = make_scheduler(num_blocks=num_blocks, **fields)
        for name in "ab":
            scheduler.add(Request(name, [2] * 22))
        answer(scheduler, scheduler.plan(), [[4], [4]], num_drafts=np.array([3, 3]))
        assert scheduler.plan().draft_lens.tolist() == drafts  # 26 rows need a fourth block each
        assert scheduler.counters.preempted == 0


def test_tokens_of_a_step_in_flight_survive_preemption():
    scheduler = make_scheduler(num_blocks=7, prefill_usage_limit=1.0)
    scheduler.add(Request("old", [2] * 20, max_tokens=20))
    scheduler.add(Request("young", [3] * 20, max_tokens=20))
    previous = scheduler.plan()
    while not scheduler.counters.preempted:
        plan = scheduler.plan()
        views = answer(scheduler, previous, [[5]] * previous.num_rows)
        previous = plan
    assert {view.request_id for view in views} == {"old", "young"}
    assert scheduler.token_ids("young")[-1] == 5
    assert scheduler.num_waiting == 1


def test_priorities_run_lower_first_and_equal_ones_in_order_of_arrival():
    scheduler = make_scheduler(max_running=1)
    for name, priority in (("b", 1), ("a", 0), ("c", 1), ("z", -1)):
        scheduler.add(Request(name, [2], max_tokens=2, priority=priority))
    assert list(drain(scheduler)[0]) == ["z", "a", "b", "c"]


@pytest.mark.parametrize(("aging", "place"), [(0, 12), (8, 4)])
def test_aging_bounds_how_long_a_low_priority_waits(aging, place):
    scheduler = make_scheduler(max_running=1, priority_aging=aging)
    scheduler.add(Request("low", [2], max_tokens=2, priority=1))
    finished = []
    for number in range(60):
        if number < 12:
            scheduler.add(Request(f"high{number}", [2], max_tokens=2))
        for _ in range(2):
            plan = scheduler.plan()
            if plan is not None:
                views = answer(scheduler, plan, [[5]])
                finished += [view.request_id for view in views if view.finished]
    assert finished.index("low") == place


def test_two_hundred_requests_in_a_row_all_end():  # vllm-project/vllm#40969
    scheduler = make_scheduler(max_tokens_per_step=8, prefix_cache=True)
    for number in range(200):
        scheduler.add(Request(str(number), [2 + number % 9] * (1 + number % 50), max_tokens=3))
        drain(scheduler)
    assert scheduler.counters.finished == 200


def test_without_chunks_a_prompt_waits_until_it_fits_the_step():
    scheduler = make_scheduler(chunked_prefill=False, max_tokens_per_step=64)
    for name in "abc":
        scheduler.add(Request(name, [2] * 30, max_tokens=4))
    assert scheduler.plan().query_lens.tolist() == [30, 30]
    assert scheduler.plan().query_lens.tolist() == [1, 1, 30]


# --- figures ------------------------------------------------------------------------------------


class Sink:
    def __init__(self):
        self.counts, self.gauges = {}, {}

    def count(self, name, amount):
        self.counts[name] = self.counts.get(name, 0) + amount

    def gauge(self, name, value):
        self.gauges.setdefault(name, set()).add(value)


def test_every_gauge_moves_and_counters_add_up():  # sgl-project/sglang#37852
    sink = Sink()
    scheduler = make_scheduler(
        metrics=sink, max_running=1, prefix_cache=True, num_snapshot_slots=2, snapshot_min_gain=8,
        window_size=3, num_window_layers=4, ring_slack=2,
    )  # fmt: skip
    previous = None
    for name in "ab":
        scheduler.add(Request(name, [2] * 20, max_tokens=12))
    while scheduler.has_unfinished:
        plan = scheduler.plan()
        if previous is not None:
            answer(scheduler, previous, [[5]] * previous.num_rows)
        previous = plan
    unmoved = {name for name, values in sink.gauges.items() if len(values) == 1}
    assert unmoved == {"blocks_total", "snapshots_total"}
    assert sink.counts == {k: v for k, v in scheduler.counters.as_dict().items() if v}
    assert sink.counts["output_tokens"] == 24
