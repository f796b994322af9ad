"""The scheduler alone: host time per step, what the prefix cache saves, and a long soak."""

from di_scheduler.bench.agent_trace import run_trace
from di_scheduler.bench.host_cost import measure_host_cost
from di_scheduler.bench.soak import run_soak

__all__ = ["measure_host_cost", "run_soak", "run_trace"]
