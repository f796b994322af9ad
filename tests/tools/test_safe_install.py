"""The documented installation takes our files, whatever a public index offers under our names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import check_origin
import release
from releasing.packages import read_packages

pytestmark = pytest.mark.slow


@pytest.fixture
def our_index(repository: Path) -> Path:
    """An index folder with the wheels of the repository in miniature."""
    index = repository / "dist" / "index"
    release.build_index(list(read_packages(repository).values()), index)
    return index


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a pip, which works on other environments by `--python`."""
    directory = tmp_path_factory.mktemp("pip") / "environment"
    base = getattr(sys, "_base_executable", sys.executable)
    command = [base, "-m", "venv", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


class Environment:
    """An empty virtual environment, and one of two installers that work on it.

    Attributes:
        python: Its interpreter.
        command: Command line of the installer, up to the options of `install`.
    """

    def __init__(self, directory: Path, installer: str, pip: list[str]) -> None:
        self.python = directory / "bin" / "python"
        target = ["--python", str(self.python)]
        self.command = (
            [*pip, *target, "install"]
            if installer == "pip"
            else ["uv", "pip", "install", *target, "--no-config"]
        )
        command = ["uv", "venv", "--python", sys.executable, str(directory)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def install(self, *arguments: str, index: Path, ours: Path) -> subprocess.CompletedProcess[str]:
        """Installs with `index` as the only public index; `WHEEL_INDEX` names our own."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_")) and name != "WHEEL_INDEX"
        }
        variables |= {"WHEEL_INDEX": ours.as_uri(), "PIP_CONFIG_FILE": os.devnull}
        command = [*self.command, "--index-url", index.as_uri(), *arguments]
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=120, check=False
        )

    def source_of(self, package: str) -> str:
        """Returns what the installed package contains."""
        pattern = f"lib/python*/site-packages/{package}/__init__.py"
        (file,) = self.python.parents[1].glob(pattern)
        return file.read_text()

    def check_origin(self, repository: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> int:
        """Runs `tools/check_origin.py` on this environment."""
        monkeypatch.setattr(check_origin, "REPOSITORY", repository)
        (site,) = self.python.parents[1].glob("lib/python*/site-packages")
        return check_origin.main(["--site-packages", str(site), "--wheels", str(wheels)])


@pytest.fixture(params=["pip", "uv"])
def environment(request: pytest.FixtureRequest, tmp_path: Path, pip: list[str]) -> Environment:
    """An empty environment for each installer."""
    return Environment(tmp_path / "environment", request.param, pip)


def test_without_our_constraints_the_foreign_project_is_installed(
    environment: Environment, foreign_index: Path, our_index: Path
) -> None:
    """The danger is real: this is what the constraints keep away."""
    result = environment.install("di-engine", index=foreign_index, ours=our_index)
    assert result.returncode == 0, result.stderr
    assert environment.source_of("di_engine") == "# foreign"


def test_with_our_constraints_our_files_win_and_the_rest_comes_from_the_index(
    environment: Environment,
    foreign_index: Path,
    our_index: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constraints = str(our_index / "constraints.txt")
    result = environment.install(
        "--constraint", constraints, "di-engine==0.1.0", index=foreign_index, ours=our_index
    )
    assert result.returncode == 0, result.stderr
    assert environment.source_of("di_engine") == "# ours"
    assert environment.source_of("di_spec") == "# ours"
    assert environment.source_of("thirdparty") == "# foreign"
    assert environment.check_origin(repository, our_index, monkeypatch) == 0


def test_another_version_than_the_constrained_one_is_refused(
    environment: Environment, foreign_index: Path, our_index: Path
) -> None:
    constraints = str(our_index / "constraints.txt")
    result = environment.install(
        "--constraint", constraints, "di-engine==9.5.3", index=foreign_index, ours=our_index
    )
    assert result.returncode != 0


def test_a_changed_wheel_is_refused(
    environment: Environment, foreign_index: Path, our_index: Path
) -> None:
    (wheel,) = (our_index / "di-spec").glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    constraints = str(our_index / "constraints.txt")
    result = environment.install(
        "--constraint", constraints, "di-engine==0.1.0", index=foreign_index, ours=our_index
    )
    assert result.returncode != 0
    assert "hash" in result.stderr.lower()


def test_an_installed_foreign_project_is_found_out(
    environment: Environment,
    foreign_index: Path,
    our_index: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment.install("di-engine", "di-spec", index=foreign_index, ours=our_index)
    assert environment.check_origin(repository, our_index, monkeypatch) == 1
    output = capsys.readouterr().out
    assert "FAIL di-engine" in output
    assert "no wheel of this version" in output
