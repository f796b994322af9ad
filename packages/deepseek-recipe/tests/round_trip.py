"""Short ways from a request to a prompt, and from output to events and a response."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import deepseek_recipe as recipe

MODEL = "DeepSeek-V4.1-Flash"
REQUESTS: dict[str, tuple[Any, Any]] = {
    "chat": (recipe.ChatCompletionRequest, recipe.ChatCompletionResponse),
    "responses": (recipe.ResponsesRequest, recipe.ResponsesResponse),
    "messages": (recipe.MessagesRequest, recipe.MessagesResponse),
}
#: A request per protocol that declares the tool `tide` and does not think.
BODIES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "When?"}],
        "tools": [{"type": "function", "function": {"name": "tide"}}],
        "thinking": {"type": "disabled"},
    },
    "responses": {
        "model": MODEL,
        "input": "When?",
        "tools": [{"type": "function", "name": "tide"}],
        "reasoning": {"effort": "none"},
    },
    "messages": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "When?"}],
        "tools": [{"name": "tide", "input_schema": {"type": "object"}}],
        "thinking": {"type": "disabled"},
    },
}


def convert(protocol: str, body: dict[str, Any] | None = None, **options: Any) -> Any:
    """Convert a body, by default the one of `BODIES`."""
    request_class, _ = REQUESTS[protocol]
    return request_class(body or BODIES[protocol]).convert(recipe.ConversionOptions(**options))


def prompt(request: Any, **arguments: Any) -> str:
    return (
        recipe.DeepseekV41Encoding().render_conversation(request.conversation, **arguments).prompt
    )


def cut(text: str, size: int | None) -> list[str]:
    """Pieces of `size` characters."""
    return (
        [text]
        if size is None
        else [text[start : start + size] for start in range(0, len(text), size)]
    )


@dataclass
class Outcome:
    """What became of an output."""

    events: list[dict[str, Any]]
    response: dict[str, Any]
    malformed: list[tuple[int | None, str, str]]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Calls of a Chat response: name and argument text."""
        calls = self.response["choices"][0]["message"].get("tool_calls") or []
        return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    @property
    def content(self) -> str | None:
        """Answer of a Chat response."""
        content: str | None = self.response["choices"][0]["message"].get("content")
        return content

    @property
    def final(self) -> dict[str, Any]:
        """The response without what depends on chunks, time and chance: usage, times and call ids."""
        text = json.dumps({name: value for name, value in self.response.items() if name != "usage"})
        for event in self.response.get("content") or []:
            if isinstance(event, dict) and "id" in event:
                text = text.replace(event["id"], "call")
        for choice in self.response.get("choices") or []:
            for call in choice["message"].get("tool_calls") or []:
                text = text.replace(call["id"], "call")
        for item in self.response.get("output") or []:
            for name in ("id", "call_id"):
                if name in item:
                    text = text.replace(item[name], "call")
        result: dict[str, Any] = json.loads(text)
        times = {"created", "created_at", "completed_at"}
        return {name: value for name, value in result.items() if name not in times}


def run(
    pieces: str | Iterable[Any],
    protocol: str = "chat",
    *,
    request: Any = None,
    finish: Any = recipe.InferenceFinishReason.Stop,
    tokenizer: Any = None,
    **parsing: Any,
) -> Outcome:
    """Push pieces of output, texts or lists of ids, through a processor."""
    request_class, response_class = REQUESTS[protocol]
    request = request or convert(protocol)
    options = request.parsing_options
    for name, value in parsing.items():
        setattr(options, name, value)
    processor = recipe.StreamProcessor(
        request_class.chunk_generator(request, "id", "m"), options, tokenizer
    )
    events: list[Any] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        if processor.finished:
            break
        chunk = (
            recipe.InferenceChunk.text(piece)
            if isinstance(piece, str)
            else recipe.InferenceChunk.tokens(piece)
        )
        events += processor.push(chunk)
    if finish is not None and not processor.finished:
        events += processor.push(recipe.InferenceChunk.finish(finish))
    events += processor.finish()
    # Accumulating takes an event's content, so it is written first.
    written = [json.loads(event.to_json()) for event in events]
    response = response_class("id", "m", 0, 0, 0)
    for event in events:
        response.accumulate(event)
    return Outcome(
        written,
        json.loads(response.to_json()),
        [(call.index, call.name, call.reason) for call in processor.malformed_tool_calls],
    )


def block(*invokes: str) -> str:
    """A block of calls."""
    return "<｜DSML｜ calls>\n" + "\n".join(invokes) + "\n</｜DSML｜ calls>"


def invoke(name: str, *parameters: str) -> str:
    inside = "".join(parameter + "\n" for parameter in parameters)
    return f'<｜DSML｜ invoke name="{name}">\n{inside}</｜DSML｜ invoke>'


def parameter(name: str, value: str, string: str = "true") -> str:
    return f'<｜DSML｜ parameter name="{name}" string="{string}">{value}</｜DSML｜ parameter>'
