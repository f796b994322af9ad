"""The FastAPI example against its mock model, and the README's example."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.testclient import TestClient

PACKAGE = Path(__file__).resolve().parents[1]
BODIES = {
    "/v1/chat/completions": {"model": "deepseek", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"model": "deepseek", "input": "Hi"},
    "/v1/messages": {
        "model": "deepseek",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "Hi"}],
    },
}


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "fastapi_app", PACKAGE / "examples" / "fastapi_app.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastapi_app"] = module
    spec.loader.exec_module(module)
    return module


def text_of(path: str, body: dict[str, object]) -> str:
    """The answer's text in a response."""
    whole = json.dumps(body, ensure_ascii=False)
    assert "The user greets." in whole
    assert "think>" not in whole
    return whole


@pytest.mark.parametrize("path", BODIES)
def test_whole_responses(example: ModuleType, path: str) -> None:
    reply = TestClient(example.app).post(path, json=BODIES[path])
    assert reply.status_code == 200
    assert "Hello! 🌊" in text_of(path, reply.json())
    assert example.model.prompts[0].endswith("<｜User｜>Hi<｜Assistant｜><think>")


@pytest.mark.parametrize("path", BODIES)
def test_streams(example: ModuleType, path: str) -> None:
    reply = TestClient(example.app).post(path, json={**BODIES[path], "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    data = [
        line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")
    ]
    if path == "/v1/chat/completions":
        assert data.pop() == "[DONE]"
    events = [json.loads(line) for line in data]
    if path != "/v1/chat/completions":
        names = re.findall(r"^event: (.*)$", reply.text, re.MULTILINE)
        assert names == [event["type"] for event in events]
    joined = "".join(re.findall(r'"(?:content|delta|text)":"([^"]*)"', "".join(data)))
    assert "Hello! 🌊" in joined


def test_refusals_in_the_form_of_the_protocol(example: ModuleType) -> None:
    client = TestClient(example.app)
    wrong = client.post(
        "/v1/chat/completions", json={**BODIES["/v1/chat/completions"], "temperature": 9}
    )
    assert wrong.status_code == 400
    assert "temperature" in wrong.json()["error"]["message"]
    wrong = client.post("/v1/messages", json={**BODIES["/v1/messages"], "temperature": 9})
    assert wrong.status_code == 400
    assert wrong.json()["type"] == "error"
    assert client.post("/v1/responses", content=b"{").status_code == 400


def test_example_of_the_readme() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```\n\n```text\n.*?```", text, re.DOTALL)
    (expected,) = re.findall(r"```python\n.*?```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) < 15
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == expected
