"""Compares what follows a prompt cold and warm, for every length of the part that is cached.

    python tools/check_prefix_hits.py --json

A small model with every mechanism and random weights runs in float32: a window of 8 and 6 layers,
so that a prompt of 520 tokens is far longer than an exact replay of 42. For each number of leading
tokens, another prompt that shares them is run first, under a salt of its own; then the prompt, and
the log-probabilities of all tokens behind it and behind two more are compared with the cold ones.
Exits with 1 if any differ by more than 1e-4, or if the approximate replay does not: it shows that
a difference would be seen.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from di_engine import EngineConfig
from di_engine.core.assembly import assemble
from di_engine.core.engine import Engine
from di_engine.runner.request import EngineRequest, LogprobsSpec
from di_engine.testing.small_model import VOCAB_SIZE, small_config
from di_spec.sampling import SamplingParams

LIMIT = 1e-4
NUM_TOKENS = 3
MODES: dict[str, dict[str, object]] = {
    "snapshots": {"snapshot_slots": 16},
    "exact replay": {"snapshot_slots": 0},
    "snapshots, truncated prefill": {"snapshot_slots": 16, "truncation": "compact"},
    "approximate replay": {"snapshot_slots": 0, "replay": "approximate"},
}

Rows = npt.NDArray[np.float64]


def main() -> int:
    """Checks every mode; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=520, help="tokens of the prompt (520)")
    parser.add_argument("--step", type=int, default=1, help="try every n-th length (1)")
    parser.add_argument("--json", action="store_true", help="one line of JSON per mode")
    options = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(small_config()), encoding="utf-8")
        for mode, fields in MODES.items():
            report = check(directory, fields, options.length, options.step)
            is_exact = fields.get("replay") != "approximate"
            is_good &= (report["largest_difference"] <= LIMIT) is is_exact
            line = {"mode": mode, **report}
            words = ", ".join(f"{name} {value}" for name, value in line.items())
            sys.stdout.write((json.dumps(line) if options.json else words) + "\n")
            sys.stdout.flush()
    return int(not is_good)


def check(directory: str, fields: dict[str, object], length: int, step: int) -> dict[str, float]:
    """Largest difference of any hit length in one mode, and how much was found in the cache."""
    values: dict[str, object] = {
        "model": directory,
        "load_format": "dummy",
        "arithmetic": "float32",
        "max_running": 2,
        "max_model_len": 1024,
        "num_blocks": 64,
        "device": "cpu",
    }
    engine = assemble(EngineConfig.from_flat(**values, **fields)).engine
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, VOCAB_SIZE, length)
    cold, _ = ask(engine, prompt, b"cold")
    largest, at, found, num_lengths = 0.0, -1, 0, 0
    for shared in range(0, length + 1, step):
        salt = str(shared).encode()
        other = np.concatenate((prompt[:shared], rng.integers(3, VOCAB_SIZE, 9)))
        ask(engine, other, salt, num_tokens=1)
        warm, num_cached = ask(engine, prompt, salt)
        difference = float(np.abs(warm - cold).max())
        if difference > largest:
            largest, at = difference, shared
        found += num_cached > 0
        num_lengths += 1
    return {
        "num_lengths": num_lengths,
        "num_with_hit": found,
        "largest_difference": largest,
        "at_length": at,
    }


def ask(
    engine: Engine, prompt: npt.NDArray[np.int64], salt: bytes, num_tokens: int = NUM_TOKENS
) -> tuple[Rows, int]:
    """Log-probabilities of all tokens behind a prompt and its greedy tokens; cached tokens."""
    engine.add(
        EngineRequest(
            request_id="r",
            prompt_ids=prompt.astype(np.int32),
            sampling=SamplingParams(temperature=0),
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=LogprobsSpec(VOCAB_SIZE),
            cache_salt=salt,
        )
    )
    rows, num_cached = [], 0
    while engine.has_work:
        for event in engine.step():
            num_cached = max(num_cached, event.num_cached_tokens)
            for entry in event.logprobs or []:
                row = np.empty(VOCAB_SIZE)
                row[entry.top_ids] = entry.top_logprobs
                rows.append(row)
    return np.array(rows), num_cached


if __name__ == "__main__":
    sys.exit(main())
