"""What operators see: every figure moves, and prometheus-client serves it."""

import itertools

import pytest

from di_engine import SamplingParams
from di_engine.core.metrics import EngineMetrics, prometheus_collector
from di_engine.testing.counting_engine import CountingEngine


def run_two(counting: CountingEngine) -> list[dict[str, float]]:
    """Runs two requests that share a prefix; returns the gauges after every step."""
    params = SamplingParams(temperature=0, max_tokens=3)
    seen = []
    for _ in range(2):
        counting.requests.submit([50] * 200, params, 0)
        counting.requests.submit([50] * 200, params, 1)
        while counting.requests.has_unfinished:
            counting.requests.step()
            seen.append(dict(counting.metrics.gauges))
    return seen


def test_every_gauge_changes_in_a_test_of_two_requests() -> None:
    # sgl-project/sglang#37852
    counting = CountingEngine(overlap=True, prefix_cache=True, max_running=1)
    seen = [gauges for gauges in run_two(counting) if gauges]
    constant = {name for name in seen[0] if len({gauges[name] for gauges in seen}) == 1}
    # No snapshots without window layers.
    assert constant == {"blocks_total", "snapshots_total", "snapshots_cached"}
    counters = counting.metrics.counters
    assert counters["accepted"] == counters["finished"] == 4
    assert counters["output_tokens"] == 12
    assert counters["cache_hits"] > 0


def test_requests_know_their_times() -> None:
    ticks = itertools.count()
    counting = CountingEngine(clock=lambda: float(next(ticks)))
    state = counting.requests.submit([50], SamplingParams(temperature=0, max_tokens=4), 0)
    while counting.requests.has_unfinished:
        counting.requests.step()
    metrics = state.metrics
    assert metrics.started_s is not None
    assert metrics.time_to_first_token_s is not None
    assert metrics.num_output_tokens == 4
    assert metrics.time_per_output_token_s == pytest.approx(
        (metrics.finished_s - metrics.first_token_s) / 3  # type: ignore[operator]
    )


def test_prometheus_serves_them() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    metrics = EngineMetrics()
    metrics.count("finished", 2)
    metrics.gauge("running", 3)
    metrics.observe("queue", 0.02)
    metrics.observe("queue", 100.0)
    metrics.observe("queue", None)
    registry = prometheus_client.CollectorRegistry()
    registry.register(prometheus_collector(metrics))
    text = prometheus_client.generate_latest(registry).decode()
    assert "di_finished_total 2.0" in text
    assert "di_running 3.0" in text
    assert 'di_queue_seconds_bucket{le="0.025"} 1.0' in text
    assert 'di_queue_seconds_bucket{le="+Inf"} 2.0' in text
    assert "di_queue_seconds_sum 100.02" in text
