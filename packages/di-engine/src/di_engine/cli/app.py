"""The command `di` and its exit codes: 0 good, 1 run failed, 2 wrong use, 3 unsupported machine."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

import di_engine
from di_engine.cli.console import stderr
from di_engine.errors import EngineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="di",
    help="Run DeepSeek-V4.1 models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"di-engine {di_engine.__version__}")
        raise typer.Exit


@app.callback()
def set_up(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    log_level: Annotated[
        str, typer.Option(help="Least severity of log lines on standard error.")
    ] = "warning",
) -> None:
    """Run DeepSeek-V4.1 models."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(
            f"must be debug, info, warning, error or critical: got {log_level}",
            param_hint="--log-level",
        )
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", force=True)


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    # The commands register themselves with `app`.
    from di_engine.cli import (  # noqa: F401
        bench,
        bench_speculation,
        bench_structured,
        doctor,
        generate,
        inspect,
    )

    try:
        app()
    except EngineError as error:
        stderr.print(f"{type(error).__name__}: {error}", markup=False, highlight=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stderr.print("interrupted", markup=False)
        sys.exit(1)
