"""Prompts from arguments, files and standard input."""

import io
from pathlib import Path

import pytest
import typer

from di_engine.cli import prompt_files
from di_engine.cli.prompt_files import CommandRequest, read_requests
from di_engine.errors import InvalidRequestError

SAMPLING = {"max_tokens": 4, "temperature": 0.0}


class Terminal(io.StringIO):
    """Standard input at a keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_files.sys, "stdin", Terminal())


def test_arguments_are_prompts_and_a_dash_is_standard_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_files.sys, "stdin", io.StringIO("piped\ntext\n"))
    requests = read_requests(["one", "-"], None, SAMPLING)
    assert requests == [
        CommandRequest("one", SAMPLING),
        CommandRequest("piped\ntext", SAMPLING),
    ]


def test_at_a_keyboard_nothing_is_read() -> None:
    assert read_requests([], None, SAMPLING) == []


def test_a_text_file_is_one_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("first line\nsecond \u2603\n", encoding="utf-8")
    assert read_requests([], path, SAMPLING) == [
        CommandRequest("first line\nsecond \u2603", SAMPLING)
    ]


def test_json_lines_carry_prompts_and_parameters(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '"plain"\n[1, 2]\n\n{"prompt": "p", "max_tokens": 9, "logit_bias": {"5": 1.5}}\n'
        '{"prompt_token_ids": [3]}\n{broken\n7\n'
    )
    requests = read_requests([], path, SAMPLING)
    assert requests[:2] == [CommandRequest("plain", SAMPLING), CommandRequest([1, 2], SAMPLING)]
    assert requests[2] == CommandRequest(
        {"prompt": "p"}, {"max_tokens": 9, "temperature": 0.0, "logit_bias": {5: 1.5}}
    )
    assert requests[3] == CommandRequest({"prompt_token_ids": [3]}, SAMPLING)
    errors = [str(r.prompt) for r in requests if isinstance(r.prompt, InvalidRequestError)]
    assert errors[0].startswith("line 6 is not JSON")
    assert errors[1] == "line 7 must be an object, text or a list of token ids: got 7"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_wrong_use(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "missing.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(typer.BadParameter, match=r"missing\.txt"):
        read_requests([], path, SAMPLING)


def test_prompts_and_a_file_are_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="not both"):
        read_requests(["a"], tmp_path, SAMPLING)
