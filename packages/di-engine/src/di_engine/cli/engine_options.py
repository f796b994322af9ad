"""Command line flags made from the fields of `EngineConfig`, so that the two cannot drift apart."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from di_engine.cli.options import add_options, option
from di_engine.config import EngineConfig

__all__ = ["with_engine_options"]


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--config FILE` and one flag per configuration field to a command.

    The command is called with its own parameters and `config`, an `EngineConfig` in which flags
    come before environment variables, the file, and defaults.
    """
    fields = EngineConfig.fields()
    keys = {_parameter(key): key for key in fields}
    options = [
        option(
            "config_file",
            Path | None,
            None,
            flag="--config",
            text="YAML file with these same fields.",
            panel="configuration",
        )
    ]
    for name, key in keys.items():
        field = fields[key]
        dashed = name.replace("_", "-")
        options.append(
            option(
                name,
                field.annotation | None,
                None,
                flag=f"--{dashed}/--no-{dashed}" if field.annotation is bool else f"--{dashed}",
                text=f"{field.help[:1].upper()}{field.help[1:]}.",
                panel=f"{key.split('.')[0]} configuration" if "." in key else "configuration",
                shown="none" if field.default is None else str(field.default),
            )
        )

    @functools.wraps(command)
    def run(**values: Any) -> None:
        overrides = {key: values.pop(name) for name, key in keys.items()}
        config = EngineConfig.load(file=values.pop("config_file"), overrides=overrides)
        command(**values, config=config)

    return add_options(run, inspect.signature(command, eval_str=True), "config", options)


def _parameter(key: str) -> str:
    """`cache.num_blocks` is `--num-blocks`; the model's path is `--model`."""
    return "model" if key == "model.path" else key.rsplit(".", 1)[-1]
