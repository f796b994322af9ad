"""`di generate` around a model that counts: standard output is data, exit codes mean something."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from di_engine.cli import (
    generate,  # noqa: F401  # registers the command
    prompt_files,
)
from di_engine.cli.app import app
from di_engine.errors import UnsupportedEnvironmentError
from di_engine.llm import llm as llm_module
from di_engine.llm import structured_check
from di_engine.testing.byte_grammars import ByteGrammars
from di_engine.testing.counting_engine import CountingEngine

RUNNER = CliRunner()


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    engine = CountingEngine(nan_after=[ord("t") + 3])
    monkeypatch.setattr(llm_module, "assemble", engine.assemble)
    monkeypatch.setattr(prompt_files, "_has_waiting_input", lambda: False)
    return engine


def run(*arguments: str, **options: Any) -> Result:
    return RUNNER.invoke(
        app, ["generate", "--temperature", "0", "--max-tokens", "5", *arguments], **options
    )


@pytest.mark.usefixtures("counting")
class TestOutput:
    def test_text_goes_to_stdout_and_notes_to_stderr(self) -> None:
        result = run("a")
        assert result.exit_code == 0
        assert result.stdout == "bcdef\n"
        assert "loading `tiny`" in result.stderr

    def test_quiet_is_quiet(self) -> None:
        assert run("a", "--quiet").stderr == ""

    def test_several_prompts_come_in_order(self) -> None:
        assert run("a", "x", "--quiet").stdout == "bcdef\nyz{|}\n"

    def test_several_completions_of_one_prompt(self) -> None:
        assert run("a", "-n", "2").stdout == "bcdef\nbcdef\n"

    def test_json_lines_carry_everything(self) -> None:
        result = run("a", "", "--json", "--logprobs", "1")
        first, second = map(json.loads, result.stdout.splitlines())
        assert first["prompt_index"] == 0
        assert first["outputs"][0]["text"] == "bcdef"
        assert first["outputs"][0]["finish_reason"] == "length"
        assert first["outputs"][0]["logprobs"][0][0]["token"] == "b"
        assert second["error"]["kind"] == "invalid_request"
        assert result.exit_code == 2

    def test_without_a_prompt_an_example_runs(self) -> None:
        result = run()
        assert result.exit_code == 0
        assert "no prompt given" in result.stderr
        assert result.stdout == "fghij\n"

    def test_stdin_is_read_on_request(self) -> None:
        assert run("-", input="xa\n").stdout == "bcdef\n"

    def test_sampling_flags_reach_the_sampler(self) -> None:
        assert run("a", "--stop", "de").stdout == "bc\n"
        assert run("a", "--stop", "de", "--include-stop-str-in-output").stdout == "bcde\n"
        assert run("a", "--banned-token-id", str(ord("b") + 3)).stdout == "cdefg\n"
        assert run("a", "--logit-bias", f"{ord('q') + 3}=99", "--max-tokens", "1").stdout == "q\n"
        assert run("a", "--stop-token-id", str(ord("c") + 3)).stdout == "b\n"


@pytest.mark.usefixtures("counting")
class TestExitCodes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("",), "the prompt is empty"),
            (("a", "--max-tokens", "0"), "`max_tokens` must be"),
            (("a", "--temperature", "-1"), "`temperature` must be"),
            (("a" * 600,), "too long"),
            (("a", "--no-such-flag"), "No such option"),
            (("a", "--storage", "none"), "--storage"),
            (("a", "--logit-bias", "x=1"), "TOKEN_ID=NUMBER"),
            (("a", "--input", "missing.txt"), "not both"),
            (("--input", "missing.txt"), "cannot read"),
        ],
    )
    def test_wrong_use_is_two(self, arguments: tuple[str, ...], message: str) -> None:
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr

    def test_a_failing_model_is_one(self) -> None:
        result = run("r")
        assert result.exit_code == 1
        assert result.stdout == "st\n"
        assert "prompt 0: " in result.stderr

    def test_one_bad_line_harms_no_other(self, tmp_path: Path) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text('{"prompt": "a"}\n{broken\n{"prompt": "x", "max_tokens": 2}\n{"text": 1}\n')
        result = run("--input", str(path), "--json")
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert [line["prompt_index"] for line in lines] == [0, 1, 2, 3]
        assert lines[0]["outputs"][0]["text"] == "bcdef"
        assert "line 2 is not JSON" in lines[1]["error"]["message"]
        assert lines[2]["outputs"][0]["text"] == "yz"
        assert "line 4 has neither `prompt` nor" in lines[3]["error"]["message"]
        assert result.exit_code == 2


@pytest.mark.parametrize("arguments", [("a",), ("a", "x"), ("a", "--json")])
def test_ctrl_c_ends_requests_and_prints_what_they_have(
    counting: CountingEngine, arguments: tuple[str, ...]
) -> None:
    forward = counting.model.forward

    def interrupted(batch: Any, cache: object) -> Any:
        if len(counting.model.batches) == 3:
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "the second one kills"
        return forward(batch, cache)

    counting.model.forward = interrupted  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    result = run(*arguments, "--max-tokens", "400")
    assert result.exit_code == 1
    assert "bcd" in result.stdout
    assert len(result.stdout) < 600
    assert not counting.engine.has_work
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def constrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_module, "assemble", CountingEngine().assemble)
    monkeypatch.setattr(prompt_files, "_has_waiting_input", lambda: False)
    monkeypatch.setattr(llm_module, "_make_grammars", lambda parts: ByteGrammars())


@pytest.mark.usefixtures("constrained")
class TestConstraints:
    def test_flags_constrain_the_output(self, tmp_path: Path) -> None:
        (tmp_path / "schema").write_text('{"const": "x"}')
        (tmp_path / "grammar").write_text('root ::= "to" [a-z]')
        for arguments, text in [
            (("--regex", "[0-9]{2}"), "01"),
            (("--json-schema", str(tmp_path / "schema")), '"x"'),
            (("--ebnf", str(tmp_path / "grammar")), "top"),
        ]:
            result = run("/", "--quiet", *arguments)
            assert (result.exit_code, result.stdout) == (0, f"{text}\n"), result.output

    def test_a_line_may_bring_a_schema_of_its_own(self, tmp_path: Path) -> None:
        file = tmp_path / "requests.jsonl"
        lines = [
            {"prompt": "/", "output_schema": {"schema_type": "regex", "schema": "[a-c]{2}"}},
            {"prompt": "/"},
        ]
        file.write_text("\n".join(map(json.dumps, lines)))
        result = run("--input", str(file), "--regex", "[0-9]{3}", "--quiet")
        assert result.stdout == "ab\n012\n"

    def test_wrong_use_is_named(self, tmp_path: Path) -> None:
        both = run("a", "--regex", "a", "--ebnf", "b")
        assert both.exit_code == 2
        assert "give one of --regex and --ebnf" in both.output
        missing = run("a", "--ebnf", str(tmp_path / "none"))
        assert missing.exit_code == 2
        assert "cannot read" in missing.output
        malformed = run("a", "--regex", "(")
        assert malformed.exit_code == 2
        assert "`output_schema`: " in malformed.stderr
        assert run("--messages", "x", "--check-structured").exit_code == 2

    def test_the_check_validates_each_kind(self) -> None:
        result = run("a", "b", "--check-structured", "--json", "--temperature", "1e4", "--quiet")
        assert result.exit_code == 0, result.output
        outputs = [json.loads(line) for line in result.stdout.splitlines()]
        assert [output["kind"] for output in outputs] == ["regex", "json", "ebnf", "free"] * 2
        assert {output["problem"] for output in outputs} == {None}

    def test_the_check_finds_what_is_invalid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(structured_check, "_PATTERN", "[a-f]{2}")
        monkeypatch.setattr(
            structured_check,
            "_VALIDATORS",
            dict.fromkeys(["regex", "json", "ebnf"], lambda _: "no"),
        )
        result = run("a", "--check-structured", "--quiet")
        assert result.exit_code == 1
        assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
            "regex no",
            "json  no",
            "ebnf  no",
            "free  valid",
        ]

    def test_the_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "di_structured", None)
        result = run("a", "--check-structured")
        assert isinstance(result.exception, UnsupportedEnvironmentError)
        assert "install its wheel" in str(result.exception)
