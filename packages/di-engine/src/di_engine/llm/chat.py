"""Chat messages to token ids, and output to messages, through the optional `deepseek_recipe`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from di_engine.errors import InvalidRequestError, UnsupportedEnvironmentError
from di_engine.llm.outputs import ChatMessage, CompletionOutput
from di_engine.llm.sampling_params import SamplingParams

__all__ = [
    "ChatEncoder",
    "ChatOptions",
    "ChatPrompt",
    "Conversation",
    "EncodedChat",
    "split_conversations",
]

Conversation = Sequence[Mapping[str, Any]]
"""Messages as in OpenAI's Chat Completions."""

_MODEL = "DeepSeek-V4.1-Flash"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How conversations are turned into prompts.

    Attributes:
        thinking: Whether the model reasons before it answers.
        reasoning_effort: `low`, `medium`, `high`, `xhigh` or `max`; None for the format's default.
        tool_choice: As in Chat Completions: `auto`, `none`, `required`, or one function's name in
            its mapping. The last two open the block of calls, and need `thinking=False`.
        response_format: As in Chat Completions. The prompt asks for it; nothing enforces it.
    """

    thinking: bool = True
    reasoning_effort: str | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation with tools and options of its own.

    Attributes:
        messages: Messages as in OpenAI's Chat Completions.
        tools: Tool definitions as in OpenAI's Chat Completions.
        options: How to prompt.
    """

    messages: Conversation
    tools: Sequence[Mapping[str, Any]] | None = None
    options: ChatOptions = ChatOptions()


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A conversation as a prompt, with what is needed to parse the output it leads to.

    Attributes:
        token_ids: The prompt, ready for the assistant's turn.
        request: The recipe's `ConversationRequest`.
    """

    token_ids: list[int]
    request: Any


class ChatEncoder:
    """Encodes conversations in the V4.1 prompt format and parses what the model answers."""

    def __init__(self, tokenizer_json: str, eos_token_ids: Sequence[int] = ()) -> None:
        """Prepares the format.

        Args:
            tokenizer_json: Contents of the model's `tokenizer.json`.
            eos_token_ids: Ids that end a text; they are no part of a message.

        Raises:
            UnsupportedEnvironmentError: If `deepseek_recipe` is not installed.
        """
        self._recipe = import_recipe()
        self._tokenizer = self._recipe.Tokenizer.from_str(tokenizer_json)
        self._encoding = self._recipe.DeepseekV41Encoding().with_tokenizer(self._tokenizer)
        self._eos_token_ids = frozenset(eos_token_ids)

    def encode(self, prompt: ChatPrompt) -> EncodedChat:
        """Renders and encodes one conversation.

        Raises:
            InvalidRequestError: If the messages are no conversation, or a tool or option is wrong.
        """
        recipe = self._recipe
        options = prompt.options
        body: dict[str, Any] = {
            "model": _MODEL,
            "messages": _mappings(prompt.messages, "messages", "`role` and `content`"),
            "thinking": {"type": "enabled" if options.thinking else "disabled"},
        }
        if prompt.tools is not None:
            body["tools"] = _mappings(prompt.tools, "tools", "`type` and `function`")
        for name in ("reasoning_effort", "tool_choice", "response_format"):
            if (value := getattr(options, name)) is not None:
                body[name] = value
        try:
            request = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
            if any(message.image_sources for message in request.conversation.messages):
                raise ValueError("they hold an image, and this engine reads text alone")
            token_ids = self._encoding.encode(request.conversation)
        # A `RuntimeError` is a tokenizer without a token of the prompt format.
        except (recipe.ConversionError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidRequestError(
                f"the messages cannot be encoded: {error}", param="messages"
            ) from error
        return EncodedChat(token_ids, request)

    def parse(
        self, chat: EncodedChat, completion: CompletionOutput, params: SamplingParams
    ) -> ChatMessage:
        """Parses a finished completion of `chat`.

        Token ids are parsed, not text: markup that the model spells with ordinary ids is text.

        Args:
            chat: What `encode` returned.
            completion: What the engine generated for it.
            params: Parameters it was generated with.
        """
        recipe = self._recipe
        processor = recipe.StreamProcessor(
            recipe.ChatCompletionRequest.chunk_generator(chat.request, "chat", _MODEL),
            chat.request.parsing_options,
            self._tokenizer,
        )
        length = completion.finish_reason == "length"
        reason = recipe.InferenceFinishReason
        events = processor.push(recipe.InferenceChunk.tokens(self._message_ids(completion, params)))
        events += processor.push(
            recipe.InferenceChunk.finish(reason.Length if length else reason.Stop)
        )
        response = recipe.ChatCompletionResponse("chat", _MODEL, 0, 0, 0)
        for event in events:
            response.accumulate(event)
        message = _message(json.loads(response.to_json()))
        stop = completion.stop_reason
        if isinstance(stop, str) and not params.include_stop_str_in_output:
            message = _without_stop_string(message, stop)
        return message

    def _message_ids(self, completion: CompletionOutput, params: SamplingParams) -> list[int]:
        """The ids that belong to the message: no end-of-sequence, no hidden stop token."""
        token_ids = completion.token_ids
        if isinstance(completion.stop_reason, int) and not params.include_stop_str_in_output:
            token_ids = token_ids[:-1]
        return [token_id for token_id in token_ids if token_id not in self._eos_token_ids]


def split_conversations(messages: Any) -> list[Any]:
    """Tells one conversation, a list of mappings, from a batch of conversations.

    Raises:
        InvalidRequestError: If it is neither.
    """
    if isinstance(messages, str | bytes | Mapping) or not hasattr(messages, "__iter__"):
        raise InvalidRequestError(
            "`messages` must be a list of messages, or a list of such lists: got "
            f"{type(messages).__name__}",
            param="messages",
        )
    members = list(messages)
    if any(isinstance(member, Mapping) for member in members) or not members:
        return [members]
    return members


def _mappings(values: Any, name: str, content: str) -> list[dict[str, Any]]:
    """Checks a list of mappings; what is in them is the recipe's to judge."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise InvalidRequestError(
            f"`{name}` must be a list: got {type(values).__name__}", param=name
        )
    result = []
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise InvalidRequestError(
                f"`{name}[{index}]` must be a mapping with {content}: got {type(value).__name__}",
                param=name,
            )
        result.append(dict(value))
    return result


def _message(response: dict[str, Any]) -> ChatMessage:
    """The message of a Chat Completions response, malformed calls set apart."""
    message = response["choices"][0]["message"]
    malformed = response.get("malformed_tool_calls", [])
    not_to_run = {call["index"] for call in malformed}
    return ChatMessage(
        content=message["content"],
        reasoning_content=message.get("reasoning_content"),
        tool_calls=[
            {name: value for name, value in call.items() if name != "index"}
            for call in message.get("tool_calls", [])
            if call["index"] not in not_to_run
        ],
        malformed_tool_calls=malformed,
    )


def _without_stop_string(message: ChatMessage, stop: str) -> ChatMessage:
    """Cuts the stop string that ended the text, which is its last one, and what follows it."""
    if stop in message.content:
        return replace(message, content=message.content.rpartition(stop)[0])
    if not message.content and message.reasoning_content:
        before, found, after = message.reasoning_content.rpartition(stop)
        return replace(message, reasoning_content=before if found else after)
    return message


def import_recipe() -> ModuleType:
    """Imports `deepseek_recipe`.

    Raises:
        UnsupportedEnvironmentError: If it is not installed; says what to install.
    """
    try:
        return importlib.import_module("deepseek_recipe")
    except ImportError:
        raise UnsupportedEnvironmentError(
            "chat messages need the package `deepseek-recipe` of this project: install its wheel "
            "from the project's own index, not the bare name from a public one; or encode the "
            "messages yourself and call `generate` with token ids"
        ) from None
