"""Builds typer options from data, for commands that take the fields of a whole class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

__all__ = ["add_options", "option"]


def option(
    name: str,
    annotation: Any,
    default: Any,
    *,
    flag: str,
    text: str,
    panel: str,
    shown: str | None = None,
) -> inspect.Parameter:
    """One option as a keyword parameter.

    Args:
        name: Parameter of the command.
        annotation: Type that the value is parsed to.
        default: Value when the flag is absent.
        flag: The flag, such as `--max-tokens` or `--cache/--no-cache`.
        text: Help, with the unit.
        panel: Heading that the help lists it under.
        shown: Default to show instead of `default`.
    """
    info = typer.Option(
        flag, help=text, rich_help_panel=panel, show_default=shown if shown is not None else True
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, info],
    )


def add_options(
    run: Callable[..., None],
    signature: inspect.Signature,
    replaced: str,
    options: Sequence[inspect.Parameter],
) -> Callable[..., None]:
    """Gives `run` the parameters of `signature`, with `options` in place of one of them.

    typer reads the signature and the annotations of what it is given, so both are set.
    """
    kept = [parameter for name, parameter in signature.parameters.items() if name != replaced]
    parameters = [*kept, *options]
    vars(run).pop("__wrapped__", None)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
