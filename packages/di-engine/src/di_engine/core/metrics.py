"""Counters, gauges and distributions of an engine behind one small interface.

`EngineMetrics` is what the scheduler reports to and what requests are observed with. Reading it
needs nothing; `prometheus_collector` serves it through prometheus-client.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from di_engine.errors import UnsupportedEnvironmentError
from di_spec import SpecMetrics

__all__ = ["Distribution", "EngineMetrics", "prometheus_collector"]

BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of every distribution, in seconds."""


@dataclass(slots=True)
class Distribution:
    """Observed seconds.

    Attributes:
        counts: Observations per bucket of `BUCKETS_S`; the last entry counts those above.
        total_s: Their sum.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    @property
    def num_observed(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class EngineMetrics:
    """Figures of one engine; written by its thread, read by any."""

    def __init__(self) -> None:
        """Starts at nothing."""
        self._lock = threading.Lock()
        self.counters: dict[str, int] = {}
        """Monotonic, by the names of `di_scheduler.Counters`."""
        self.gauges: dict[str, float] = {}
        """Of this moment, by the names of `di_scheduler.SchedulerStats`."""
        self.distributions: dict[str, Distribution] = {}
        """Seconds of finished requests: `compile` (of those with a grammar), `queue`, `prefill`,
        `time_to_first_token`, `time_per_output_token`."""
        self.speculation: SpecMetrics | None = None
        """Figures of drafts and their verification; None without speculation."""

    def count(self, name: str, amount: int) -> None:
        """Adds to a counter."""
        with self._lock:
            self.counters[name] = self.counters.get(name, 0) + amount

    def gauge(self, name: str, value: float) -> None:
        """Sets a gauge."""
        with self._lock:
            self.gauges[name] = value

    def observe(self, name: str, seconds: float | None) -> None:
        """Adds to a distribution; None is not an observation."""
        if seconds is None:
            return
        with self._lock:
            distribution = self.distributions.setdefault(name, Distribution())
            distribution.counts[bisect_left(BUCKETS_S, seconds)] += 1
            distribution.total_s += seconds


def prometheus_collector(metrics: EngineMetrics, namespace: str = "di") -> Any:
    """Returns a collector to register with a `prometheus_client.CollectorRegistry`.

    Raises:
        UnsupportedEnvironmentError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import core
    except ImportError as error:
        raise UnsupportedEnvironmentError(
            "serving metrics needs `prometheus-client`: install `di-engine[metrics]`"
        ) from error

    class Collector:
        def collect(self) -> Iterator[Any]:
            for name, value in sorted(metrics.counters.items()):
                yield core.CounterMetricFamily(f"{namespace}_{name}", name, value=value)
            for name, gauge in sorted(metrics.gauges.items()):
                yield core.GaugeMetricFamily(f"{namespace}_{name}", name, value=gauge)
            if metrics.speculation is not None:
                yield from _speculation_families(core, namespace, metrics.speculation)
            for name, distribution in sorted(metrics.distributions.items()):
                buckets, running = [], 0
                for bound, count in zip(
                    [*map(str, BUCKETS_S), "+Inf"], distribution.counts, strict=True
                ):
                    running += count
                    buckets.append((bound, running))
                yield core.HistogramMetricFamily(
                    f"{namespace}_{name}_seconds",
                    name,
                    buckets=buckets,
                    sum_value=distribution.total_s,
                )

    return Collector()


def _speculation_families(core: Any, namespace: str, figures: SpecMetrics) -> Iterator[Any]:
    """Counters of speculation; rates are left to whoever reads them."""
    for name, value in (
        ("request_steps", figures.num_request_steps),
        ("proposed", figures.num_proposed),
        ("verified", figures.num_verified),
        ("accepted", figures.num_accepted),
    ):
        family = f"{namespace}_speculation_{name}"
        yield core.CounterMetricFamily(family, f"{name} (drafts)", value=value)
    for name, values in (("verified", figures.verified_at), ("accepted", figures.accepted_at)):
        family = core.CounterMetricFamily(
            f"{namespace}_speculation_{name}_at_position",
            f"drafts {name}, by place in the block",
            labels=["position"],
        )
        for position, value in enumerate(values.tolist()):
            family.add_metric([str(position + 1)], value)
        yield family
