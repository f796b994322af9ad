"""Hatch environment collector: picks the environment of `hatch run demo`, looks for cargo early.

Hatch runs the script of `hatch run NAME` in the environment `default` unless told otherwise, and
makes that environment first. `default` holds deepseek-recipe, which is built with cargo. So this
collector (loaded by hatch itself, see `hatch.toml`) does two things before any environment is
made:

- `hatch run demo`, without an environment named, starts over in the environment `demo`, which
  needs no Rust. Only documented switches of hatch are used: `HATCH_ENV`, and `HATCH_VERBOSE`
  while the environment does not exist yet, so that the installer shows what it downloads.
- An environment that does need cargo is refused in one line when cargo is missing, and what
  takes long is said before it begins.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from hatch.env.collectors.plugin.interface import EnvironmentCollectorInterface

DEMO = "demo"
RUST_MEMBER = "packages/deepseek-recipe"
# Style of the house: 1 is a failed run, 2 wrong use, 3 an environment that cannot work.
UNSUPPORTED_ENVIRONMENT = 3


class RepositoryEnvironments(EnvironmentCollectorInterface):
    """Adjusts how hatch starts in this repository; see the module's docstring."""

    def finalize_config(self, config: dict[str, dict[str, Any]]) -> None:
        """Acts on the hatch command that is being run, before its environment is made.

        Args:
            config: The tables of `[envs]` by name, templates not merged. Not changed.

        Raises:
            SystemExit: With the exit code of the demo, after it ran in its own environment.
            click.ClickException: When the environment needs cargo and there is none.
        """
        context = click.get_current_context(silent=True)
        if context is None or context.find_root().obj is None:
            return
        command = context.info_name
        if command not in {"run", "shell", "create"}:
            return
        selected = selected_environment(context)
        if is_literal_demo(context):
            raise SystemExit(self.run_demo(config))
        if needs_cargo(selected, config) and shutil.which("cargo") is None:
            raise MissingCargoError(selected)
        if command == "run" and selected == "default" and not self.is_made(selected, config):
            click.echo(
                f"default: making its environment in {config[selected]['path']} (once): downloads "
                "PyTorch and its libraries (3 GB on Linux, less elsewhere), compiles "
                "deepseek-recipe (minutes). `hatch -v run ...` shows each step.",
                err=True,
            )

    def is_made(self, name: str, config: dict[str, dict[str, Any]]) -> bool:
        """Tells whether the environment, whose table has a `path`, exists already."""
        return Path(self.root, config[name]["path"]).exists()

    def run_demo(self, config: dict[str, dict[str, Any]]) -> int:
        """Runs the same hatch command in the environment `demo` and returns its exit code."""
        variables = {**os.environ, "HATCH_ENV": DEMO}
        variables.pop("HATCH_ENV_ACTIVE", None)
        if not self.is_made(DEMO, config):
            variables["HATCH_VERBOSE"] = "1"
            click.echo(
                f"demo: making its environment in {config[DEMO]['path']} (once). PyTorch and its "
                "libraries are downloaded now (3 GB on Linux, less elsewhere) into uv's cache.",
                err=True,
            )
        command = [sys.executable, "-m", "hatch", *sys.argv[1:]]
        return subprocess.run(command, env=variables, check=False).returncode


class MissingCargoError(click.ClickException):
    """The environment contains deepseek-recipe, which is built with cargo, and cargo is missing."""

    exit_code = UNSUPPORTED_ENVIRONMENT

    def __init__(self, environment: str) -> None:
        super().__init__(
            f"environment `{environment}` builds packages/deepseek-recipe, and `cargo` is not on "
            "PATH: install Rust (https://rustup.rs), or use `hatch run demo`, which needs none"
        )


def is_literal_demo(context: click.Context) -> bool:
    """Tells whether the command is `hatch run demo ...`, with no environment named in any way."""
    return (
        context.info_name == "run"
        and run_arguments(context)[:1] == [DEMO]
        and selected_environment(context) == "default"
        and context.find_root().get_parameter_source("env_name") in {None, ParameterSource.DEFAULT}
    )


def run_arguments(context: click.Context) -> list[str]:
    """Returns what follows `hatch run`, for both `hatch run` and `hatch env run`."""
    return [str(argument) for argument in context.params.get("args", ())]


def selected_environment(context: click.Context) -> str:
    """Returns the name of the environment that the running hatch command is about to use."""
    parameters = context.params
    names = parameters.get("env_names") or ()
    if names:
        return str(names[0])
    if context.info_name in {"shell", "create"} and parameters.get("env_name"):
        return str(parameters["env_name"])
    first, separator, _ = (run_arguments(context) or [""])[0].rpartition(":")
    if context.info_name == "run" and separator:
        return first or "system"
    return str(context.find_root().obj.env)


def needs_cargo(environment: str, config: dict[str, dict[str, Any]]) -> bool:
    """Tells whether `environment` has deepseek-recipe among its workspace members.

    Args:
        environment: Name of an environment; names that are not in `config` need nothing from us.
        config: The tables of `[envs]` by name, templates not merged.
    """
    # An environment made from a matrix is called `matrix.3.12`; its table is `matrix`.
    table = config.get(environment, config.get(environment.partition(".")[0]))
    while table is not None and "workspace" not in table:
        template = table.get("template", "default")
        parent = config.get(template)
        table = parent if parent is not table else None
    if table is None:
        return False
    return RUST_MEMBER not in table["workspace"].get("exclude", [])
