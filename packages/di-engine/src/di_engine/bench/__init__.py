"""Benchmarks of the whole engine. Each is a function that returns plain values for JSON."""

from di_engine.bench.agents import AgentSettings, bench_agents
from di_engine.bench.determinism import check_determinism
from di_engine.bench.simulated import bench_overlap
from di_engine.bench.speculation import SpeculationSettings, bench_speculation
from di_engine.bench.speculation_figure import draw_speculation
from di_engine.bench.structured import StructuredSettings, bench_structured
from di_engine.bench.throughput import BenchSettings, bench_decode, bench_prefill

__all__ = [
    "AgentSettings",
    "BenchSettings",
    "SpeculationSettings",
    "StructuredSettings",
    "bench_agents",
    "bench_decode",
    "bench_overlap",
    "bench_prefill",
    "bench_speculation",
    "bench_structured",
    "check_determinism",
    "draw_speculation",
]
