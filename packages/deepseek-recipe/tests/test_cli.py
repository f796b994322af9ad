"""The command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from round_trip import BODIES, block, invoke, parameter

from deepseek_recipe.cli import main


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODIES["chat"]), encoding="utf-8")
    return str(path)


def test_render(request_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", request_file]) == 0
    assert capsys.readouterr().out.endswith("<｜User｜>When?<｜Assistant｜></think>\n")
    assert main(["render", request_file, "--mark", "--version", "v4"]) == 0
    assert capsys.readouterr().out.endswith("⟦<｜User｜>⟧When?⟦<｜Assistant｜>⟧⟦</think>⟧\n")


def test_parse(request_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "output.txt"
    output.write_text(
        "One moment.\n\n" + block(invoke("tide", parameter("h", "x"))), encoding="utf-8"
    )
    assert main(["parse", request_file, str(output)]) == 0
    message = json.loads(capsys.readouterr().out)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "tide", "arguments": '{"h": "x"}'}
    assert main(["parse", request_file, str(output), "--events", "--finish", "length"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["choices"][0]["finish_reason"] in ("length", "tool_calls")


@pytest.mark.parametrize("protocol", list(BODIES))
def test_explain(
    protocol: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(BODIES[protocol])))
    assert main(["explain", "-"]) == 0
    explained: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert explained["protocol"] == protocol
    assert explained["tools"] == ["tide"]
    assert explained["thinking_mode"] is False


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.json"
    for text in ("{", "[]", '{"model": "none", "messages": []}', '{"model": "m", "tools": 3}'):
        wrong.write_text(text, encoding="utf-8")
        assert main(["render", str(wrong)]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("error: ")
    assert main(["render", str(tmp_path / "missing.json")]) == 2
    assert "missing.json" in capsys.readouterr().err


def test_as_a_module(request_file: str) -> None:
    command = [sys.executable, "-m", "deepseek_recipe", "render", request_file]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0
    assert "<｜User｜>When?" in done.stdout
