"""`di bench spec`: figures, a picture, a calibration that fits the engine it came from."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di_engine import EngineConfig
from di_engine.bench.speculation_figure import draw_speculation
from di_engine.cli import bench_speculation  # noqa: F401  # registers the command
from di_engine.cli.app import app
from di_engine.core.assembly import assemble
from di_engine.errors import ConfigError, InvalidRequestError

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
SMALL = ["--device", "cpu", "--max-running", "2", "--max-model-len", "128", "--quiet"]
DRAFTED = [*SMALL, "--drafter", "dspark", "--deterministic", "--budget", "all"]


@pytest.mark.slow
def test_json_adds_up_and_the_calibration_is_read_again(tmp_path: Path) -> None:
    fit, figure = tmp_path / "fit.json", tmp_path / "figure.png"
    sizes = ["-b", "2", "--num-tokens", "6", "--prompt-len", "9", "--num-repeats", "1"]
    files = ["--save-calibration", str(fit), "--figure", str(figure)]
    result = RUNNER.invoke(app, ["bench", "spec", *DRAFTED, *sizes, *files, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["verification"] == "coupled"
    assert report["share_of_equal_outputs"] == 1.0
    # The first token of each comes with its prompt; a last step may accept drafts behind the end.
    emitted = report["request_steps"] + sum(
        count * number for number, count in enumerate(report["accepted_histogram"])
    )
    assert 2 * 5 <= emitted < 2 * (5 + 5)
    assert sum(report["rows_per_step"].values()) == report["steps"]
    rows = sum(int(rows) * steps for rows, steps in report["rows_per_step"].items())
    assert rows == pytest.approx(report["rows_per_request"] * report["request_steps"])
    assert [entry["position"] for entry in report["survival_at"]] == [1, 2, 3, 4, 5]
    assert figure.read_bytes().startswith(b"\x89PNG")

    settings = {"model": "tiny", "device": "cpu", "max_running": 1, "max_model_len": 128}
    drafts = {"drafter": "dspark", "budget": "all", "calibration": str(fit)}
    assemble(EngineConfig.from_flat(**settings, **drafts, deterministic=True))
    with pytest.raises(ConfigError, match="fitted for coupled verification"):
        assemble(EngineConfig.from_flat(**settings, **drafts, verification="block"))


def test_without_a_drafter_there_is_nothing_to_measure() -> None:
    result = RUNNER.invoke(app, ["bench", "spec", *SMALL])
    assert isinstance(result.exception, InvalidRequestError)
    assert "--drafter dspark" in str(result.exception)


def test_a_figure_needs_no_verified_draft(tmp_path: Path) -> None:
    rates = {"median": 2.0, "min": 1.0, "max": 3.0}
    report = {
        "survival_at": [
            {"position": 1, "num_verified": 0, "predicted": None, "observed": None},
        ],
        "accepted_histogram": [3, 0],
        "accepted_length": None,
        "rows_per_step": {},
        "tokens_per_s": {"plain": rates, "speculative": rates, "ratio": 1.0},
        "drafter": "ngram",
        "num_draft_tokens": 1,
        "verification": "ratio",
        "budget": "all",
        "batch_size": 1,
        "temperature": 0.0,
        "model": "m",
        "device": "d",
    }
    draw_speculation(report, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
