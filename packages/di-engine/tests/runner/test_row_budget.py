"""Totals of rows, and the table that they are chosen by."""

import numpy as np
import pytest
import torch

from di_engine.cache import Cache
from di_engine.config import ModelConfig
from di_engine.model.numerics import Numerics
from di_engine.runner.row_budget import AdaptiveRows, measure_latency
from di_engine.tiny import directory
from di_spec import BudgetPlanner, CostModel, LatencyTable


class TimedModel:
    """Takes a second and a second for each row, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_rows: list[int] = []

    def forward(self, batch, cache):
        assert len(set(batch.state_slots.tolist())) == batch.num_requests
        assert 0 not in batch.state_slots.tolist()
        self.num_rows.append(batch.num_rows)
        return torch.zeros(batch.num_rows, 1)

    def logits(self, hidden):
        self.now_s += self.step_s * (1 + len(hidden))
        return hidden


@pytest.mark.parametrize(("step_s", "largest"), [(1e-6, 12), (0.021, 4)])
def test_long_passes_are_not_run_and_lie_on_the_line(step_s: float, largest: int) -> None:
    config = ModelConfig.from_directory(directory())
    cache = Cache.allocate(config, Numerics(), num_blocks=1, num_state_slots=5)
    model = TimedModel()
    model.step_s = step_s
    table = measure_latency(
        model,
        cache,
        max_running=4,
        num_draft_tokens=2,
        ngram_size=4,
        synchronize=lambda: None,
        clock=lambda: model.now_s,
    )
    assert max(model.num_rows) == largest
    assert table.max_rows == 12
    assert table.dense(12)[1:] == pytest.approx([step_s * (1 + rows) for rows in range(1, 13)])


def test_rows_are_within_what_is_there() -> None:
    planner = BudgetPlanner(CostModel(LatencyTable((1, 100), (1.0, 1.5), "linear")), lag=0)
    rows = AdaptiveRows(planner)
    slots, most = np.array([3, 7, 9]), np.array([1, 4, 6])
    # Nothing is known: drafts count as certain, and they are cheap.
    assert rows.rows(slots, most).tolist() == [1, 4, 6]
    planner.record([7, 9], np.array([[0.9, 0.8, 0.7, 0.6, 0.5], [0.0] * 5]))
    assert rows.rows(slots, most).tolist() == [1, 4, 1]
