"""Command line: `python -m di_structured bench` measures filling against xgrammar's calls."""

import argparse
import json
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m di_structured", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="time to fill masks, against the same xgrammar calls")
    for name, default, what in (
        ("requests", 64, "requests in a step"),
        ("drafts", 5, "drafts of each request"),
        ("vocab-size", 129_280, "tokens of the synthetic vocabulary"),
        ("repeats", 15, "steps measured on each side"),
    ):
        bench.add_argument(
            f"--{name}", type=int, default=default, help=f"{what} (default {default})"
        )
    bench.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default 1 2)"
    )
    bench.add_argument("--workloads", nargs="+", help="workloads to run (default all)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    least = min(options.requests, options.vocab_size // 1000, options.repeats, *options.threads)
    if least < 1 or options.drafts < 0:
        parser.error("counts must be at least 1, drafts at least 0, the vocabulary at least 1000")

    from di_structured.bench import WORKLOADS, run

    names = options.workloads or list(WORKLOADS)
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"unknown workloads {unknown}; there are {list(WORKLOADS)}")
    report = run(
        workloads=names,
        num_requests=options.requests,
        num_drafts=options.drafts,
        vocab_size=options.vocab_size,
        threads=options.threads,
        repeats=options.repeats,
    )
    if options.json:
        print(json.dumps(report, indent=2))
        return 0
    print(
        f"{'workload':>12} {'threads':>7} {'rows':>5} {'time':>9} {'us/row':>8} {'xgrammar':>8} "
        f"{'ratio':>6} {'added':>7}"
    )
    for row in report["results"]:
        for clock in ("wall", "processor"):
            part = row[clock]
            print(
                f"{row['workload']:>12} {row['threads']:7d} {row['rows']:5d} {clock:>9} "
                f"{part['us_per_row']['median']:8.2f} {part['xgrammar_us_per_row']['median']:8.2f} "
                f"{part['ratio']:6.3f} {part['added_us_per_row']:7.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
