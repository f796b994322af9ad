"""`di bench structured`: time to first token while a grammar compiles."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from di_engine.bench.structured import StructuredSettings, bench_structured
from di_engine.cli.bench import bench_app
from di_engine.cli.console import note, stdout
from di_engine.cli.engine_options import with_engine_options
from di_engine.config import EngineConfig
from di_engine.core.trace import StepTrace
from di_engine.llm.output_schema import import_structured

__all__ = ["structured"]


@bench_app.command()
@with_engine_options
def structured(
    compile_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds that the slow grammar compiles alone.")
    ] = 5.0,
    num_rounds: Annotated[int, typer.Option(min=1, help="Slow grammars, one by one.")] = 3,
    prompt_len: Annotated[int, typer.Option(min=1, help="Prompt tokens of the others.")] = 64,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens of each of the others.")] = 8,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write a Chrome trace of steps and compiles.", dir_okay=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No notes.")] = False,
    *,
    config: EngineConfig,
) -> None:
    """Measure unconstrained requests with and without a grammar compiling beside them."""
    import_structured()
    note("timing a grammar alone, then beside requests", quiet)
    spans = None if trace is None else StepTrace()
    settings = StructuredSettings(compile_s, num_rounds, prompt_len, output_len)
    result = bench_structured(config, settings, spans)
    if spans is not None and trace is not None:
        spans.write(trace)
        note(f"wrote `{trace}`", quiet)
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        stdout.print(result)
