"""`di bench`: the numbers are there, add up, and wrong sizes are refused."""

import json

import pytest
from typer.testing import CliRunner

from di_engine.cli import bench  # noqa: F401  # registers the commands
from di_engine.cli.app import app, main

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
SMALL = ["--max-running", "2", "--max-model-len", "256", "--num-repeats", "2", "--quiet"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "num_steps"),
    [
        (["decode", "--num-steps", "2", "--num-warmup", "1", "-b", "1", "-b", "2"], 4),
        (["prefill", "--prompt-len", "70", "--num-warmup", "0", "-b", "1"], 2),
    ],
)
def test_json_splits_the_step(arguments: list[str], num_steps: int) -> None:
    result = RUNNER.invoke(app, ["bench", *arguments, *SMALL, "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["batch_size"] for line in lines] == ([1, 2] if len(lines) == 2 else [1])
    for line in lines:
        step = line["step_ms"]
        parts = sum(step[name] for name in ("schedule", "model", "sample", "other"))
        assert parts == pytest.approx(step["total"])
        assert min(step.values()) >= 0
        assert line["num_steps"] == num_steps
        rate = line["tokens_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert line["floor"]["ratio"] == pytest.approx(
            line["floor"]["measured_ms"] / line["floor"]["floor_ms"]
        )
        assert line["memory"]["cache_bytes"] > 0
        assert line["versions"]["di-engine"]
    rows = lines[0]["floor"]["rows_per_step"]
    assert rows == (1 if arguments[0] == "decode" else 70)


@pytest.mark.slow
def test_a_prompt_beyond_the_model_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["di", "bench", "prefill", "--prompt-len", "300", *SMALL])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "`model.max_model_len` is 256" in capsys.readouterr().err
