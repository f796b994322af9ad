"""`di inspect`: a whole checkpoint is 0, a damaged one 1, and both print what they hold."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di_engine import tiny
from di_engine.cli import inspect  # noqa: F401  # registers the command
from di_engine.cli.app import app, main

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_built_in_checkpoint_is_whole() -> None:
    result = RUNNER.invoke(app, ["inspect", str(tiny.directory()), "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["problems"] == []
    assert values["num_tensors"] > 100
    text = RUNNER.invoke(app, ["inspect", str(tiny.directory())]).stdout
    assert f"{values['num_tensors']:,}" in text


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(tiny.directory(), copy)
    shard = copy / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])
    result = RUNNER.invoke(app, ["inspect", str(copy)])
    assert result.exit_code == 1
    assert "model.safetensors" in result.output


def test_a_missing_directory_has_one_clear_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["di", "inspect", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (1, 2)
    captured = capsys.readouterr()
    assert "nowhere" in captured.err
    assert "Traceback" not in captured.err
