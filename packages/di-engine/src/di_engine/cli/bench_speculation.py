"""`di bench spec`: what speculation brings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from di_engine.bench import SpeculationSettings, bench_speculation, draw_speculation
from di_engine.cli.bench import bench_app
from di_engine.cli.console import note, stdout
from di_engine.cli.engine_options import with_engine_options
from di_engine.config import EngineConfig

__all__ = ["spec"]


@bench_app.command()
@with_engine_options
def spec(
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            "--batch-size", "-b", help="Requests side by side; may be repeated.", show_default="1"
        ),
    ] = None,
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens of random prompts.")] = 64,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="One prompt per line, in place of random ones.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    num_tokens: Annotated[int, typer.Option(min=2, help="Output tokens of each request.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="Of every request; 0 is greedy.")] = 0.0,
    num_repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the median counts.")] = 3,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", help="Write a PNG, of the last batch size.", dir_okay=False),
    ] = None,
    save_calibration: Annotated[
        Path | None,
        typer.Option(
            "--save-calibration",
            help="Fit temperatures to what was accepted, for `--calibration`.",
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per batch size.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
    *,
    config: EngineConfig,
) -> None:
    """Measure acceptance and speed of drafts (`--drafter dspark` or `ngram`), with and without."""
    texts: list[str] = []
    if prompts is not None:
        texts = [line for line in prompts.read_text("utf-8").splitlines() if line.strip()]
    for size in batch_size or [1]:
        note(f"measuring batch size {size}", quiet)
        settings = SpeculationSettings(size, num_tokens, temperature, num_repeats, prompt_len)
        report = bench_speculation(config, settings, texts, save_calibration)
        if figure is not None:
            draw_speculation(report, figure)
            note(f"wrote `{figure}`", quiet)
        if as_json:
            sys.stdout.write(json.dumps(report) + "\n")
        else:
            _print(report)


def _print(report: dict[str, Any]) -> None:
    rates = report["tokens_per_s"]
    table = Table(
        title=f"{report['drafter']}, {report['num_draft_tokens']} drafts, "
        f"{report['verification']}, budget {report['budget']}, batch size {report['batch_size']}, "
        f"temperature {report['temperature']}, prompts: {report['prompts']}",
        title_justify="left",
        show_header=False,
    )
    for name in ("plain", "speculative"):
        rate = rates[name]
        spread = f"{rate['median']:,.1f} ({rate['min']:,.1f} to {rate['max']:,.1f})"
        table.add_row(f"tokens per second, {name}", spread)
    table.add_row("ratio", f"{rates['ratio']:.2f}")
    table.add_row("requests with equal tokens", f"{report['share_of_equal_outputs']:.0%}")
    for name in ("accepted_length", "rows_per_request", "useful_rows", "budget_use"):
        table.add_row(name.replace("_", " "), _number(report[name]))
    for name in ("expected_accepted", "observed_accepted", "confidence_error"):
        table.add_row(name.replace("_", " "), _number(report[name]))
    for name in ("acceptance_at", "conditional_acceptance_at"):
        table.add_row(name.replace("_", " "), "  ".join(map(_number, report[name])))
    table.add_row("accepted drafts 0..K", "  ".join(map(str, report["accepted_histogram"])))
    rows = report["rows_per_step"].items()
    table.add_row("rows of a step: steps", "  ".join(f"{count}: {steps}" for count, steps in rows))
    stdout.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
