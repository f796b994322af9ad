"""How `hatch run demo` finds its environment, and what happens without cargo."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.core import ParameterSource

import hatch_environments

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((REPOSITORY / "hatch.toml").read_text())["envs"]


class App:
    """What the collector uses of hatch's application object."""

    def __init__(self, env: str) -> None:
        self.env = env


def run_collector(
    command: str,
    env: str = "default",
    source: ParameterSource = ParameterSource.DEFAULT,
    repository: Path = REPOSITORY,
    **parameters: Any,
) -> None:
    """Lets the collector see `hatch --env ENV COMMAND`, ENV being given in the way of `source`."""
    root = click.Context(click.Command("hatch"), info_name="hatch", obj=App(env))
    root.set_parameter_source("env_name", source)
    context = click.Context(click.Command(command), parent=root, info_name=command)
    context.params.update(parameters)
    with context.scope():
        collector = hatch_environments.RepositoryEnvironments(repository, {})
        collector.finalize_config(CONFIG)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Records the processes that the collector starts; they exit with 7."""
    recorded: list[dict[str, Any]] = []

    def run(
        command: list[str], *, env: dict[str, str], check: bool
    ) -> subprocess.CompletedProcess[bytes]:
        recorded.append({"command": command, "env": env, "check": check})
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(hatch_environments.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["hatch", "run", "demo", "--max-tokens", "3"])
    return recorded


@pytest.fixture
def no_cargo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a Rust toolchain."""
    monkeypatch.setattr(hatch_environments.shutil, "which", lambda name: None)


@pytest.mark.usefixtures("no_cargo")
def test_the_literal_demo_command_runs_in_the_demo_environment(
    calls: list[dict[str, Any]],
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_collector("run", args=("demo", "--max-tokens", "3"))
    assert caught.value.code == 7
    (call,) = calls
    assert call["command"][1:] == ["-m", "hatch", "run", "demo", "--max-tokens", "3"]
    assert call["env"]["HATCH_ENV"] == "demo"
    assert "HATCH_ENV_ACTIVE" not in call["env"]


@pytest.mark.parametrize("source", [ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT])
def test_an_environment_that_was_named_is_kept(
    monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]], source: ParameterSource
) -> None:
    monkeypatch.setattr(hatch_environments.shutil, "which", lambda name: f"/bin/{name}")
    run_collector("run", source=source, args=("demo",))
    assert calls == []


@pytest.mark.usefixtures("no_cargo")
@pytest.mark.parametrize(
    ("command", "env", "parameters"),
    [
        ("run", "demo", {"args": ("demo",)}),
        ("run", "default", {"args": ("demo:demo",)}),
        ("run", "default", {"args": ("demo",), "env_names": ["demo"]}),
        ("run", "default", {"args": (":git", "status")}),
        ("create", "default", {"env_name": "demo"}),
        ("show", "default", {}),
        ("version", "default", {}),
    ],
)
def test_what_needs_no_rust_goes_through_without_cargo(
    calls: list[dict[str, Any]], command: str, env: str, parameters: dict[str, Any]
) -> None:
    run_collector(command, env, **parameters)
    assert calls == []


@pytest.mark.usefixtures("no_cargo")
@pytest.mark.parametrize(
    ("command", "env", "parameters", "name"),
    [
        ("run", "default", {"args": ("test",)}, "default"),
        ("run", "default", {"args": ("default:test",)}, "default"),
        ("run", "default", {"args": ("matrix:test",)}, "matrix"),
        ("run", "default", {"args": ("x",), "env_names": ["matrix.py3.12"]}, "matrix.py3.12"),
        ("shell", "default", {"env_name": None}, "default"),
    ],
)
def test_a_missing_cargo_is_said_in_one_line(
    command: str, env: str, parameters: dict[str, Any], name: str
) -> None:
    with pytest.raises(click.ClickException) as caught:
        run_collector(command, env, **parameters)
    assert caught.value.exit_code == 3
    assert f"environment `{name}`" in caught.value.message
    assert "cargo" in caught.value.message
    assert "\n" not in caught.value.message


def test_with_cargo_the_default_environment_is_made(
    monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(hatch_environments.shutil, "which", lambda name: f"/bin/{name}")
    run_collector("run", args=("test",))
    assert calls == []


def test_every_environment_takes_every_package_but_the_recipe_in_the_demo() -> None:
    for name, table in CONFIG.items():
        if name == "matrix":
            assert "workspace" not in table
            continue
        assert table["workspace"]["members"] == ["packages/*"], name
        expected = ["packages/deepseek-recipe"] if name == "demo" else []
        assert table["workspace"].get("exclude", []) == expected, name


def test_every_distribution_has_a_workspace_source() -> None:
    config = tomllib.loads((REPOSITORY / "hatch.toml").read_text())
    for file in REPOSITORY.glob("packages/*/pyproject.toml"):
        name = tomllib.loads(file.read_text())["project"]["name"]
        assert config["sources"][name] == {"workspace": True}
        if name != "deepseek-recipe":
            assert CONFIG["demo"]["sources"][name] == {"workspace": True}


def test_the_default_environment_has_the_kernel_compiler_of_the_extra() -> None:
    file = REPOSITORY / "packages" / "di-kernels" / "pyproject.toml"
    extra = tomllib.loads(file.read_text())["project"]["optional-dependencies"]["tilelang"]
    assert set(extra) <= set(CONFIG["default"]["dependencies"])


def test_no_package_of_the_demo_requires_the_recipe_unasked() -> None:
    for file in REPOSITORY.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        required = " ".join(project.get("dependencies", []))
        assert "deepseek-recipe" not in required, file


@pytest.mark.parametrize("is_made", [False, True])
def test_what_takes_long_is_said_before_it_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    is_made: bool,
) -> None:
    monkeypatch.setattr(hatch_environments.shutil, "which", lambda name: f"/bin/{name}")
    if is_made:
        (tmp_path / ".hatch" / "default").mkdir(parents=True)
        (tmp_path / ".hatch" / "demo").mkdir()
    run_collector("run", repository=tmp_path, args=("test",))
    assert ("downloads PyTorch" in capsys.readouterr().err) is not is_made
    with pytest.raises(SystemExit):
        run_collector("run", repository=tmp_path, args=("demo",))
    assert ("HATCH_VERBOSE" in calls[0]["env"]) is not is_made
    assert ("downloaded now" in capsys.readouterr().err) is not is_made
