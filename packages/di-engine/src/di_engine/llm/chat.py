"""Chat messages to token ids, through `deepseek_recipe`, which is an optional package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from di_engine.errors import InvalidRequestError, UnsupportedEnvironmentError

__all__ = ["ChatEncoder", "ChatOptions", "split_conversations"]

_MODEL = "DeepSeek-V4.1-Flash"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How conversations are turned into prompts.

    Attributes:
        thinking: Whether the model reasons before it answers.
        reasoning_effort: `low`, `medium`, `high`, `xhigh` or `max`; None for the format's default.
        tools: Tool definitions as in OpenAI's Chat Completions.
    """

    thinking: bool = True
    reasoning_effort: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None


class ChatEncoder:
    """Encodes conversations in the V4.1 prompt format."""

    def __init__(self, tokenizer_json: str) -> None:
        """Prepares the format.

        Args:
            tokenizer_json: Contents of the model's `tokenizer.json`.

        Raises:
            UnsupportedEnvironmentError: If `deepseek_recipe` is not installed.
        """
        self._recipe = _import_recipe()
        tokenizer = self._recipe.Tokenizer.from_str(tokenizer_json)
        self._encoding = self._recipe.DeepseekV41Encoding().with_tokenizer(tokenizer)

    def encode(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn.

        Args:
            messages: Messages as in OpenAI's Chat Completions.
            options: How to prompt.

        Raises:
            InvalidRequestError: If the messages are no conversation.
        """
        recipe = self._recipe
        body: dict[str, Any] = {
            "model": _MODEL,
            "thinking": {"type": "enabled" if options.thinking else "disabled"},
        }
        if options.reasoning_effort is not None:
            body["reasoning_effort"] = options.reasoning_effort
        if options.tools is not None:
            body["tools"] = [dict(tool) for tool in options.tools]
        try:
            body["messages"] = [dict(message) for message in messages]
            request = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
            token_ids: list[int] = self._encoding.encode(request.conversation)
        except (recipe.ConversionError, TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"the messages cannot be encoded: {error}", param="messages"
            ) from error
        return token_ids


def split_conversations(messages: Any) -> list[Any]:
    """Tells one conversation, a list of mappings, from a batch of conversations."""
    members = list(messages)
    if all(isinstance(member, Mapping) for member in members):
        return [members]
    return members


def _import_recipe() -> ModuleType:
    try:
        return importlib.import_module("deepseek_recipe")
    except ImportError:
        raise UnsupportedEnvironmentError(
            "`LLM.chat` needs the package `deepseek-recipe` of this project: install its wheel "
            "from the project's own index, not the bare name from a public one; or encode the "
            "messages yourself and call `generate` with token ids"
        ) from None
