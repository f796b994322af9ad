"""`di doctor`: device, versions, kernels, configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.table import Table

from di_engine.cli.app import app
from di_engine.cli.console import stdout
from di_engine.cli.engine_options import with_engine_options
from di_engine.config import EngineConfig
from di_engine.doctor import Diagnosis, diagnose
from di_engine.errors import UnsupportedEnvironmentError

__all__ = ["doctor"]


@app.command()
@with_engine_options
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    *,
    config: EngineConfig,
) -> None:
    """Show the device, versions, which backend serves each op, and every configuration value."""
    diagnosis = diagnose(config)
    if as_json:
        sys.stdout.write(json.dumps(diagnosis.to_dict(), indent=2) + "\n")
    else:
        _print(diagnosis)
    if diagnosis.device_problem:
        raise UnsupportedEnvironmentError(diagnosis.device_problem)


def _print(diagnosis: Diagnosis) -> None:
    _print_pairs("Device", diagnosis.device or {"problem": diagnosis.device_problem})
    _print_pairs("Platforms (usable devices)", diagnosis.platforms)
    _print_pairs("Host", diagnosis.host)
    _print_pairs(
        "Versions",
        {name: version or "not installed" for name, version in diagnosis.versions.items()},
    )
    kernels = Table("op", "backend", "bits", "verified", title="Kernels", title_justify="left")
    for service in diagnosis.kernels:
        kernels.add_row(
            service["op"],
            service["backend"],
            service["determinism"].replace("_", " "),
            "yes" if service["is_verified"] else "no",
        )
    stdout.print(kernels)
    values = Table("name", "value", "origin", title="Configuration", title_justify="left")
    for entry in diagnosis.config:
        values.add_row(entry.name, "" if entry.value is None else str(entry.value), entry.origin)
    stdout.print(values)


def _print_pairs(title: str, pairs: Mapping[str, str | int]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in pairs.items():
        table.add_row(name, f"{value:,}" if name.endswith("_bytes") else str(value))
    stdout.print(table)
