"""`di doctor`: device, versions, kernels, and every configuration value with its origin."""

import json

import pytest
from typer.testing import CliRunner

from di_engine.cli import doctor  # noqa: F401  # registers the command
from di_engine.cli.app import app, main
from di_engine.config import EngineConfig

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_json_holds_every_value_and_its_origin() -> None:
    result = RUNNER.invoke(
        app,
        ["doctor", "--json", "--device", "cpu", "--max-running", "3"],
        env={"DI_SCHEDULER__POLICY": "decode_first"},
    )
    assert result.exit_code == 0
    diagnosis = json.loads(result.stdout)
    values = {entry["name"]: entry for entry in diagnosis["config"]}
    assert set(values) == set(EngineConfig.fields())
    assert values["scheduler.max_running"] == {
        "name": "scheduler.max_running",
        "value": 3,
        "origin": "flag",
    }
    assert "DI_SCHEDULER__POLICY" in values["scheduler.policy"]["origin"]
    assert values["cache.storage"]["origin"] == "default"
    assert diagnosis["device"]["torch_device"].startswith("cpu")
    assert diagnosis["versions"]["torch"]
    assert {"linear", "sparse_attention"} <= {entry["op"] for entry in diagnosis["kernels"]}


def test_tables_name_ops_and_values() -> None:
    result = RUNNER.invoke(app, ["doctor", "--device", "cpu"])
    assert result.exit_code == 0
    for text in ("Kernels", "sparse_attention", "reference", "scheduler.max_running", "default"):
        assert text in result.stdout


def test_a_missing_device_is_exit_code_three(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["di", "doctor", "--device", "cpu:9"])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    assert stopped.value.code == 3
    assert "UnsupportedEnvironmentError" in captured.err
    assert "Traceback" not in captured.err


def test_a_wrong_configuration_is_exit_code_two(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["di", "doctor"])
    monkeypatch.setenv("DI_CACHE__STORAG", "packed")
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "DI_CACHE__STORAG" in capsys.readouterr().err
