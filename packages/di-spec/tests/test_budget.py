import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec import BudgetPlanner, CostModel, LatencyTable, RankScores, choose_budget, split_budget


def random_survival(rng, num_requests, width, ties=False):
    confidence = (
        rng.choice([0.0, 0.5, 1.0], (num_requests, width))
        if ties
        else rng.random((num_requests, width))
    )
    return np.cumprod(confidence, axis=1)


def random_seconds(rng, max_rows):
    """Smooth, staircase or noisy step times of 0 .. max_rows rows."""
    counts = np.arange(max_rows + 1)
    kind = rng.integers(3)
    if kind == 0:
        seconds = 1 + 0.05 * counts
    elif kind == 1:
        seconds = 1 + rng.random() * np.ceil(counts / 4)
    else:
        seconds = rng.uniform(0.5, 3, max_rows + 1)
    return seconds


def brute_force(survival, seconds):
    """Best rate over every allocation of drafts to requests."""
    n, width = survival.shape
    best = 0.0
    for lengths in itertools.product(range(width + 1), repeat=n):
        rows = n + sum(lengths)
        if rows < len(seconds):
            tokens = n + sum(survival[r, :k].sum() for r, k in enumerate(lengths))
            best = max(best, tokens / seconds[rows])
    return best


@pytest.mark.parametrize("seed", range(10))
def test_budget_is_the_brute_force_optimum(seed):
    """100 random cases for each seed."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        n, width = int(rng.integers(1, 4)), int(rng.integers(0, 4))
        survival = random_survival(rng, n, width, ties=rng.random() < 0.3)
        seconds = random_seconds(rng, int(rng.integers(n, n * (width + 1) + 2)))
        budget = choose_budget(survival, seconds)
        assert budget.expected_tokens / budget.step_s == pytest.approx(
            brute_force(survival, seconds), rel=1e-12
        )
        assert budget.step_s == seconds[budget.num_rows]


def test_worked_example():
    """Three requests, two steps of confidences, and a table of graph buckets."""
    table = LatencyTable((1, 2, 4, 8, 12), (0.008, 0.0082, 0.0086, 0.0094, 0.012))
    cost = CostModel(table)
    for _ in range(10):
        cost.observe(8, 3, 0.0094 + 8 * 2e-5, 0.001)
    assert cost.slope_s == pytest.approx(2e-5)
    old = np.cumprod([[0.9, 0.8, 0.7], [0.6, 0.5, 0.5], [0.95, 0.9, 0.9]], axis=1)
    budget = choose_budget(old, cost.dense(12, 3))
    assert budget.num_rows == 8
    assert budget.expected_tokens == pytest.approx(7.1945)
    assert budget.step_s == pytest.approx(0.01056)
    new = np.cumprod([[0.5, 0.5, 0.4], [0.9, 0.9, 0.8], [0.9, 0.8, 0.2]], axis=1)
    assert split_budget(new, 8).tolist() == [1, 4, 3]
    assert split_budget(old, 8).tolist() == [3, 1, 4]


def test_ties_take_fewer_rows_and_hopeless_drafts_none():
    assert choose_budget(np.array([[0.0, 0.0]]), np.array([0, 1.0, 1.0, 1.0])).num_rows == 1
    assert choose_budget(np.array([[1.0]]), np.array([0, 1.0, 2.0])).num_rows == 1


def test_without_a_table_every_promising_draft_is_verified():
    budget = choose_budget(np.array([[0.9, 0.1], [0.5, 0.0]]), None)
    assert budget.num_rows == 5
    assert budget.expected_tokens == pytest.approx(3.5)


def test_no_requests_and_too_many():
    assert choose_budget(np.zeros((0, 3)), np.array([0.0, 1.0])).num_rows == 0
    with pytest.raises(ValueError, match="need one each"):
        choose_budget(np.ones((4, 1)), np.array([0, 1.0, 1.0]))


@pytest.mark.parametrize("seed", range(5))
def test_joint_budget_is_the_joint_optimum(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        ranks = [
            random_survival(rng, int(rng.integers(0, 3)), int(rng.integers(1, 4))) for _ in range(3)
        ]
        seconds = random_seconds(rng, 12)
        seconds[0] = 0.0
        scores = [RankScores.of(s) for s in ranks]
        plans = [
            choose_budget(s, seconds, [x for i, x in enumerate(scores) if i != r], r)
            for r, s in enumerate(ranks)
        ]
        if not sum(len(s) for s in ranks):
            assert [p.num_rows for p in plans] == [0, 0, 0]
            continue
        tokens = sum(p.expected_tokens for p in plans)
        longest = max(seconds[p.num_rows] for p in plans)
        assert all(p.step_s == pytest.approx(longest) for p in plans)
        best = max(
            sum(s.sums[k] for s, k in zip(scores, ks, strict=True))
            / max(seconds[s.num_requests + k] for s, k in zip(scores, ks, strict=True))
            for ks in itertools.product(*(range(len(s.sums)) for s in scores))
        )
        assert tokens / longest == pytest.approx(best, rel=1e-12)


def test_rank_fills_up_to_the_longest_step():
    busy, idle = np.full((4, 1), 0.1), np.full((1, 3), 0.2)
    seconds = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8.0])
    assert choose_budget(idle, seconds).num_rows == 1
    joint = choose_budget(idle, seconds, [RankScores.of(busy)], rank=1)
    assert joint.num_rows == 4
    assert joint.step_s == 4


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(0, 5), st.booleans())
def test_split_gives_prefixes_and_the_exact_total(seed, num_requests, width, ties):
    rng = np.random.default_rng(seed)
    survival = random_survival(rng, num_requests, width, ties)
    total = int(rng.integers(0, num_requests * (width + 1) + 3))
    rows = split_budget(survival, total)
    assert ((rows >= 1) & (rows <= width + 1)).all()
    assert rows.sum() == min(max(total, num_requests), num_requests * (width + 1))
    admitted = [survival[r, : k - 1] for r, k in enumerate(rows)]
    left = [survival[r, k - 1 :] for r, k in enumerate(rows)]
    if num_requests and width:
        smallest = min((a.min() for a in admitted if len(a)), default=np.inf)
        assert smallest >= max((x.max() for x in left if len(x)), default=-np.inf)


@given(st.integers(0, 2**32))
def test_split_does_not_look_at_drafts_it_cuts(seed):
    """Given the total, confidences after draft j never decide whether draft j is verified."""
    rng = np.random.default_rng(seed)
    confidence = rng.choice([0.0, 0.3, 0.6, 1.0], (3, 4))
    total = int(rng.integers(3, 15))
    rows = split_budget(np.cumprod(confidence, 1), total)
    request, place = int(rng.integers(3)), int(rng.integers(4))
    changed = confidence.copy()
    changed[request, place:] = rng.choice([0.0, 0.5, 1.0], 4 - place)
    again = split_budget(np.cumprod(changed, 1), total)
    for j in range(place):
        assert (rows[request] > j + 1) == (again[request] > j + 1)


def test_cost_model_uses_medians_of_full_buckets():
    table = LatencyTable((1, 8, 16), (1.0, 2.0, 3.0))
    rng = np.random.default_rng(0)
    cost = CostModel(table)
    samples = {8: [], 16: []}
    for _ in range(40):
        rows = int(rng.choice([7, 12]))
        bucket = table.bucket(rows)
        forward = float(rng.uniform(2, 5))
        samples[bucket].append((forward - float(table.dense(rows)[rows])) / bucket)
        cost.observe(rows, 3, forward, 0.1)
    medians = [statistics.median(s) for s in samples.values() if len(s) >= 10]
    assert cost.slope_s == pytest.approx(max(0.0, statistics.median(medians)))
    assert cost.sampler_s(3) == pytest.approx(0.1)
    assert cost.sampler_s(99) == pytest.approx(0.1)  # another number: the overall median


def test_cost_model_forgets_and_never_goes_negative(monkeypatch):
    monkeypatch.setattr(CostModel, "WINDOW", 12)
    cost = CostModel(LatencyTable((4,), (1.0,)))
    for _ in range(12):
        cost.observe(4, 1, 2.0, 0.0)
    assert cost.slope_s == pytest.approx(0.25)
    for _ in range(12):
        cost.observe(4, 1, 0.5, 0.0)
    assert cost.slope_s == 0.0
    cost.observe(100, 1, 9.0, 0.0)  # outside the table: nothing to compare with
    assert CostModel(LatencyTable((4,), (1.0,))).sampler_s(1) == 0.0


def test_planner_uses_survivals_of_the_round_before():
    cost = CostModel(LatencyTable((1, 2, 3, 4), (1.0, 1.2, 1.4, 1.6)))
    planner = BudgetPlanner(cost, lag=1)
    assert planner.lagged(["a", "b"], [2, 1]).tolist() == [[1.0, 1.0], [1.0, 0.0]]
    planner.record(["a"], np.array([[0.0, 0.0]]))
    assert planner.choose(["a"], [2]).num_rows == 3  # the newest has no say yet
    planner.record(["a"], np.array([[1.0, 1.0]]))
    assert planner.choose(["a"], [2]).num_rows == 1
    planner.forget("a")
    planner.forget("a")
    assert planner.choose(["a"], [2]).num_rows == 3
    assert BudgetPlanner(None).choose(["a", "b"], [2, 0]).num_rows == 4
    with pytest.raises(ValueError, match="`lag`"):
        BudgetPlanner(None, lag=-1)
