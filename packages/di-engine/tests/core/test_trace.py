"""The step-time account, on a clock that only moves when somebody works or waits."""

import json
from pathlib import Path

import pytest

from di_engine.bench.simulated import bench_overlap
from di_engine.core.trace import StepTrace


class Clock:
    """Each reading costs the host some time; sleeping costs what it says."""

    def __init__(self, cost_s: float) -> None:
        self.now_s = 0.0
        self.cost_s = cost_s

    def __call__(self) -> float:
        self.now_s += self.cost_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def measure(cost_s: float, overlap: bool) -> dict[str, object]:
    clock = Clock(cost_s)
    account, _ = bench_overlap(
        forward_s=0.010,
        sampling_s=0.002,
        batch_size=3,
        num_steps=20,
        overlap=overlap,
        clock=clock,
        sleep=clock.sleep,
    )
    return account


def test_a_quick_host_is_hidden_behind_the_device() -> None:
    account = measure(0.0001, overlap=True)
    assert account["h1_fits"]
    assert account["h1_and_h2_fit"]
    assert account["device_idle_ms"] == pytest.approx(0.0, abs=1e-6)
    assert account["ratio"] == pytest.approx(1.0, abs=0.01)


def test_a_slow_host_shows_as_idle_device() -> None:
    account = measure(0.002, overlap=True)
    assert not account["h1_and_h2_fit"]
    assert account["device_idle_ms"] > 1.0  # type: ignore[operator]
    assert account["ratio"] > 1.05  # type: ignore[operator]


def test_without_overlap_the_device_waits_for_the_host() -> None:
    slow, quick = measure(0.0001, overlap=False), measure(0.0001, overlap=True)
    assert slow["device_idle_ms"] > 0.3  # type: ignore[operator]
    assert slow["ratio"] > quick["ratio"]  # type: ignore[operator]


def test_the_account_takes_h1_and_h2_from_the_order_of_a_turn() -> None:
    trace = StepTrace()
    for turn in range(4):
        start = 100.0 * turn
        trace.host_span("plan", 0, start, start + 1)
        trace.host_span("launch", turn + 1, start + 1, start + 4)
        trace.host_span("wait", turn, start + 4, start + 90)
        trace.host_span("account", turn, start + 90, start + 93)
        trace.host_span("sample", turn + 1, start + 93, start + 95)
        trace.device_span("forward", turn + 1, start + 4, start + 84)
        trace.device_span("sampling", turn + 1, start + 95, start + 100)
    account = trace.account()
    assert account["h1_ms"] == pytest.approx(5_000)
    assert account["h2_ms"] == pytest.approx(9_000)
    assert account["forward_ms"] == pytest.approx(80_000)
    assert account["h1_fits"]
    assert account["num_steps"] == 4


def test_the_file_is_a_chrome_trace(tmp_path: Path) -> None:
    trace = StepTrace()
    trace.host_span("launch", 3, 10.0, 10.5)
    trace.device_span("forward", 3, 10.25, 11.0)
    trace.write(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["args"]["step"]) for e in spans] == [
        ("launch", 0.0, 500_000.0, 3),
        ("forward", 250_000.0, 750_000.0, 3),
    ]
    names = {e["tid"]: e["args"]["name"] for e in content["traceEvents"] if e["ph"] == "M"}
    assert [names[e["tid"]] for e in spans] == ["host", "device"]
