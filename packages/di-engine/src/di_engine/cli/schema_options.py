"""Command line flags that constrain the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from di_engine.cli.prompt_files import read_text

__all__ = ["SCHEMA_FLAGS", "read_schema"]

SCHEMA_FLAGS: list[tuple[str, Any, Any, str, str]] = [
    ("json_schema", Path | None, None, "--json-schema", "File with a JSON schema to obey."),
    ("regex", str | None, None, "--regex", "Regular expression that the whole output matches."),
    ("ebnf", Path | None, None, "--ebnf", "File with an EBNF grammar to obey; starts at `root`."),
]


def read_schema(
    json_schema: Path | None, regex: str | None, ebnf: Path | None
) -> dict[str, str] | None:
    """What the flags ask for, as `SamplingParams.output_schema`; None without a flag."""
    given = [
        (flag, kind, value)
        for flag, kind, value in (
            ("--json-schema", "json", json_schema),
            ("--regex", "regex", regex),
            ("--ebnf", "ebnf", ebnf),
        )
        if value is not None
    ]
    if not given:
        return None
    if len(given) > 1:
        flags = " and ".join(flag for flag, _, _ in given)
        raise typer.BadParameter(f"give one of {flags}", param_hint=given[1][0])
    ((flag, kind, value),) = given
    text = value if isinstance(value, str) else read_text(value, flag)
    return {"schema_type": kind, "schema": text}
