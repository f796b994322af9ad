"""`di inspect PATH`: what a checkpoint holds, and whether it is whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from di_engine.checkpoint import inspect_checkpoint
from di_engine.cli.app import app
from di_engine.cli.console import stderr, stdout

__all__ = ["inspect"]


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="Checkpoint directory, or `tiny`.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show architecture, sizes, problems and memory need of a checkpoint; reads headers only.

    The exit code is 1 if tensors are missing, unexpected or misshaped.
    """
    inspection = inspect_checkpoint(path)
    if as_json:
        sys.stdout.write(json.dumps(inspection.to_dict(), indent=2) + "\n")
    else:
        _print(inspection.to_dict())
    if inspection.problems:
        stderr.print(f"{len(inspection.problems)} problems with `{path}`", markup=False)
        raise typer.Exit(1)


def _print(values: dict[str, Any]) -> None:
    """Prints plain values: scalars in one table, each list or mapping in its own."""
    scalars = Table(show_header=False)
    for name, value in values.items():
        if not isinstance(value, dict | list):
            scalars.add_row(name, _text(value))
    stdout.print(scalars)
    for name, value in values.items():
        if isinstance(value, dict) and value:
            stdout.print(_mapping_table(name, value))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            stdout.print(_list_table(name, value))
        elif isinstance(value, list) and value:
            # Problems hold paths and tensor names: lines can be copied and searched, cells wrap.
            stdout.print(
                f"{name}:", *(f"  {_text(line)}" for line in value), sep="\n", markup=False
            )


def _mapping_table(name: str, values: dict[str, Any]) -> Table:
    if all(isinstance(value, dict) for value in values.values()):
        return _list_table(name, [{"": key, **value} for key, value in values.items()])
    table = Table(title=name, title_justify="left", show_header=False)
    for key, value in values.items():
        table.add_row(str(key), _text(value))
    return table


def _list_table(name: str, rows: list[dict[str, Any]]) -> Table:
    columns = list(rows[0])
    table = Table(*columns, title=name, title_justify="left")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    return table


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
