"""Rows of decoding requests by what verification pays: the scheduler's `RowBudget`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from di_engine.cache import Cache
from di_engine.model.backbone import Backbone
from di_engine.model.batch import RequestRows, StepBatch
from di_engine.model.drafter import DraftingModel
from di_spec import BudgetPlanner, LatencyTable, split_budget

__all__ = ["AdaptiveRows", "measure_latency"]

_LONG_PASS_S = 0.1
"""A pass that takes longer is the last that is measured."""


class AdaptiveRows:
    """Chooses a total for each step and leaves the final split to the device.

    The total comes from survivals that are older than the drafts it cuts, the split made here from
    the same; the device deals the total out by the newest ones.

    Args:
        planner: Knows survivals by state slot and the cost of rows.
    """

    splits_on_device = True

    def __init__(self, planner: BudgetPlanner) -> None:
        self._planner = planner

    def rows(
        self, slots: npt.NDArray[np.int64], max_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Rows of each request; see `di_scheduler.RowBudget`."""
        keys, num_drafts = slots.tolist(), max_rows - 1
        budget = self._planner.choose(keys, num_drafts.tolist())
        survival = self._planner.lagged(keys, num_drafts.tolist())
        is_draft = np.arange(survival.shape[1]) < num_drafts[:, None]
        total = min(budget.num_rows, int(max_rows.sum()))
        return split_budget(np.where(is_draft, survival, -1.0), total)


def measure_latency(
    model: Backbone | DraftingModel,
    cache: Cache,
    *,
    max_running: int,
    num_draft_tokens: int,
    ngram_size: int,
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> LatencyTable:
    """Times forward passes of 1 to `max_running * (K + 1)` decode rows.

    Placeholder requests without context are run, so what context costs is left to the correction
    at run time. Where a pass takes long (a CPU), larger ones are not run: the line through the last
    two goes on. Writes the reserved block 0 and state slots, so no request may run meanwhile.

    Args:
        model: Forward pass and projection.
        cache: Its cache.
        max_running: Most requests of a step.
        num_draft_tokens: Most drafts of one of them, `K`.
        ngram_size: As for `StepBatch.build`.
        synchronize: Waits for the device.
        clock: Seconds.
    """
    rows_each = num_draft_tokens + 1

    def run(num_rows: int) -> None:
        requests = [
            RequestRows(
                token_ids=[0] * min(rows_each, num_rows - first),
                num_computed=0,
                block_table=[0],
                state_slot=1 + first // rows_each,
                logits="all",
            )
            for first in range(0, num_rows, rows_each)
        ]
        batch = StepBatch.build(requests, ngram_size=ngram_size, device=cache.blocks.device)
        model.logits(model.forward(batch, cache))
        synchronize()

    most = max_running * rows_each
    counts = _affordable(_measured_rows(most), run, clock)
    return _prolonged(LatencyTable.measure(counts, run, interpolation="linear", clock=clock), most)


def _affordable(
    counts: list[int], run: Callable[[int], None], clock: Callable[[], float]
) -> list[int]:
    """The row counts up to the first whose pass is long, two at least."""
    for place, count in enumerate(counts):
        run(count)
        begin_s = clock()
        run(count)
        if clock() - begin_s > _LONG_PASS_S and place > 0:
            return counts[: place + 1]
    return counts


def _prolonged(table: LatencyTable, most: int) -> LatencyTable:
    """The table with the line through its last two entries drawn on to `most` rows."""
    if table.max_rows == most or len(table.rows) < 2:
        return table
    (r0, r1), (s0, s1) = table.rows[-2:], table.seconds[-2:]
    end_s = s1 + max(0.0, (s1 - s0) / (r1 - r0)) * (most - r1)
    return LatencyTable((*table.rows, most), (*table.seconds, end_s), "linear")


def _measured_rows(most: int) -> list[int]:
    """Row counts a half to a third apart: execution is not padded, so times lie on lines."""
    counts = {most}
    power = 1
    while power < most:
        counts |= {power, min(power * 3 // 2, most)}
        power *= 2
    return sorted(counts)
