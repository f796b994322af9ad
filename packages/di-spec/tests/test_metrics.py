import json

import numpy as np
import pytest

from di_spec import SpecMetrics


def test_definitions_on_a_trace_by_hand():
    metrics = SpecMetrics(3)
    survival = np.array([[0.5, 0.25, 0.125], [1.0, 1.0, 1.0]])
    metrics.record([3, 3], [2, 3], [1, 3], [2, 4], survival)
    metrics.record([3, 0], [0, 0], [0, 0], [1, 1])
    s = metrics.summary()
    assert s["accepted_length"] == 2.0  # 1 + 4 accepted / 4 request-steps
    assert s["acceptance_rate"] == 4 / 5
    assert s["acceptance_at"] == [1.0, 0.5, 1.0]
    assert s["conditional_acceptance_at"] == [1.0, 0.5, 1.0]
    assert s["useful_rows"] == 8 / 9
    assert s["budget_use"] == 5 / 9
    assert s["rows_per_request"] == 9 / 4
    assert s["tokens_per_step"] == 4.0
    assert s["expected_accepted"] == pytest.approx(3.75 / 4)
    assert s["observed_accepted"] == 1.0
    assert s["confidence_error"] == pytest.approx((0.5 + 0.25) / 5)
    assert s["accepted_histogram"] == [2, 1, 0, 1]
    assert s["rows_histogram"] == [0, 2, 0, 1, 1]
    json.dumps(s)


def test_drafts_behind_a_rejection_do_not_count_as_reached():
    metrics = SpecMetrics(2)
    metrics.record([2], [2], [0], [1])
    s = metrics.summary()
    assert s["acceptance_at"] == [0.0, 0.0]
    assert s["conditional_acceptance_at"] == [0.0, None]


def test_sums_of_ranks_are_those_of_one():
    together, first, second = SpecMetrics(2), SpecMetrics(2), SpecMetrics(2)
    for part in (together, first):
        part.record([2, 1], [2, 1], [1, 0], [2, 1])
    for part in (together, second):
        part.record([2], [1], [1], [2])
    first.merge(second)
    assert first.summary() == together.summary()
    with pytest.raises(ValueError, match="blocks of 3"):
        first.merge(SpecMetrics(3))


def test_empty_and_impossible_counts():
    assert SpecMetrics(2).summary()["acceptance_rate"] is None
    with pytest.raises(ValueError, match="must hold"):
        SpecMetrics(2).record([1], [1], [2], [1])
    with pytest.raises(ValueError, match="at most 2"):
        SpecMetrics(2).record([3], [1], [1], [1])
