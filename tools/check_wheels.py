"""Installs every wheel of an index folder alone, outside the repository, and uses it.

    python tools/check_wheels.py dist/index [PACKAGE...]

For each package, in an empty environment of its own: install it (with what it requires, our names
bound by the index's constraints), prove its origin file by file, import it, and run the first
Python block of its README from an empty folder. Exit codes: 0 all good, 1 some are not.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from releasing.errors import ReleaseError
from releasing.packages import Package, read_packages

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def readme_example(package: Package) -> str:
    """Returns the first Python block of a package's README.

    Raises:
        ReleaseError: There is none.
    """
    text = (package.directory / "README.md").read_text(encoding="utf-8")
    match = EXAMPLE.search(text)
    if match is None:
        raise ReleaseError(f"{package.name}: README.md has no ```python block")
    return match[1]


def run(command: list[str], directory: Path, variables: dict[str, str]) -> str:
    """Runs a command and returns its output.

    Raises:
        ReleaseError: It failed; the message has its output.
    """
    result = subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()
        raise ReleaseError(f"{' '.join(command)}\n{output}")
    return result.stdout


def check_package(package: Package, index: Path, python: str) -> None:
    """Installs, proves, imports and uses one package.

    Args:
        package: What to check.
        index: Index folder that `tools/release.py` made.
        python: Interpreter, or version, of the environment.

    Raises:
        ReleaseError: One of the steps failed.
    """
    example = readme_example(package)
    # No PYTHONPATH and no active environment: what is found is what was installed.
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"}
    }
    variables["WHEEL_INDEX"] = index.resolve().as_uri()
    with tempfile.TemporaryDirectory(prefix="di-wheel-") as scratch:
        home = Path(scratch)
        environment = home / "environment"
        interpreter = str(environment / "bin" / "python")
        run(["uv", "venv", "--quiet", "--python", python, str(environment)], home, variables)
        constraints = str(index.resolve() / "constraints.txt")
        pin = f"{package.name}=={package.version}"
        install = ["uv", "pip", "install", "--quiet", "--python", interpreter]
        run([*install, "--constraint", constraints, pin], home, variables)
        origin = [interpreter, str(REPOSITORY / "tools" / "check_origin.py")]
        run([*origin, "--wheels", str(index.resolve()), "--only", package.name], home, variables)
        module = package.name.replace("-", "_")
        run([interpreter, "-c", f"import {module}"], home, variables)
        (home / "example.py").write_text(example, encoding="utf-8")
        run([interpreter, "example.py"], home, variables)


def main(
    index: Annotated[Path, typer.Argument(help="Index folder made by tools/release.py.")],
    names: Annotated[list[str] | None, typer.Argument(help="Packages; all by default.")] = None,
    python: Annotated[str, typer.Option(help="Interpreter or version.")] = sys.executable,
) -> None:
    """Checks the wheels of an index folder, each alone."""
    packages = read_packages(REPOSITORY)
    if unknown := [name for name in names or [] if name not in packages]:
        known = ", ".join(packages)
        raise typer.BadParameter(f"no package `{unknown[0]}`, this repository has: {known}")
    failed = 0
    for name in names or packages:
        begin = time.perf_counter()
        try:
            check_package(packages[name], index, python)
        except ReleaseError as error:
            failed += 1
            typer.echo(f"FAIL {name}: {error}")
        else:
            seconds = time.perf_counter() - begin
            typer.echo(
                f"ok   {name} {packages[name].version}: alone, README example ({seconds:.0f} s)"
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
