"""What the default mode accepts, refuses or answers differently, and that `official` keeps the original's way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from round_trip import BODIES, MODEL, block, convert, invoke, parameter, prompt, run

import deepseek_recipe as recipe

USER = {"role": "user", "content": "Hi"}


def chat(*messages: Any, **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(messages) or [USER], **members}


def responses(given: Any = "Hi", **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, **members}


def messages(*given: Any, **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(given) or [USER], **members}


ADDED = {
    "developer": ("chat", chat({"role": "developer", "content": "Be brief."}, USER)),
    "nested file": (
        "chat",
        chat({"role": "user", "content": [{"type": "file", "file": {"filename": "a.png", "file_data": "data:image/png;base64,AA=="}}]}),
    ),
    "refusal": (
        "responses",
        responses([USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER]),
    ),
    "redacted thinking": (
        "messages",
        messages(USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "A"}]}, USER),
    ),
    "custom tool": (
        "messages",
        messages(tools=[{"type": "custom", "name": "tide", "input_schema": {"type": "object"}}]),
    ),
    "n": ("chat", chat(n=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", ADDED)
def test_added_input_is_refused_by_official(name: str) -> None:
    protocol, body = ADDED[name]
    convert(protocol, body)
    with pytest.raises((ValueError, recipe.ConversionError)):
        convert(protocol, body, compat="official")


def test_developer_is_a_system_message() -> None:
    request = convert(*ADDED["developer"])
    assert request.conversation.messages[0].role == "system"


def test_max_completion_tokens() -> None:
    assert convert("chat", chat(max_completion_tokens=7)).inference_options.max_tokens == 7
    assert (
        convert(
            "chat", chat(max_completion_tokens=7), compat="official"
        ).inference_options.max_tokens
        is None
    )


def test_refusal_is_text() -> None:
    assert convert(*ADDED["refusal"]).conversation.messages[1].content == "No."


def test_any_requires_a_call() -> None:
    body = {**BODIES["messages"], "tool_choice": {"type": "any"}}
    assert convert("messages", body).conversation.tool_choice == "required"
    assert convert("messages", body, compat="official").conversation.tool_choice == "auto"
    constraint = convert("messages", body).inference_options.output_constraint
    assert constraint is not None
    assert constraint.is_required


@pytest.mark.parametrize(
    ("protocol", "member"),
    [
        ("chat", {"parallel_tool_calls": False}),
        ("responses", {"parallel_tool_calls": False}),
        ("messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
def test_parallel_calls_are_handed_over(protocol: str, member: dict[str, Any]) -> None:
    request = convert(protocol, {**BODIES[protocol], **member})
    assert request.inference_options.parallel_tool_calls is False
    if protocol == "responses":
        assert run("Ten.", protocol, request=request).response["parallel_tool_calls"] is False


def test_output_format_of_messages() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    body = messages(output_config={"format": {"type": "json_schema", "schema": schema}})
    request = convert("messages", body)
    assert request.conversation.response_format == "json_schema"
    assert request.inference_options.output_constraint is not None
    assert convert("messages", body, compat="official").conversation.response_format == "text"


def test_strict_tools_become_a_constraint() -> None:
    tool = {
        "name": "tide",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"hour": {"type": "string", "minLength": 2, "const": "12"}},
            "required": ["hour"],
            "additionalProperties": False,
            "$defs": {"x": {"type": "string"}},
        },
    }
    body = chat(
        tools=[{"type": "function", "function": tool}],
        tool_choice={"type": "function", "function": {"name": "tide"}},
        thinking={"type": "disabled"},
    )
    constraint = convert("chat", body).inference_options.output_constraint
    assert constraint is not None
    assert constraint.tools is not None
    assert [(item.name, item.strict) for item in constraint.tools] == [("tide", True)]
    assert constraint.is_required
    kept = constraint.tools[0].parameters
    assert kept["properties"]["hour"]["minLength"] == 2
    assert kept["properties"]["hour"]["const"] == "12"
    assert "$defs" in kept


def test_choices_are_independent_streams() -> None:
    request = convert("chat", chat(n=2, thinking={"type": "disabled"}))
    assert request.inference_options.n == 2
    generators = recipe.ChatCompletionRequest.chunk_generators(request, "id", "m")
    response = recipe.ChatCompletionResponse("id", "m", 0, 0, 0)
    for text, generator in zip(("one", "two"), generators, strict=True):
        processor = recipe.StreamProcessor(generator, request.parsing_options)
        for chunk in (
            recipe.InferenceChunk.text(text, 1),
            recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop),
        ):
            for event in processor.push(chunk):
                response.accumulate(event)
    choices = json.loads(response.to_json())["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [
        (0, "one"),
        (1, "two"),
    ]


@pytest.mark.parametrize(
    "member",
    [
        {"previous_response_id": "resp-1"},
        {"conversation": "conv-1"},
        {"background": True},
        {"store": True},
    ],
)
def test_context_that_is_not_there_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(recipe.ConversionError) as caught:
        convert("responses", responses(**member))
    assert caught.value.status_code == 400
    convert("responses", responses(**member), compat="official")


def test_previous_response_comes_from_a_store() -> None:
    store = recipe.InMemoryResponseStore()
    options = recipe.ConversionOptions()
    first = recipe.ResponsesRequest(
        responses("What is the tide?", store=True, reasoning={"effort": "none"})
    ).convert(options, store)
    outcome = recipe.ResponsesResponse("resp-1", "m", 0, 0, 0)
    generator = recipe.ResponsesRequest.chunk_generator(first, "resp-1", "m")
    processor = recipe.StreamProcessor(generator, first.parsing_options)
    for chunk in (
        recipe.InferenceChunk.text("High."),
        recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop),
    ):
        for event in processor.push(chunk):
            outcome.accumulate(event)
    store.save("resp-1", first, outcome)
    second = recipe.ResponsesRequest(
        responses("And later?", previous_response_id="resp-1")
    ).convert(options, store)
    assert [(item.role, item.content) for item in second.conversation.messages] == [
        ("user", "What is the tide?"),
        ("assistant", "High."),
        ("user", "And later?"),
    ]
    with pytest.raises(recipe.ConversionError):
        recipe.ResponsesRequest(responses(previous_response_id="resp-9")).convert(options, store)


@pytest.mark.parametrize(
    ("member", "is_kept"), [({}, True), ({"store": True}, True), ({"store": False}, False)]
)
def test_a_response_is_stored_unless_the_request_says_no(
    member: dict[str, Any], is_kept: bool
) -> None:
    store = recipe.InMemoryResponseStore()
    request = recipe.ResponsesRequest(responses(**member)).convert(
        recipe.ConversionOptions(), store
    )
    outcome = recipe.ResponsesResponse("resp-1", "m", 0, 0, 0)
    assert (request.history_json() is not None) == is_kept
    assert run("x</think>y", "responses", request=request).response["store"] == is_kept
    store.save("resp-1", request, outcome)
    assert (store.load("resp-1") is not None) == is_kept
    without = convert("responses", responses(store=False))
    assert without.history_json() is None
    assert run("x</think>y", "responses", request=without).response["store"] is False


def test_two_contexts_exclude_each_other() -> None:
    body = responses(previous_response_id="a", conversation="b")
    with pytest.raises(recipe.ConversionError, match="exclude each other"):
        recipe.ResponsesRequest(body).convert(
            recipe.ConversionOptions(), recipe.InMemoryResponseStore()
        )


def test_store_errors_pass_through() -> None:
    class Broken:
        def load(self, response_id: str) -> None:
            raise KeyError(response_id)

    with pytest.raises(KeyError):
        recipe.ResponsesRequest(responses(previous_response_id="x")).convert(
            recipe.ConversionOptions(), Broken()
        )


def test_our_own_sealed_reasoning_comes_back() -> None:
    key = bytes(range(32))
    request = convert(
        "responses", responses(include=["reasoning.encrypted_content"]), reasoning_key=key
    )
    outcome = run("Because.</think>Yes.", "responses", request=request)
    item = outcome.response["output"][0]
    assert item["type"] == "reasoning"
    assert "Because" not in item["encrypted_content"]
    item = {**item, "content": []}
    history = [USER, item, {"role": "assistant", "content": "Yes."}, USER]
    restored = convert("responses", responses(history), reasoning_key=key)
    assert restored.conversation.messages[1].reasoning_content == "Because."
    other = convert("responses", responses(history), reasoning_key=bytes(32))
    assert other.conversation.messages[1].reasoning_content != "Because."


def test_dropped_things_are_told() -> None:
    told: list[tuple[str, str]] = []
    body = responses([USER, {"type": "item_of_tomorrow"}], tools=[{"type": "image_generation"}])
    request = convert("responses", body, on_warning=lambda path, text: told.append((path, text)))
    assert {path for path, _ in told} == {"input[1]", "tools[0]"}
    assert request.warnings == told


def test_deferred_tools_are_left_out() -> None:
    tool = {"type": "function", "name": "tide", "defer_loading": True}
    assert convert("responses", responses(tools=[tool])).conversation.tools[0].defer_loading
    assert (
        not convert("responses", responses(tools=[tool]), compat="official")
        .conversation.tools[0]
        .defer_loading
    )


def test_json_mode_emits_no_padding() -> None:
    text = 'Well: {"a": 1}'
    request = convert(
        "chat",
        chat(
            {"role": "user", "content": "json"},
            response_format={"type": "json_object"},
            thinking={"type": "disabled"},
        ),
    )
    for pieces in ([text], list(text)):
        assert run(pieces, request=request).content == '{"a": 1}'


def test_strict_json_output_ends_with_the_value() -> None:
    assert run('{"a": 1} bye', parse_json_output=True).content == '{"a": 1} bye'
    assert (
        run('{"a": 1} bye', parse_json_output=True, strict_json_output=True).content == '{"a": 1}'
    )
    assert (
        run('[note] {"a": 1}', parse_json_output=True, strict_json_output=True).response is not None
    )


def test_text_after_a_block_can_be_kept() -> None:
    output = "Before." + block(invoke("tide", parameter("h", "x"))) + "After."
    assert run(output).content == "Before."
    assert run(output, keep_text_after_tools=True).content == "Before.After."


def test_prefill_of_messages_is_an_option() -> None:
    body = messages(
        USER, {"role": "assistant", "content": "The tide"}, thinking={"type": "disabled"}
    )
    assert prompt(convert("messages", body)).endswith("<｜Assistant｜></think>")
    assert prompt(convert("messages", body, continue_messages_prefill=True)).endswith("The tide")


def test_tool_errors_can_be_marked() -> None:
    call = {"type": "tool_use", "id": "t", "name": "tide", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": "no such harbour",
        "is_error": True,
    }
    body = messages(
        USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}
    )
    plain, marked = (
        prompt(convert("messages", body)),
        prompt(convert("messages", body, mark_tool_errors=True)),
    )
    assert "no such harbour" in plain
    assert plain != marked
    assert "rror" in marked


@pytest.mark.parametrize("step", [1, -1])
def test_many_calls_and_their_results(step: int) -> None:
    ids = [f"c{number:05}" for number in range(3000)]
    calls = [{"type": "tool_use", "id": name, "name": "tide", "input": {}} for name in ids]
    results = [{"type": "tool_result", "tool_use_id": name} for name in ids[::step]]
    turns = [USER, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    given = convert("messages", messages(*turns)).conversation.messages
    assert [message.tool_call_id for message in given[2:]] == ids[::step]
    turns[2] = {"role": "user", "content": [*results[:1], *results[3:]]}
    with pytest.raises(recipe.ConversionError, match=", ".join(sorted(ids[::step][1:3]))):
        convert("messages", messages(*turns))

    items = [
        {"type": "function_call", "call_id": name, "name": "tide", "arguments": "{}"}
        for name in ids
    ]
    outputs = [
        {"type": "function_call_output", "call_id": name, "output": name} for name in ids[::step]
    ]
    given = convert("responses", responses([USER, *items, *outputs])).conversation.messages
    assert [message.content for message in given[2:]] == ids
    with pytest.raises(recipe.ConversionError, match=ids[::step][-1]):
        convert("responses", responses([USER, *items, *outputs[:-1]]))


def test_usage_in_the_layout_of_openai() -> None:
    body = chat(stream=True, stream_options={"include_usage": True}, thinking={"type": "disabled"})
    events = run("Hi", request=convert("chat", body, openai_usage_chunk=True)).events
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 0
    assert run("Hi", request=convert("chat", body)).events[-1]["choices"] != []


def test_numeric_effort() -> None:
    conversation = recipe.Conversation([recipe.UserMessage("Hi")], reasoning_effort_value=42)
    assert (
        "Reasoning Effort: 42 "
        in recipe.DeepseekV41Encoding().render_conversation(conversation).prompt
    )
    for wrong in (0, 101):
        with pytest.raises(ValueError):
            recipe.Conversation([], reasoning_effort_value=wrong)


def test_reasoning_tokens_are_counted_by_state() -> None:
    request = convert("chat", chat())
    processor = recipe.StreamProcessor(
        recipe.ChatCompletionRequest.chunk_generator(request, "id", "m"), request.parsing_options
    )
    response = recipe.ChatCompletionResponse("id", "m", 0, 0, 0)
    chunks = [recipe.InferenceChunk.text(text, 1) for text in ("why", " so", "</think>", "Yes")]
    for chunk in [*chunks, recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)]:
        for event in processor.push(chunk):
            response.accumulate(event)
    usage = json.loads(response.to_json())["usage"]
    assert usage["completion_tokens"] == 4
    assert 2 <= usage["completion_tokens_details"]["reasoning_tokens"] <= 3


def test_error_bodies_of_messages() -> None:
    with pytest.raises(recipe.ConversionError) as caught:
        convert("messages", {**messages(), "temperature": 7})
    body = json.loads(caught.value.messages_body)
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert "error" in json.loads(caught.value.body)


def test_compat_travels_with_the_request() -> None:
    request = convert("chat", compat="official")
    assert request.compat == "official"
    assert (
        recipe.ConversationRequest(request.conversation, request.model_version).compat == "default"
    )
    outcome = run("prose <｜DSML｜ more", request=request, parse_tool_calls=True)
    assert outcome.content == "prose "
    with pytest.raises(ValueError):
        recipe.ConversionOptions(compat="strict")


def test_limits_say_what_is_allowed() -> None:
    with pytest.raises((ValueError, recipe.ConversionError), match="2"):
        convert("chat", chat(USER, USER, USER), max_messages=2)
    tools = [{"type": "function", "function": {"name": f"t{index}"}} for index in range(3)]
    with pytest.raises((ValueError, recipe.ConversionError), match="2"):
        convert("chat", chat(tools=tools), max_tools=2)
    with pytest.raises((ValueError, recipe.ConversionError), match="2"):
        convert("chat", chat(n=3), max_choices=2)
    big = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 500}}}
    with pytest.raises((ValueError, recipe.ConversionError), match="100"):
        convert(
            "chat",
            chat(tools=[{"type": "function", "function": {"name": "t", "parameters": big}}]),
            max_schema_bytes=100,
        )


@pytest.mark.parametrize("protocol", list(BODIES))
def test_deep_nesting_is_an_error(protocol: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    request_class = {
        "chat": recipe.ChatCompletionRequest,
        "responses": recipe.ResponsesRequest,
        "messages": recipe.MessagesRequest,
    }[protocol]
    for body in (deep, '{"model": "m", "messages": ' + deep + "}", '{"tools": ' + deep + "}"):
        with pytest.raises(ValueError):
            request_class(body)
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises((ValueError, RecursionError)):
        request_class({**BODIES[protocol], "x": nested, "messages": nested, "input": nested})


def test_deep_arguments_are_malformed() -> None:
    output = block(invoke("tide", parameter("n", "[" * 100_000, "false")))
    assert run(output).malformed[0][2] == "invalid_json"


BIG = {"type": "object", "description": "x" * 500_000}


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (
            "messages",
            messages(
                USER,
                {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "big"}}] * 100},
                tools=[{"name": "t", "input_schema": {"type": "object"}}, {"name": "big", "input_schema": BIG, "defer_loading": True}],
            ),
        ),
        (
            "responses",
            responses(tools=[{"type": "namespace", "name": "n", "description": "x" * 500_000, "tools": [{"type": "function", "name": f"t{index}"} for index in range(100)]}]),
        ),
    ],
    ids=["references", "namespace"],
)  # fmt: skip
def test_a_short_request_cannot_ask_for_an_endless_prompt(
    protocol: str, body: dict[str, Any]
) -> None:
    with pytest.raises(recipe.ConversionError, match="repeat too much text"):
        convert(protocol, body)


def test_tools_of_namespaces_are_counted() -> None:
    tools = [{"type": "function", "name": f"t{index}"} for index in range(6)]
    namespaces = [
        {"type": "namespace", "name": name, "description": "", "tools": tools} for name in "ab"
    ]
    convert("responses", responses(tools=namespaces), max_tools=12)
    with pytest.raises(recipe.ConversionError, match="too many tools: 12, the limit is 11"):
        convert("responses", responses(tools=namespaces), max_tools=11)
