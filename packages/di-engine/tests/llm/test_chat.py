"""Chat goes through `deepseek_recipe`; without it one sentence says what to do."""

import sys
from typing import Any

import pytest

from di_engine.errors import InvalidRequestError, UnsupportedEnvironmentError
from di_engine.llm.chat import ChatEncoder, split_conversations


def test_without_the_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
    with pytest.raises(UnsupportedEnvironmentError, match="need the package `deepseek-recipe`"):
        ChatEncoder("{}")


def test_one_conversation_and_a_batch_are_told_apart() -> None:
    message = {"role": "user", "content": "hi"}
    assert split_conversations([message]) == [[message]]
    assert split_conversations([[message], [message, message]]) == [[message], [message, message]]
    assert split_conversations([]) == [[]]


@pytest.mark.parametrize("messages", [{"role": "user", "content": "hi"}, "hi", b"hi", 7, None])
def test_what_is_no_list_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="`messages` must be a list"):
        split_conversations(messages)
