"""`di bench decode|prefill`: tokens per second and where the time goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.table import Table

from di_engine.bench import BenchSettings, bench_decode, bench_prefill
from di_engine.cli.app import app
from di_engine.cli.console import load_progress, note, stdout
from di_engine.cli.engine_options import with_engine_options
from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, assemble

__all__ = ["decode", "prefill"]

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
    _run(bench_decode, settings, config, as_json, quiet)


@bench_app.command()
@with_engine_options
def prefill(
    batch_size: _BatchSize = None,
    prompt_len: _PromptLen = 512,
    num_repeats: _NumRepeats = 5,
    num_warmup: _NumWarmup = 1,
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
    _run(bench_prefill, settings, config, as_json, quiet)


def _run(
    bench: Callable[[EngineParts, BenchSettings], dict[str, Any]],
    settings: list[BenchSettings],
    config: EngineConfig,
    as_json: bool,
    quiet: bool,
) -> None:
    note(f"loading `{config.model.path}`", quiet)
    with load_progress(quiet) as progress:
        parts = assemble(config, progress)
    for one in settings:
        note(f"measuring batch size {one.batch_size}", quiet)
        result = bench(parts, one)
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
