"""Figures of the present moment, for routers, dashboards and logs."""

from dataclasses import asdict, dataclass

import numpy as np

from di_scheduler.core import Core
from di_scheduler.protocols import MetricsSink
from di_scheduler.request import Status


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges of one scheduler.

    Attributes:
        waiting: Requests that wait for admission.
        waiting_tokens: Their tokens.
        running: Requests that hold a slot and run or load.
        running_context_tokens: Tokens whose KV the running requests have committed.
        blocks_total: Blocks without the reserved one; free + cached + used.
        blocks_free: Blocks nobody references or can find.
        blocks_cached: Unreferenced blocks that can be found by hash.
        blocks_used: Referenced blocks; a shared one counts once.
        snapshots_total: Slots for saved window rings.
        snapshots_cached: Slots that hold one.
        steps_in_flight: Plans that are not committed.
    """

    waiting: int
    waiting_tokens: int
    running: int
    running_context_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    snapshots_total: int
    snapshots_cached: int
    steps_in_flight: int


def measure(core: Core) -> SchedulerStats:
    """Returns the gauges of `core`."""
    table, pool = core.table, core.pool
    running = np.flatnonzero((table.status == Status.RUNNING) | (table.status == Status.LOADING))
    return SchedulerStats(
        waiting=len(core.waiting),
        waiting_tokens=core.waiting.num_tokens,
        running=len(running),
        running_context_tokens=int(table.num_computed[running].sum()),
        blocks_total=pool.total,
        blocks_free=pool.num_free,
        blocks_cached=pool.num_cached,
        blocks_used=pool.num_used,
        snapshots_total=core.snapshots.total,
        snapshots_cached=core.snapshots.num_cached,
        steps_in_flight=len(core.uncommitted),
    )


class Reporter:
    """Passes counters and gauges on to a sink.

    Args:
        core: The scheduler's state.
        sink: Takes the figures.
    """

    def __init__(self, core: Core, sink: MetricsSink) -> None:
        self._core = core
        self._sink = sink
        self._reported = core.counters.as_dict()

    def report(self) -> None:
        """Reports what was counted since the last call, and every gauge."""
        counted = self._core.counters.as_dict()
        for name, value in counted.items():
            if value > self._reported[name]:
                self._sink.count(name, value - self._reported[name])
        self._reported = counted
        for name, value in asdict(measure(self._core)).items():
            self._sink.gauge(name, value)
