"""Command line of the package: `python -m di_scheduler bench`, `... trace` and `... soak`."""

import argparse
import json
import platform
import sys
from collections.abc import Sequence

import numpy as np

import di_scheduler
from di_scheduler.bench import measure_host_cost, run_soak, run_trace
from di_scheduler.bench.agent_trace import MODES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parser().parse_args(arguments)
    results: list[dict[str, object]]
    if options.command == "bench":
        results = [
            measure_host_cost(options.requests, options.rows, options.steps, overlapped).as_dict()
            for overlapped in (False, True)
        ]
    elif options.command == "soak":
        results = [run_soak(options.steps, options.seed).as_dict()]
    else:
        modes = MODES if options.mode is None else (options.mode,)
        results = [run_trace(mode, options.sessions, options.turns).as_dict() for mode in modes]
    if options.json:
        print(json.dumps({"environment": _environment(), "results": results}, indent=2))
        return 0
    for result in results:
        print(*(f"{name}={value}" for name, value in result.items()))
    return 0


def _environment() -> dict[str, str]:
    return {
        "di_scheduler": di_scheduler.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m di_scheduler", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="host time of plan and commit in steady decode")
    bench.add_argument("--requests", type=int, default=256, help="running requests (256)")
    bench.add_argument("--rows", type=int, default=6, help="rows per request and step (6)")
    bench.add_argument("--steps", type=int, default=400, help="steps to measure (400)")
    trace = commands.add_parser("trace", help="what the prefix cache saves on an agent trace")
    trace.add_argument("--mode", choices=MODES, help="one mode only (default: all)")
    trace.add_argument("--sessions", type=int, default=32, help="agents (32)")
    trace.add_argument("--turns", type=int, default=8, help="requests per agent (8)")
    soak = commands.add_parser("soak", help="a long random trace; fails if anything is lost")
    soak.add_argument("--steps", type=int, default=100_000, help="turns of the loop (100000)")
    soak.add_argument("--seed", type=int, default=0, help="seed of the trace (0)")
    for command in (bench, trace, soak):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
