"""What the trained built-in checkpoint does: recorded outputs, well-formed markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from di_engine import LLM, ChatOptions, SamplingParams
from di_structured import OutputSchema

pytestmark = pytest.mark.slow

GOLDEN = {
    "def __init__(self": ", x, y, x, y, x, y",
    "The function returns": " the function as a\n:term:`specifying an",
    "dog (noun):": " a small piece of furniture\ndog",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "price": {"type": "integer"}},
    "required": ["name", "price"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", arithmetic="float32", deterministic=True, max_running=4) as made:
        yield made


def test_greedy_outputs_are_the_recorded_ones(llm: LLM) -> None:
    outputs = llm.generate(list(GOLDEN), SamplingParams(max_tokens=12, temperature=0))
    assert {output.prompt: output.text for output in outputs} == GOLDEN


@pytest.mark.parametrize("thinking", [True, False])
def test_a_question_with_a_tool_becomes_a_well_formed_call(llm: LLM, thinking: bool) -> None:
    pytest.importorskip("deepseek_recipe")
    (output,) = llm.chat(
        [{"role": "user", "content": "What is the weather in Glimsby?"}],
        [WEATHER],
        SamplingParams(max_tokens=96, temperature=0),
        options=ChatOptions(thinking=thinking),
    )
    message = output.outputs[0].message
    assert message is not None
    assert output.outputs[0].finish_reason == "stop"
    assert message.malformed_tool_calls == []
    (call,) = message.tool_calls
    assert call["function"]["name"] == "get_weather"
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)
    assert (message.reasoning_content is not None) == thinking


def test_an_answer_in_the_chat_format_follows_a_schema_it_is_held_to(llm: LLM) -> None:
    pytest.importorskip("xgrammar")
    recipe: Any = pytest.importorskip("deepseek_recipe")
    conversation = recipe.Conversation(
        [recipe.UserMessage("Describe an item as JSON.")],
        thinking_mode=False,
        response_schema=RECORD,
    )
    assert llm.tokenizer is not None
    encoding = recipe.DeepseekV41Encoding()
    tokenizer = recipe.Tokenizer.from_str(llm.tokenizer.backend.to_str())
    token_ids = encoding.with_tokenizer(tokenizer).encode(conversation)
    params = SamplingParams(
        max_tokens=64, temperature=0, output_schema=OutputSchema.json_schema(RECORD)
    )
    (output,) = llm.generate([token_ids], params)
    assert output.outputs[0].finish_reason == "stop"
    answer = json.loads(output.text)
    assert set(answer) == {"name", "price"}
    assert isinstance(answer["name"], str)
    assert isinstance(answer["price"], int)
