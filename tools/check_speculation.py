"""Checks that speculation changes no token: ``python tools/check_speculation.py --json``.

The requests are first run together without drafts, then with drafts of every length, together and
some of them alone: half of them greedy, half sampled with penalties and filters; drafts of a
quarter each forced right, wrong, half right, and the drafter's own; rows of every step thrown at
random and dealt out by confidence; prompts in chunks, shared prefixes from the cache, and so few
blocks that requests are preempted. Verification is coupled, `deterministic` is on, operations are
the reference ones. Exit code 0: every token is equal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from di_engine import EngineConfig, tiny
from di_engine.config import ModelConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.core.speculation_parts import DraftSource
from di_engine.testing.forced_drafts import ForcedDrafter, RandomRows
from di_engine.testing.request_mix import Arrival, Received, random_mix, run_mix

KINDS = ("right", "wrong", "half", "own")
COUNTERS = ("preempted", "cache_hits", "replayed_tokens", "snapshot_saves", "snapshot_restores")
ALONE = (0, 7)
"""Greedy with right drafts, sampled with the drafter's own."""
VOCAB_SIZE = ModelConfig.from_directory(tiny.directory()).vocab_size
progress = Console(stderr=True)


def kind_of(request_id: str) -> str:
    """Which drafts a request gets."""
    return KINDS[int(request_id[1:]) // 2 % len(KINDS)]


def is_right(request_id: str, position: int) -> bool | None:
    """Whether a draft of a request is its answer; None for the drafter's own."""
    kind = kind_of(request_id)
    if kind == "half":
        return position % 2 == 0
    return None if kind == "own" else kind == "right"


def make_mix(num_requests: int, num_tokens: int, vocab_size: int, prompt_len: int) -> list[Arrival]:
    """Requests of which most share a beginning; greedy and sampled ones in turn."""
    shared = [3 + (7 * i + i // 50) % (vocab_size - 3) for i in range(prompt_len)]
    mix = []
    for number in range(num_requests):
        (one,) = random_mix(
            1000 + number,
            vocab_size=vocab_size,
            num_requests=1,
            max_tokens=num_tokens,
            is_greedy=number % 2 == 0,
            ignores_eos=True,
        )
        prompt_ids = one.request.prompt_ids
        if number % 8 < 6:
            prompt_ids = np.concatenate([np.array(shared, np.int32), prompt_ids])
        request = replace(
            one.request,
            request_id=f"r{number}",
            prompt_ids=prompt_ids,
            sampling=replace(one.request.sampling, seed=number),
        )
        # Later ones meet the blocks that earlier ones have left.
        mix.append(Arrival(request, at_step=number * 9))
    return mix


def build(
    arithmetic: str,
    model_len: int,
    *,
    num_drafts: int = 0,
    answers: dict[str, Sequence[int]] | None = None,
    max_running: int = 16,
    num_blocks: int | None = None,
    seed: int = 0,
) -> EngineParts:
    """An engine, with forced drafts and random budgets where there are drafts."""
    settings: dict[str, Any] = {
        "model": "tiny",
        "device": "cpu",
        "arithmetic": arithmetic,
        "deterministic": True,
        "max_running": max_running,
        "max_model_len": model_len,
        "max_tokens_per_step": 128,
        "num_blocks": num_blocks,
        "snapshot_slots": 8,
        "log_every_steps": 0,
    }
    if num_drafts == 0:
        return assemble(EngineConfig.from_flat(**settings))
    config = EngineConfig.from_flat(
        **settings, drafter="dspark", num_draft_tokens=num_drafts, verification="coupled"
    )
    source = DraftSource(
        wrap=lambda inner: ForcedDrafter(answers or {}, num_drafts, VOCAB_SIZE, is_right, inner),
        row_budget=RandomRows(seed),
    )
    return assemble(config, draft_source=source)


def differences(want: dict[str, Received], got: dict[str, Received]) -> list[dict[str, Any]]:
    """First different token of each request; reasons and log-probabilities count too."""
    found = []
    for request_id, one in want.items():
        other = got[request_id]
        if one == other:
            continue
        pairs = zip(one.token_ids, other.token_ids, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        found.append({"request": request_id, "kind": kind_of(request_id), "first": place})
    return found


def check(
    name: str,
    parts: EngineParts,
    mixes: Sequence[list[Arrival]],
    want: dict[str, Received],
) -> dict[str, Any]:
    """Runs mixes one after another through an engine and compares."""
    began = time.perf_counter()
    got: dict[str, Received] = {}
    for mix in mixes:
        got |= run_mix(parts.engine, mix)
    wanted = {request_id: want[request_id] for request_id in got}
    figures = parts.metrics.speculation
    report: dict[str, Any] = {
        "run": name,
        "num_requests": len(got),
        "num_tokens": sum(len(one.token_ids) for one in got.values()),
        "num_cached_tokens": sum(one.num_cached_tokens for one in got.values()),
        "differences": differences(wanted, got),
        "counters": {k: v for k, v in parts.metrics.counters.items() if k in COUNTERS},
        "seconds": time.perf_counter() - began,
    }
    if figures is not None:
        report["speculation"] = figures.summary()
    return report


def main(
    num_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of each request.")] = 400,
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens that prompts share.")] = 600,
    batch: Annotated[int, typer.Option(min=1, help="Requests side by side.")] = 16,
    num_blocks: Annotated[int, typer.Option(min=9, help="Blocks of the batched runs.")] = 20,
    draft_lengths: Annotated[str, typer.Option(help="Draft lengths, with commas.")] = "0,1,2,3,4,5",
    arithmetic: Annotated[str, typer.Option(help="float32 or native.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
) -> None:
    """Compare outputs with and without speculation, token for token."""
    mix = make_mix(batch, num_tokens, VOCAB_SIZE, prompt_len)
    model_len = prompt_len + num_tokens + 8
    singles = [[replace(mix[number], at_step=0)] for number in ALONE if number < batch]
    progress.print(f"{batch} requests together, without drafts")
    want = run_mix(build(arithmetic, model_len, max_running=batch).engine, mix)
    answers: dict[str, Sequence[int]] = {
        request_id: got.token_ids for request_id, got in want.items()
    }
    num_runs = num_failed = 0
    for num_drafts in map(int, draft_lengths.split(",")):
        for name, size, blocks, mixes in (
            (f"{batch} together, {num_drafts} drafts", batch, num_blocks, [mix]),
            (f"alone, {num_drafts} drafts", 1, None, singles),
        ):
            parts = build(
                arithmetic,
                model_len,
                num_drafts=num_drafts,
                answers=answers,
                max_running=size,
                num_blocks=blocks,
                seed=num_drafts,
            )
            report = check(name, parts, mixes, want)
            progress.print(
                f"{name}: {report['num_tokens']} tokens, {len(report['differences'])} requests "
                f"differ, {report['seconds']:.0f} s"
            )
            num_runs += 1
            num_failed += bool(report["differences"])
            if as_json:
                sys.stdout.write(json.dumps({"arithmetic": arithmetic} | report) + "\n")
                sys.stdout.flush()
    if not as_json:
        Console().print(f"{num_runs} runs, {num_failed} with a different token")
    if num_failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
