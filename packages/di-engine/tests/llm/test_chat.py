"""Chat goes through `deepseek_recipe`; without it one sentence says what to do."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from di_engine.errors import InvalidRequestError, UnsupportedEnvironmentError
from di_engine.llm.chat import ChatEncoder, ChatOptions, split_conversations


class ConversionError(Exception):
    """Stands in for the package's own error."""


class _Request:
    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def convert(self, options: object) -> SimpleNamespace:
        if not self.body["messages"]:
            raise ConversionError("Empty input messages")
        return SimpleNamespace(conversation=self.body)


class _Encoding:
    seen: dict[str, Any]

    def with_tokenizer(self, tokenizer: object) -> "_Encoding":
        return self

    def encode(self, conversation: dict[str, Any]) -> list[int]:
        type(self).seen = conversation
        return [0, len(conversation["messages"])]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = SimpleNamespace(
        Tokenizer=SimpleNamespace(from_str=lambda text: text),
        DeepseekV41Encoding=_Encoding,
        ChatCompletionRequest=_Request,
        ConversionOptions=lambda: None,
        ConversionError=ConversionError,
    )
    monkeypatch.setitem(sys.modules, "deepseek_recipe", module)


@pytest.mark.usefixtures("recipe")
def test_options_become_fields_of_the_request() -> None:
    encoder = ChatEncoder("{}")
    tools = [{"type": "function", "function": {"name": "f"}}]
    message = {"role": "user", "content": "hi"}
    assert encoder.encode([message], ChatOptions(False, "low", tools)) == [0, 1]
    assert _Encoding.seen["thinking"] == {"type": "disabled"}
    assert _Encoding.seen["reasoning_effort"] == "low"
    assert _Encoding.seen["tools"] == tools
    encoder.encode([message], ChatOptions())
    assert _Encoding.seen["thinking"] == {"type": "enabled"}
    assert "tools" not in _Encoding.seen


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("messages", [[], [7], 7])
def test_what_is_no_conversation_is_a_bad_request(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="the messages cannot be encoded"):
        ChatEncoder("{}").encode(messages, ChatOptions())


def test_without_the_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
    with pytest.raises(UnsupportedEnvironmentError, match="needs the package `deepseek-recipe`"):
        ChatEncoder("{}")


def test_one_conversation_and_a_batch_are_told_apart() -> None:
    message = {"role": "user", "content": "hi"}
    assert split_conversations([message]) == [[message]]
    assert split_conversations([[message], [message, message]]) == [[message], [message, message]]
    assert split_conversations([]) == [[]]
