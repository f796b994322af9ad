"""In the default mode a malformed call never becomes one that can be executed, in any protocol and at any split."""

from __future__ import annotations

import json

import pytest
from round_trip import block, convert, invoke, parameter, run

import deepseek_recipe as recipe

OPEN = "<｜DSML｜ calls>\n"
CLOSE = "\n</｜DSML｜ calls>"
HEAD = '<｜DSML｜ invoke name="tide">\n'

#: Output, argument text that Chat shows, reason.
MALFORMED = {
    "raw value cut": (block(invoke("tide", parameter("n", "[1,", "false"))), '{"n": [1,', "invalid_json"),
    "raw value with a second member": (
        block(invoke("tide", parameter("n", '1, "b": 2', "false"))), '{"n": 1', "invalid_json",
    ),
    "raw value closing the object": (block(invoke("tide", parameter("n", "1}", "false"))), '{"n": 1', "invalid_json"),
    "raw value empty": (block(invoke("tide", parameter("n", "  ", "false"))), '{"n":   ', "invalid_json"),
    "raw value is prose": (block(invoke("tide", parameter("n", "north", "false"))), '{"n": n', "invalid_json"),
    "number too large": (block(invoke("tide", parameter("n", "1e400", "false"))), '{"n": 1e400', "invalid_json"),
    "wrong string flag": (block(invoke("tide", parameter("h", "x", "maybe"))), '{"h', "invalid_string_flag"),
    "value without closer": (
        OPEN + HEAD + '<｜DSML｜ parameter name="h" string="true">abc', '{"h": "abc', "truncated",
    ),
    "value with another closer": (
        OPEN + HEAD + '<｜DSML｜ parameter name="h" string="true">x\n</｜DSML｜ invoke>' + CLOSE,
        '{"h": "x\\n', "missing_parameter_closer",
    ),
    "next parameter inside a value": (
        OPEN + HEAD + '<｜DSML｜ parameter name="h" string="true">x' + parameter("g", "y") + "\n</｜DSML｜ invoke>" + CLOSE,
        '{"h": "x', "missing_parameter_closer",
    ),
    "no invoke closer": (OPEN + HEAD + parameter("h", "x") + CLOSE, '{"h": "x"', "missing_invoke_closer"),
    "end in the arguments": (OPEN + HEAD + parameter("h", "x"), '{"h": "x"', "truncated"),
    "end after the name": (OPEN + HEAD, "{", "truncated"),
    "text between parameters": (
        OPEN + HEAD + "junk" + parameter("h", "x") + "\n</｜DSML｜ invoke>" + CLOSE, "{", "unexpected_text",
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_call_cannot_be_executed(name: str, size: int | None) -> None:
    output, arguments, reason = MALFORMED[name]
    pieces = (
        [output]
        if size is None
        else [output[start : start + size] for start in range(0, len(output), size)]
    )

    chat = run(pieces, "chat")
    (call,) = chat.calls
    assert call[0] == "tide"
    with pytest.raises(ValueError):
        json.loads(call[1])
    if not call[1].startswith(arguments):
        pytest.fail(f"{call[1]!r} does not begin with {arguments!r}")
    assert chat.malformed == [(0, "tide", reason)]
    assert chat.response["choices"][0]["finish_reason"] == "stop"
    assert chat.response["malformed_tool_calls"] == [{"index": 0, "name": "tide", "reason": reason}]

    responses = run(pieces, "responses")
    (item,) = responses.response["output"]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")
    with pytest.raises(ValueError):
        json.loads(item["arguments"])

    messages = run(pieces, "messages")
    assert [part for part in messages.response["content"] if part["type"] == "tool_use"] == []
    assert messages.response["stop_reason"] == "end_turn"
    assert messages.malformed == responses.malformed == chat.malformed


@pytest.mark.parametrize(
    "tail", ["tide", 'tide" x>\n' + parameter("h", "x") + "\n</｜DSML｜ invoke>" + CLOSE]
)
def test_a_call_whose_name_never_ends_is_reported_without_index(tail: str) -> None:
    outcome = run(OPEN + '<｜DSML｜ invoke name="' + tail)
    assert outcome.calls == []
    ((index, name, _),) = outcome.malformed
    assert (index, name) == (None, "tide")


@pytest.mark.parametrize("size", [None, 1])
@pytest.mark.parametrize(
    ("output", "calls", "reasons"),
    [
        (OPEN, 0, ["truncated"]),
        (OPEN + "<｜DSML｜ inv", 0, ["truncated"]),
        (OPEN + invoke("tide") + "\n<｜DSML｜ invoke na", 1, ["truncated"]),
        (OPEN + invoke("tide") + "\n", 1, []),
        (OPEN + CLOSE, 0, []),
        (OPEN + "I forgot the call." + CLOSE, 0, ["unexpected_text"]),
        (OPEN + "{" + invoke("tide") + "\n}" + CLOSE, 1, ["unexpected_text"] * 2),
        (OPEN + parameter("h", "x") + CLOSE, 0, ["unexpected_text"]),
        (OPEN + "one" + invoke("n" * 5000, parameter("h", "x")) + "two" + CLOSE, 0, ["unexpected_text", "too_large"]),
        (OPEN + '<｜DSML｜ invoke name="a"b">x</｜DSML｜ invoke>' + CLOSE, 0, ["unterminated_name"]),
    ],
)  # fmt: skip
def test_nothing_in_a_block_vanishes_unseen(
    output: str, calls: int, reasons: list[str], size: int | None
) -> None:
    outcome = run([output] if size is None else list(output))
    assert len(outcome.calls) == calls
    assert [reason for _, _, reason in outcome.malformed] == reasons
    assert all(index is None for index, _, _ in outcome.malformed)
    assert outcome.content == ""
    finish = "tool_calls" if calls else "stop"
    assert outcome.response["choices"][0]["finish_reason"] == finish


def test_good_calls_beside_a_malformed_one_stay_good() -> None:
    bad = HEAD + '<｜DSML｜ parameter name="h" string="true">x</｜DSML｜ invoke>\n'
    output = OPEN + bad + invoke("tide", parameter("n", "1", "false")) + CLOSE
    outcome = run(output)
    assert outcome.calls[1] == ("tide", '{"n": 1}')
    assert outcome.malformed == [(0, "tide", "missing_parameter_closer")]
    assert outcome.response["choices"][0]["finish_reason"] == "tool_calls"
    (used,) = run(output, "messages").response["content"]
    assert used["input"] == {"n": 1}


def test_arguments_stream_before_the_call_ends() -> None:
    request = convert("chat")
    processor = recipe.StreamProcessor(
        recipe.ChatCompletionRequest.chunk_generator(request, "id", "m"), request.parsing_options
    )
    text = OPEN + HEAD + '<｜DSML｜ parameter name="h" string="true">harbour'
    sent = [
        json.loads(event.to_json()) for event in processor.push(recipe.InferenceChunk.text(text))
    ]
    arguments = [
        call["function"].get("arguments", "")
        for event in sent
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls") or []
    ]
    assert "".join(arguments) == '{"h": "harbour'


def test_length_ends_a_call_as_malformed() -> None:
    outcome = run(OPEN + HEAD + parameter("h", "x"), finish=recipe.InferenceFinishReason.Length)
    assert outcome.response["choices"][0]["finish_reason"] == "length"
    assert outcome.malformed == [(0, "tide", "truncated")]


@pytest.mark.parametrize("name", ["a b", 'a"b', "a\tb", "ä🌊", "a\\b", 'x" y'])
def test_any_parameter_name_gives_valid_json(name: str) -> None:
    (call,) = run(block(invoke("tide", parameter(name, "v")))).calls
    assert json.loads(call[1]) == {name: "v"}


@pytest.mark.parametrize(
    "text",
    [
        "prose <｜DSML｜ quoted> text",
        "ends in <｜DSML｜",
        "<｜DSML｜",
        "a < b, </｜DSML｜ calls>",
        "<｜DSML｜ invoke",
    ],
)
def test_quoted_markers_stay_text(text: str) -> None:
    for pieces in ([text], list(text)):
        outcome = run(pieces)
        assert (outcome.content, outcome.calls, outcome.malformed) == (text, [], [])


def test_markup_of_v4_is_understood() -> None:
    output = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="tide">\n<｜DSML｜parameter name="h" string="true">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    assert run(output).calls == [("tide", '{"h": "x"}')]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("raw value cut", {"n": "[1,"}),
        ("no invoke closer", {"h": "x"}),
        ("next parameter inside a value", {"h": "x", "g": "y"}),
        ("value without closer", {"h": "abc"}),
    ],
)
def test_repair_is_an_option(name: str, arguments: dict[str, str]) -> None:
    outcome = run(MALFORMED[name][0], repair_tool_calls=True)
    assert json.loads(outcome.calls[0][1]) == arguments
    assert outcome.malformed == []


def test_names_of_tools_can_be_checked() -> None:
    output = block(invoke("launch", parameter("h", "x")))
    assert run(output).malformed == []
    assert run(output, tool_names=["tide"]).malformed == [(0, "launch", "unknown_tool")]
    request = convert("chat", validate_tool_names=True)
    assert run(output, request=request).malformed == [(0, "launch", "unknown_tool")]


def test_official_completes_what_default_calls_malformed() -> None:
    request = convert("chat", compat="official")
    outcome = run(block(invoke("tide", parameter("n", "[1,", "false"))), request=request)
    assert outcome.calls == [("tide", '{"n": [1,}')]
    assert outcome.malformed == []
    assert "malformed_tool_calls" not in outcome.response


def test_a_stop_after_a_tool_call_without_finish_is_a_tool_call() -> None:
    output = block(invoke("tide", parameter("h", "x")))
    assert run(output, finish=None).response["choices"][0]["finish_reason"] == "tool_calls"
    request = convert("chat", compat="official")
    assert (
        run(output, request=request, finish=None).response["choices"][0]["finish_reason"] == "stop"
    )
