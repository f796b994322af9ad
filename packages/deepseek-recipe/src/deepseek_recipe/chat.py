"""Rendering and parsing in two calls, for programs that hold messages rather than HTTP requests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deepseek_recipe._recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ConversationRequest,
    ConversionOptions,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    ImageSource,
    InferenceChunk,
    InferenceFinishReason,
    ModelVersion,
    StreamProcessor,
    Tokenizer,
)

_MODEL = "chat"
_FINISH_REASONS = {
    "stop": InferenceFinishReason.Stop,
    "length": InferenceFinishReason.Length,
    "content_filter": InferenceFinishReason.ContentFilter,
}


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A prompt and what is needed to parse the output it leads to.

    Attributes:
        prompt: Prompt text.
        token_ids: Prompt ids; `None` without a tokenizer.
        image_sources: Images in the order of their placeholders.
        request: The converted request: sampling values, output constraint, parsing options.
    """

    prompt: str
    token_ids: list[int] | None
    image_sources: list[ImageSource]
    request: ConversationRequest


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    version: ModelVersion = ModelVersion.DeepseekV41Flash,
    tokenizer: Tokenizer | None = None,
    options: ConversionOptions | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    strict_markers: bool = False,
    **members: Any,
) -> RenderedChat:
    """Render messages in the form of Chat Completions.

    Args:
        messages: Messages as in a Chat Completions request.
        tools: Tools as in a Chat Completions request.
        version: Model, which decides the prompt format.
        tokenizer: Gives token ids; literal markers in messages become ordinary ids.
        options: Conversion options; spellings of special tokens are taken from them.
        add_generation_prompt: Open the assistant's turn at the end.
        continue_final_message: Leave the last assistant message open instead.
        strict_markers: Refuse messages that spell a special token.
        **members: Further members of the request, for example `thinking`, `reasoning_effort`,
            `tool_choice`, `response_format`, `stop`, `temperature`.

    Raises:
        ValueError: The messages have the wrong shape, or, as `MarkerError`, spell a marker.
        ConversionError: They break a rule.
        RuntimeError: The tokenizer lacks a special token of the prompt.
    """
    options = (options or ConversionOptions()).with_model_alias(_MODEL, version)
    body: dict[str, Any] = {"model": _MODEL, "messages": list(messages), **members}
    if tools is not None:
        body["tools"] = list(tools)
    request = ChatCompletionRequest(body).convert(options)
    is_v4 = version == ModelVersion.DeepseekV4Pro
    encoding: DeepseekV4Encoding | DeepseekV41Encoding = (
        DeepseekV4Encoding() if is_v4 else DeepseekV41Encoding()
    )
    encoding = encoding.with_special_tokens(options.special_tokens)
    rendered = encoding.render_conversation(
        request.conversation,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        strict_markers=strict_markers,
    )
    token_ids = None
    if tokenizer is not None:
        token_ids = encoding.with_tokenizer(tokenizer).encode(
            request.conversation,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
    return RenderedChat(rendered.prompt, token_ids, rendered.image_sources, request)


def stream_chat(
    chat: RenderedChat,
    *,
    response_id: str = "chatcmpl-local",
    model: str = _MODEL,
    tokenizer: Tokenizer | None = None,
) -> StreamProcessor:
    """Return a processor that turns output of `chat` into Chat Completions chunks.

    Args:
        chat: What `render_chat` gave.
        response_id: Id that the chunks carry.
        model: Model name that the chunks carry.
        tokenizer: Needed to push token ids.
    """
    generator = ChatCompletionRequest.chunk_generator(chat.request, response_id, model)
    return StreamProcessor(generator, chat.request.parsing_options, tokenizer)


def parse_chat(
    output: str | Sequence[int],
    chat: RenderedChat,
    *,
    finish_reason: Literal["stop", "length", "content_filter"] = "stop",
    tokenizer: Tokenizer | None = None,
) -> dict[str, Any]:
    """Parse complete output of `chat` into a Chat Completions response.

    Args:
        output: Text, or token ids if `tokenizer` is given.
        chat: What `render_chat` gave.
        finish_reason: Why the engine stopped.
        tokenizer: Needed for token ids.

    Returns:
        The response; calls that must not be executed are also listed under `malformed_tool_calls`.

    Raises:
        RuntimeError: Token ids without a tokenizer.
    """
    processor = stream_chat(chat, tokenizer=tokenizer)
    if isinstance(output, str):
        chunk = InferenceChunk.text(output)
    else:
        chunk = InferenceChunk.tokens(list(output))
    events = processor.push(chunk)
    if not processor.finished:
        events += processor.push(InferenceChunk.finish(_FINISH_REASONS[finish_reason]))
    response = ChatCompletionResponse("chatcmpl-local", _MODEL, int(time.time()), 0, 0)
    for event in events:
        response.accumulate(event)
    result: dict[str, Any] = json.loads(response.to_json())
    return result
