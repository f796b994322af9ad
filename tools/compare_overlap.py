"""Decode steps with and without overlap, in turns, so that a busy machine disturbs both alike.

On a CPU the device is the host: nothing can run side by side there, and the comparison shows what
the overlapped loop costs, in processor time. Elsewhere it is the time by the clock.

    python tools/compare_overlap.py --num-turns 8 --json
"""

import argparse
import json
import statistics
import sys
import time

from di_engine import EngineConfig
from di_engine.bench import BenchSettings, bench_decode
from di_engine.core.assembly import EngineParts, assemble
from di_engine.core.step_timer import StepTimer


def main() -> int:
    """Prints steps of both loops and their ratio."""
    options = _options()
    settings = BenchSettings(options.batch_size, options.prompt_len, options.num_steps, 2, 1)
    loops = {overlap: _assemble(options, overlap) for overlap in (False, True)}
    step_ms: dict[bool, list[float]] = {overlap: [] for overlap in loops}
    for turn in range(options.num_turns + 1):
        # The order alternates, and the first turn warms up.
        for overlap in (False, True) if turn % 2 else (True, False):
            result = bench_decode(loops[overlap], settings)
            if turn:
                step_ms[overlap].append(result["step_ms"]["total"])
    ratios = [with_ / without for without, with_ in zip(*step_ms.values(), strict=True)]
    report = {
        "model": options.model,
        "batch_size": options.batch_size,
        "num_turns": options.num_turns,
        "step_ms_without_overlap": statistics.median(step_ms[False]),
        "step_ms_with_overlap": statistics.median(step_ms[True]),
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }
    sys.stdout.write(json.dumps(report, indent=None if options.json else 2) + "\n")
    return 0


def _assemble(options: argparse.Namespace, overlap: bool) -> EngineParts:
    config = EngineConfig.from_flat(
        model=options.model,
        overlap=overlap,
        max_running=options.batch_size,
        arithmetic=options.arithmetic,
        device=options.device,
    )
    parts = assemble(config)
    if parts.device.platform.name == "cpu":
        parts.engine.timer = StepTimer(time.process_time)
    return parts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="checkpoint directory (tiny)")
    parser.add_argument("--device", default="cpu", help="device (cpu)")
    parser.add_argument("--arithmetic", default="native", help="arithmetic (native)")
    parser.add_argument("--batch-size", type=int, default=8, help="requests side by side (8)")
    parser.add_argument("--prompt-len", type=int, default=64, help="tokens of each prompt (64)")
    parser.add_argument("--num-steps", type=int, default=24, help="steps of one turn (24)")
    parser.add_argument("--num-turns", type=int, default=8, help="turns of each loop (8)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
