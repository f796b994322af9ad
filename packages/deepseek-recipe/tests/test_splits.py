"""The final result does not depend on how output was cut into chunks."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from typing import Any

import pytest
from golden_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from round_trip import REQUESTS, block, convert, invoke, parameter, run

STREAMS = [*cases("stream"), *cases("stream_final")]
BLANKS = re.compile(r"[ \n\t]+")
USAGE_AND_TIMES = re.compile(
    r',"usage":\{(?:[^{}]|\{[^{}]*\})*\}|,"(?:created|created_at|completed_at)":\d+'
)


class Splits:
    """Final responses as text, without usage, times and chance.

    Events are folded unread and responses compared as text: the golden cases look into them, here there are tens of
    thousands of variants.
    """

    def __init__(self, checker: Any, runner: Any) -> None:
        self.call_id = checker.CALL_ID
        self.runner = runner

    def final(self, given: dict[str, Any]) -> str:
        processor, response = self.runner.processor(given)
        try:
            for chunk in self.runner.chunks(given["chunks"]):
                if processor.finished:
                    break
                for event in processor.push(chunk):
                    response.accumulate(event)
            for event in processor.finish():
                response.accumulate(event)
        except RuntimeError as error:
            return str(error)
        text = self.call_id.sub("call", USAGE_AND_TIMES.sub("", response.to_json()))
        return without_blanks(text) if self.runner.compat == "official" else text


@functools.lru_cache
def without_blanks(text: str) -> str:
    """Strings without blanks, of which JSON mode of the original emits some per chunk (O-21)."""
    return json.dumps(blanks_removed(json.loads(text)))


def blanks_removed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: blanks_removed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [blanks_removed(item) for item in value]
    return BLANKS.sub("", value) if isinstance(value, str) else value


def merged(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chunks with neighbouring texts put together, so that every cut can fall anywhere."""
    result: list[dict[str, Any]] = []
    for chunk in chunks:
        chunk = dict(chunk)
        chunk.pop("split", None)
        if "text" in chunk and result and "text" in result[-1]:
            result[-1]["text"] += chunk["text"]
        else:
            result.append(chunk)
    return result


def ends_in_half_a_character(runner: Any, chunks: list[dict[str, Any]]) -> bool:
    """Whether ids end within a character: what the original loses then depends on the chunks (O-46)."""
    ids = [token_id for chunk in chunks for token_id in chunk.get("tokens") or []]
    return bool(runner.tokenizer.decode(ids).endswith("\ufffd"))


def variants(runner: Any, given: dict[str, Any]) -> Any:
    """The case with one text cut in two at every place, with all cut into characters, and with ids one by one."""
    chunks = merged(given["chunks"])
    cut_ids = runner.compat == "default" or not ends_in_half_a_character(runner, chunks)
    for index, chunk in enumerate(chunks):
        if "text" in chunk:
            text = chunk["text"]
            for position in range(1, len(text)):
                halves = [{"text": text[:position]}, {"text": text[position:]}]
                yield {**given, "chunks": [*chunks[:index], *halves, *chunks[index + 1 :]]}
        if cut_ids and len(chunk.get("tokens") or []) > 1 and not chunk.get("logprobs"):
            parts = [{"tokens": [token_id]} for token_id in chunk["tokens"]]
            yield {**given, "chunks": [*chunks[:index], *parts, *chunks[index + 1 :]]}
        if "encode" in chunk:
            alone = {**chunk, "one_by_one": not chunk.get("one_by_one")}
            yield {**given, "chunks": [*chunks[:index], alone, *chunks[index + 1 :]]}
    characters = [piece for chunk in chunks for piece in characters_of(chunk)]
    yield {**given, "chunks": characters}


def characters_of(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"text": character} for character in chunk["text"]] if "text" in chunk else [chunk]


@pytest.mark.parametrize("mode", ["default", "official"])
def test_every_split_of_every_stream_case(
    mode: str, checker: Any, request: pytest.FixtureRequest
) -> None:
    runner = request.getfixturevalue(mode)
    splits = Splits(checker, runner)
    compared = 0
    for case in STREAMS:
        given = copy.deepcopy(case["input"])
        given["chunks"] = merged(given["chunks"])
        whole = splits.final(given)
        for variant in variants(runner, given):
            assert splits.final(variant) == whole, case["id"]
            compared += 1
    assert compared > 10_000


FRAGMENTS = st.sampled_from(
    [
        "<｜DSML｜ calls>",
        "<｜DSML｜tool_calls>",
        '<｜DSML｜ invoke name="',
        "tide",
        '">',
        "</｜DSML｜ invoke>",
        "\n",
        '<｜DSML｜ parameter name="',
        '" string="true">',
        '" string="false">',
        "</｜DSML｜ parameter>",
        "</｜DSML｜ calls>",
        "</think>",
        "<think>",
        "<｜DSML｜",
        "｜DSML｜",
        "<",
        "</",
        "<｜",
        "```json\n",
        "```",
        "{",
        "[1, 2]",
        "\n\n",
        " ",
        "\\",
        '"',
        "</｜DSML｜ par",
        "<｜DSML",
        "🌊",
        "潮",
        "\u0000",
        "STOP",
        "STO",
        "tool_calls>",
        "null",
        "1e5",
        "}",
    ]
)
OUTPUTS = st.lists(st.one_of(FRAGMENTS, st.text(max_size=4)), max_size=30).map("".join)
WELL_FORMED = st.lists(
    st.tuples(
        st.sampled_from(["tide", "other"]),
        st.text(max_size=12),
        st.sampled_from(["1", "[1]", '{"a": 2}', "tru"]),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda calls: (
        "Well.\n\n"
        + block(
            *(invoke(name, parameter("a", a), parameter("b", b, "false")) for name, a, b in calls)
        )
    )
)


@settings(max_examples=400, deadline=None)
@given(
    output=st.one_of(OUTPUTS, WELL_FORMED),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    protocol=st.sampled_from(list(REQUESTS)),
    truncated=st.integers(0, 400),
    parsing=st.fixed_dictionaries(
        {},
        optional={
            "parse_json_output": st.booleans(),
            "keep_text_after_tools": st.booleans(),
            "strict_json_output": st.booleans(),
            "repair_tool_calls": st.booleans(),
            "stop_sequences": st.just(["STOP", "\n\n\n"]),
            "tool_names": st.just(["tide"]),
            "starts_in_tool_calls": st.booleans(),
        },
    ),
)
def test_random_output_and_random_cuts(
    output: str, cuts: list[int], protocol: str, truncated: int, parsing: dict[str, Any]
) -> None:
    request = convert(protocol)
    output = output[: len(output) - truncated % (len(output) + 1)] if truncated < 200 else output
    places = [0, *sorted(cut % (len(output) + 1) for cut in cuts), len(output)]
    pieces = [output[start:end] for start, end in itertools.pairwise(places)]
    whole = run(output, protocol, request=request, **parsing)
    for way in (pieces, list(output)):
        other = run(way, protocol, request=request, **parsing)
        assert other.final == whole.final
        assert other.malformed == whole.malformed
