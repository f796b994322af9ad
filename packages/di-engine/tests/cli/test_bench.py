"""`di bench`: the numbers are there, add up, and wrong sizes are refused."""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di_engine.bench import structured
from di_engine.cli import bench, bench_structured  # noqa: F401  # register the commands
from di_engine.cli.app import app, main
from di_engine.llm import llm
from di_engine.testing.byte_grammars import ByteGrammars, compile_bytes
from di_engine.testing.counting_engine import CountingEngine
from di_structured import CompiledGrammar, OutputSchema

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


def test_overlap_needs_no_model_and_writes_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    arguments = ["--forward-ms", "2", "--sampling-ms", "1", "-b", "2", "--num-steps", "6"]
    result = RUNNER.invoke(app, ["bench", "overlap", *arguments, "--json", "--trace", str(file)])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["overlap"] for line in lines] == [False, True]
    for line in lines:
        assert line["ratio"] == pytest.approx(line["step_ms"] / line["device_step_ms"])
        assert line["device_step_ms"] == pytest.approx(3)
        assert line["forward_ms"] == pytest.approx(2)
        assert line["sampling_ms"] == pytest.approx(1)
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {"plan", "launch", "wait", "account", "sample", "forward", "sampling"} <= names


@pytest.mark.slow
def test_a_trace_of_decode_steps(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    arguments = ["decode", "--num-steps", "2", "--num-warmup", "1", *SMALL, "--json"]
    result = RUNNER.invoke(app, ["bench", *arguments, "--trace", str(file)])
    assert result.exit_code == 0, result.output
    account = json.loads(result.stdout)["account"]
    assert account["h1_ms"] > 0
    assert account == json.loads(file.read_text())["account"]


@pytest.mark.slow
def test_determinism_finds_no_difference(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\ndef f(x):\n")
    arguments = ["--prompts", str(prompts), "--deterministic", "--arithmetic", "float32"]
    limits = ["--max-tokens", "3", "--max-running", "4", "--max-model-len", "256"]
    result = RUNNER.invoke(app, ["bench", "determinism", *arguments, *limits])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("no difference: 2 prompts, 6 tokens")


@pytest.mark.slow
def test_agents_compute_less_with_snapshots() -> None:
    sizes = ["--num-sessions", "1", "--num-turns", "2", "--system-len", "390", "--turn-len", "40"]
    limits = ["--max-running", "4", "--max-model-len", "640", "--output-len", "2", "--quiet"]
    limits += ["--arithmetic", "float32"]
    result = RUNNER.invoke(app, ["bench", "agents", *sizes, *limits, "--json"])
    assert result.exit_code == 0, result.output
    by_mode = {line["mode"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert by_mode["off"]["share_of_ideal"] == 0
    computed = {mode: line["computed_tokens"] for mode, line in by_mode.items()}
    assert computed["snapshots"] < computed["exact replay"] < computed["off"]
    assert len({line["prompt_tokens"] for line in by_mode.values()}) == 1


class GrammarsBeside(ByteGrammars):
    """Compiles in another thread of this process."""

    def start(self) -> None:
        self._executor = ThreadPoolExecutor(1)

    def submit(self, schema: OutputSchema) -> "Future[CompiledGrammar]":
        return self._executor.submit(compile_bytes, schema)


def test_structured_compares_turns_with_and_without_a_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured, "assemble", CountingEngine(clock=time.monotonic).assemble)
    monkeypatch.setattr(llm, "_make_grammars", lambda parts: GrammarsBeside())
    file = tmp_path / "trace.json"
    arguments = ["--compile-s", "0.05", "--num-rounds", "2", "--output-len", "2", "--quiet"]
    result = RUNNER.invoke(app, ["bench", "structured", *arguments, "--json", "--trace", str(file)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["compile_alone_s"] >= 0.05
    assert len(report["compile_beside_requests_s"]) == 2
    for turn in (report["quiet"], report["compiling"]):
        first = turn["time_to_first_token_ms"]
        assert turn["requests"] > 0
        assert 0 < first["min"] <= first["median"] <= first["max"]
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {"slow grammar", "launch", "sample"} <= names
