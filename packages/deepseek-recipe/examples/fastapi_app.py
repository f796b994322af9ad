"""A front-end with the three protocols in front of a model: `uvicorn fastapi_app:app`.

`MockModel` stands where an engine would: it is given the prompt and yields pieces of output text.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

import deepseek_recipe as recipe

PROTOCOLS: dict[str, tuple[Any, Any]] = {
    "/v1/chat/completions": (recipe.ChatCompletionRequest, recipe.ChatCompletionResponse),
    "/v1/responses": (recipe.ResponsesRequest, recipe.ResponsesResponse),
    "/v1/messages": (recipe.MessagesRequest, recipe.MessagesResponse),
}


class MockModel:
    """Answers every prompt with the same output, a few characters at a time."""

    def __init__(self, output: str = "The user greets.</think>Hello! 🌊") -> None:
        self.output = output
        self.prompts: list[str] = []

    async def generate(self, prompt: str, max_tokens: int) -> AsyncIterator[str]:
        self.prompts.append(prompt)
        for start in range(0, len(self.output), 5):
            yield self.output[start : start + 5]


model = MockModel()
options = recipe.ConversionOptions().with_model_alias(
    "deepseek", recipe.ModelVersion.DeepseekV41Flash
)
encoding = recipe.DeepseekV41Encoding()
app = FastAPI()


async def events(
    processor: recipe.StreamProcessor, prompt: str, max_tokens: int
) -> AsyncIterator[Any]:
    """Protocol events of one generation."""
    for event in processor.push(recipe.InferenceChunk.ready()):
        yield event
    async for text in model.generate(prompt, max_tokens):
        for event in processor.push(recipe.InferenceChunk.text(text, token_count=1)):
            yield event
        # A stop sequence was found: the rest of the output is not wanted.
        if processor.finished:
            return
    for event in processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)):
        yield event


async def answer(request: Request) -> Response:
    """Any of the three protocols, streamed or whole."""
    path = request.url.path
    request_class, response_class = PROTOCOLS[path]
    try:
        parsed = request_class(await request.body())
        name = parsed.model
        converted = parsed.convert(options)
        prompt = encoding.render_conversation(converted.conversation).prompt
        max_tokens = converted.resolve_max_tokens(len(prompt) // 3, 1_000_000)
    except recipe.ConversionError as error:
        body = error.messages_body if path == "/v1/messages" else error.body
        return Response(body, error.status_code, media_type="application/json")
    except ValueError as error:
        shape = {"message": str(error), "type": "invalid_request_error"}
        return Response(
            json.dumps({"type": "error", "error": shape}), 400, media_type="application/json"
        )

    generator = request_class.chunk_generator(converted, uuid.uuid4().hex, name)
    processor = recipe.StreamProcessor(generator, converted.parsing_options)
    produced = events(processor, prompt, max_tokens)
    if converted.stream:
        return StreamingResponse(
            server_sent(produced, response_class), media_type="text/event-stream"
        )
    response = response_class(uuid.uuid4().hex, name, int(time.time()), 0, 0)
    async for event in produced:
        response.accumulate(event)
    return Response(response.to_json(), media_type="application/json")


async def server_sent(produced: AsyncIterator[Any], response_class: Any) -> AsyncIterator[str]:
    """Server-sent events; each protocol says how its events are called and how its stream ends."""
    async for event in produced:
        name = response_class.sse_event_name(event)
        yield (f"event: {name}\n" if name else "") + f"data: {event.to_json()}\n\n"
    done = response_class.sse_done_data()
    if done:
        yield f"data: {done}\n\n"


for path in PROTOCOLS:
    app.post(path)(answer)
