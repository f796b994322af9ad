"""`di bench decode|prefill|overlap|agents|determinism`: speed, where the time goes, same tokens."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from di_engine.bench import (
    AgentSettings,
    BenchSettings,
    bench_agents,
    bench_decode,
    bench_overlap,
    bench_prefill,
    check_determinism,
)
from di_engine.bench.agents import MODES
from di_engine.bench.determinism import describe
from di_engine.cli.app import app
from di_engine.cli.console import load_progress, note, stdout
from di_engine.cli.engine_options import with_engine_options
from di_engine.cli.prompt_files import read_requests
from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.core.trace import StepTrace

__all__ = ["agents", "decode", "determinism", "overlap", "prefill"]

bench_app = typer.Typer(help="Measure the engine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

_BatchSize = Annotated[
    list[int] | None,
    typer.Option(
        "--batch-size", "-b", help="Requests side by side; may be repeated.", show_default="1"
    ),
]
_PromptLen = Annotated[int, typer.Option(min=1, help="Prompt tokens of each request.")]
_NumRepeats = Annotated[int, typer.Option(min=1, help="Repetitions; the median counts.")]
_NumWarmup = Annotated[int, typer.Option(min=0, help="Steps or repetitions before measuring.")]
_AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per batch size.")]
_Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="Write a Chrome trace of the steps, of the last batch size.", dir_okay=False
    ),
]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")]


@bench_app.command()
@with_engine_options
def decode(
    batch_size: _BatchSize = None,
    prompt_len: _PromptLen = 64,
    num_steps: Annotated[int, typer.Option(min=1, help="Decode steps of a repetition.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="Of every request; 0 is greedy.")] = 0.0,
    num_repeats: _NumRepeats = 5,
    num_warmup: _NumWarmup = 4,
    trace: _Trace = None,
    as_json: _AsJson = False,
    quiet: _Quiet = False,
    *,
    config: EngineConfig,
) -> None:
    """Measure decode steps, in which every request makes one token."""
    settings = [
        BenchSettings(size, prompt_len, num_steps, num_warmup, num_repeats, temperature)
        for size in batch_size or [1]
    ]
    _run(bench_decode, settings, config, trace, as_json, quiet)


@bench_app.command()
@with_engine_options
def prefill(
    batch_size: _BatchSize = None,
    prompt_len: _PromptLen = 512,
    num_repeats: _NumRepeats = 5,
    num_warmup: _NumWarmup = 1,
    trace: _Trace = None,
    as_json: _AsJson = False,
    quiet: _Quiet = False,
    *,
    config: EngineConfig,
) -> None:
    """Measure prompts, from submission to the first token."""
    settings = [
        BenchSettings(size, prompt_len, num_steps=1, num_warmup=num_warmup, num_repeats=num_repeats)
        for size in batch_size or [1]
    ]
    _run(bench_prefill, settings, config, trace, as_json, quiet)


@bench_app.command()
def overlap(
    forward_ms: Annotated[float, typer.Option(min=0, help="Device time of a forward pass.")] = 20.0,
    sampling_ms: Annotated[float, typer.Option(min=0, help="Device time of sampling.")] = 3.0,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Requests.")] = 256,
    num_steps: Annotated[int, typer.Option(min=1, help="Decode steps to measure.")] = 100,
    trace: _Trace = None,
    as_json: _AsJson = False,
) -> None:
    """Measure the host against a simulated device of fixed speed, without a model."""
    for is_overlapped in (False, True):
        account, spans = bench_overlap(
            forward_s=forward_ms / 1e3,
            sampling_s=sampling_ms / 1e3,
            batch_size=batch_size,
            num_steps=num_steps,
            overlap=is_overlapped,
        )
        if as_json:
            sys.stdout.write(json.dumps(account) + "\n")
        else:
            stdout.print(account)
        if trace is not None:
            spans.write(trace)


@bench_app.command()
@with_engine_options
def determinism(
    prompts: Annotated[
        Path,
        typer.Option("--prompts", help="One prompt per line; JSON values in a `.jsonl` file."),
    ],
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each.")] = 32,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    as_json: _AsJson = False,
    *,
    config: EngineConfig,
) -> None:
    """Run each prompt alone, again, in company and re-chunked; print the first different token."""
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": config.seed}
    requests = read_requests([], prompts, sampling)
    texts = [request.prompt for request in requests]
    params = [request.sampling for request in requests]
    if prompts.suffix != ".jsonl":
        texts = [line for text in texts for line in text.splitlines() if line.strip()]
        params = [sampling] * len(texts)
    report = check_determinism(config, texts, params)
    sys.stdout.write((json.dumps(report) if as_json else describe(report)) + "\n")
    if report["differences"]:
        raise typer.Exit(1)


@bench_app.command()
@with_engine_options
def agents(
    num_sessions: Annotated[int, typer.Option(min=1, help="Agents side by side.")] = 3,
    num_turns: Annotated[int, typer.Option(min=1, help="Requests of each.")] = 4,
    system_len: Annotated[int, typer.Option(min=1, help="Tokens that all begin with.")] = 1500,
    turn_len: Annotated[
        int, typer.Option(min=1, help="Tokens that a turn adds, give or take a half.")
    ] = 300,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 32,
    as_json: _AsJson = False,
    quiet: _Quiet = False,
    *,
    config: EngineConfig,
) -> None:
    """Measure what the prefix cache saves in multi-turn conversations, in each mode."""
    settings = AgentSettings(num_sessions, num_turns, system_len, turn_len, output_len)
    for mode in MODES:
        note(f"playing the trace: {mode}", quiet)
        result = bench_agents(config, settings, mode)
        if as_json:
            sys.stdout.write(json.dumps(result) + "\n")
        else:
            stdout.print(result)


def _run(
    bench: Callable[[EngineParts, BenchSettings, StepTrace | None], dict[str, Any]],
    settings: list[BenchSettings],
    config: EngineConfig,
    trace_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    note(f"loading `{config.model.path}`", quiet)
    with load_progress(quiet) as progress:
        parts = assemble(config, progress)
    for one in settings:
        note(f"measuring batch size {one.batch_size}", quiet)
        trace = None if trace_file is None else StepTrace()
        result = bench(parts, one, trace)
        if trace is not None and trace_file is not None:
            result["account"] = trace.account()
            trace.write(trace_file)
            note(f"wrote `{trace_file}`", quiet)
        if as_json:
            sys.stdout.write(json.dumps(result) + "\n")
        else:
            _print(result)


def _print(result: dict[str, Any]) -> None:
    rate, step, floor = result["tokens_per_s"], result["step_ms"], result["floor"]
    table = Table(
        title=f"{result['benchmark']}, batch size {result['batch_size']}, prompt "
        f"{result['prompt_len']}, {result['arithmetic']} on {result['device']}",
        title_justify="left",
        show_header=False,
    )
    table.add_row(
        "tokens per second", f"{rate['median']:,.1f} ({rate['min']:,.1f} to {rate['max']:,.1f})"
    )
    table.add_row("step", f"{step['total']:.3f} ms")
    for phase in ("schedule", "model", "sample", "other"):
        share = step[phase] / step["total"]
        table.add_row(f"  {phase}", f"{step[phase]:.3f} ms ({share:.0%})")
    table.add_row(
        "floor", f"{floor['floor_ms']:.3f} ms, measured is {floor['ratio']:.1f} times that"
    )
    for name, count in result["memory"].items():
        table.add_row(name.removesuffix("_bytes").replace("_", " "), f"{count:,} bytes")
    stdout.print(table)
