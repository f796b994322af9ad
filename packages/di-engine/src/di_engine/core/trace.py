"""What host and device did in each step: a Chrome trace and a step-time account.

With `T_F` and `T_S` the device times of forward pass and sampling, `H1` the host time from the end
of the wait for a step to the end of enqueuing the next one's sampling, and `H2` from there to the
end of enqueuing the forward pass behind it, the device is never idle if `H1 <= T_F` and
`H1 + H2 <= T_F + T_S`.
"""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from di_engine.core.step_timer import Span

__all__ = ["DeviceSpan", "StepTrace"]

DeviceSpan = Literal["forward", "sampling"]

_HOST, _DEVICE, _COMPILE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class _Record:
    track: int
    name: str
    step_id: int
    begin_s: float
    end_s: float


class StepTrace:
    """Collects the spans of an engine; give it to `StepTimer` as its sink."""

    def __init__(self) -> None:
        """Starts empty."""
        self._records: list[_Record] = []

    def host_span(self, span: Span, step_id: int, begin_s: float, end_s: float) -> None:
        """Takes what the host did."""
        self._records.append(_Record(_HOST, span, step_id, begin_s, end_s))

    def device_span(self, span: DeviceSpan, step_id: int, begin_s: float, end_s: float) -> None:
        """Takes what the device did, on the same clock."""
        self._records.append(_Record(_DEVICE, span, step_id, begin_s, end_s))

    def compile_span(self, name: str, begin_s: float, end_s: float) -> None:
        """Takes what was compiled beside the steps, on the same clock."""
        self._records.append(_Record(_COMPILE, name, 0, begin_s, end_s))

    def clear(self) -> None:
        """Forgets every span."""
        self._records.clear()

    def write(self, path: str | Path) -> None:
        """Writes a file that Chrome's and Perfetto's trace viewers read."""
        start = min((record.begin_s for record in self._records), default=0.0)
        names = {_HOST: "host", _DEVICE: "device", _COMPILE: "grammar"}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
            for track, name in names.items()
        ]
        events += [
            {
                "ph": "X",
                "pid": 1,
                "tid": record.track,
                "name": record.name,
                "ts": (record.begin_s - start) * 1e6,
                "dur": (record.end_s - record.begin_s) * 1e6,
                "args": {"step": record.step_id},
            }
            for record in self._records
        ]
        content = {"traceEvents": events, "displayTimeUnit": "ms", "account": self.account()}
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    def account(self) -> dict[str, Any]:
        """Returns medians over the steps, in milliseconds.

        Returns:
            `host_ms` by span; `h1_ms` and `h2_ms` where steps overlap; with device spans also
            `forward_ms`, `sampling_ms`, `device_idle_ms` between two steps, and whether the two
            conditions hold.
        """
        account: dict[str, Any] = {
            "num_steps": len({r.step_id for r in self._of(_HOST, "launch")}),
            "host_ms": {
                name: _median_ms([r.end_s - r.begin_s for r in self._of(_HOST, name)])
                for name in dict.fromkeys(r.name for r in self._records if r.track == _HOST)
            },
        }
        h1, h2 = self._host_times()
        account |= {"h1_ms": _median_ms(h1), "h2_ms": _median_ms(h2)}
        forward, sampling = self._of(_DEVICE, "forward"), self._of(_DEVICE, "sampling")
        if forward and sampling and account["h1_ms"] is not None:
            t_f = _median_ms([r.end_s - r.begin_s for r in forward])
            t_s = _median_ms([r.end_s - r.begin_s for r in sampling])
            assert t_f is not None, "there is a forward span"
            assert t_s is not None, "there is a sampling span"
            device = sorted([*forward, *sampling], key=lambda record: record.begin_s)
            gaps = [b.begin_s - a.end_s for a, b in itertools.pairwise(device)]
            both = account["h1_ms"] + (account["h2_ms"] or 0.0)
            account |= {
                "forward_ms": t_f,
                "sampling_ms": t_s,
                "device_idle_ms": 1e3 * sum(gaps) / len(forward),
                "h1_fits": account["h1_ms"] <= t_f,
                "h1_and_h2_fit": both <= t_f + t_s,
            }
        return account

    def _of(self, track: int, name: str) -> list[_Record]:
        return [r for r in self._records if r.track == track and r.name == name]

    def _host_times(self) -> tuple[list[float], list[float]]:
        """H1 of every step whose predecessor was waited for, and the H2 after each sampling."""
        h1: list[float] = []
        h2: list[float] = []
        waited_s = sampled_s = None
        for record in self._records:
            if record.track != _HOST:
                continue
            if record.name == "wait":
                waited_s = record.end_s
            elif record.name == "sample":
                if waited_s is not None:
                    h1.append(record.end_s - waited_s)
                sampled_s, waited_s = record.end_s, None
            elif record.name == "launch":
                if sampled_s is not None and waited_s is None:
                    h2.append(record.end_s - sampled_s)
                sampled_s = None
        return h1, h2


def _median_ms(seconds: list[float]) -> float | None:
    return statistics.median(seconds) * 1e3 if seconds else None
