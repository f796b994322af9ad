"""Command line: what budget policies earn under load, and what coupled verification costs."""

import argparse
import json
import sys
from collections.abc import Sequence

from di_spec.simulation import acceptance_by_rule, compare_policies

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m di_spec", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    simulate = commands.add_parser(
        "simulate", help="compare fixed and adaptive verification on a simulated engine"
    )
    simulate.add_argument(
        "--requests",
        type=int,
        nargs="+",
        default=[1, 8, 16, 60],
        help="numbers of concurrent requests (default 1 8 16 60)",
    )
    simulate.add_argument("--seed", type=int, default=0, help="seed of the trace (default 0)")
    simulate.add_argument("--json", action="store_true", help="print JSON instead of a table")
    acceptance = commands.add_parser(
        "acceptance", help="accepted share of drafts under the ratio test and under coupling"
    )
    acceptance.add_argument("--vocab", type=int, default=1000, help="tokens (default 1000)")
    acceptance.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.command == "acceptance":
        return _acceptance(options.vocab, options.json)
    if min(options.requests) < 1:
        parser.error(f"--requests must be at least 1: got {min(options.requests)}")
    return _simulate(options)


def _simulate(options: argparse.Namespace) -> int:
    rows = compare_policies(options.requests, seed=options.seed)
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(
        f"{'requests':>8} {'verify':>9} {'drafts/step':>12} {'accepted len':>13} {'tokens/s':>10}"
    )
    for row in rows:
        print(
            f"{row['requests']:8d} {row['policy']:>9} {row['verified_per_step']:12.1f} "
            f"{row['accepted_length']:13.2f} {row['tokens_per_s']:10.0f}"
        )
    return 0


def _acceptance(vocab_size: int, as_json: bool) -> int:
    rows = acceptance_by_rule(vocab_size)
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'drafter error':>13} {'ratio test':>11} {'coupled':>8} {'own noise':>10}")
    for row in rows:
        print(
            f"{row['logit_error']:13.2f} {row['ratio']:11.3f} {row['coupled']:8.3f} "
            f"{row['independent']:10.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
