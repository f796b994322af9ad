"""Measurements of the scheduler alone: host time per step, and what the prefix cache saves."""

from di_scheduler.bench.agent_trace import run_trace
from di_scheduler.bench.host_cost import measure_host_cost

__all__ = ["measure_host_cost", "run_trace"]
