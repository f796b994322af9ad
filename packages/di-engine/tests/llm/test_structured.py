"""Constrained requests end to end: compiled before admission, masked by row, each on its own."""

import asyncio
import json
import re
import sys
from typing import Any

import jsonschema
import pytest

from di_engine import AsyncLLM, RequestOutput, SamplingParams
from di_engine.llm import async_llm, llm
from di_engine.testing.byte_grammars import ByteGrammars, compile_bytes
from di_engine.testing.counting_engine import CountingEngine
from di_structured import CompileTimeoutError, GrammarSession, OutputSchema

POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", None]}, "maxItems": 3},
    },
    "required": ["x", "tags"],
}
SCHEMAS: list[Any] = [
    POINT,
    {"type": "string", "maxLength": 6},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": -20, "maximum": 20}]},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
]
A = 3 + ord("a")
THINK = (3 + ord("<"), 3 + ord(">"))


def start(**options: Any) -> CountingEngine:
    return CountingEngine(grammars=ByteGrammars(THINK), **options)


def run(engine: CountingEngine, *requests: tuple[Any, SamplingParams]) -> list[RequestOutput]:
    """Runs requests to their end."""
    states = [engine.requests.submit(p, s, i) for i, (p, s) in enumerate(requests)]
    while engine.requests.has_unfinished:
        engine.requests.step()
    assert engine.runner.num_requests == 0
    outputs = [state.output() for state in states]
    assert all(output.finished for output in outputs)
    return outputs


def wild(schema: Any, **fields: Any) -> SamplingParams:
    """At this temperature the counting model draws nearly any token that is allowed."""
    values = {"temperature": 1e4, "max_tokens": 120, "seed": 1, "output_schema": schema}
    return SamplingParams(**values | fields)


def json_schema(schema: Any) -> OutputSchema:
    return OutputSchema.json_schema(schema, max_whitespace=1)


@pytest.mark.parametrize("overlap", [False, True])
def test_all_kinds_share_a_batch_and_free_rows_are_as_alone(overlap: bool) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=12, seed=5)
    ebnf = 'root ::= term ("+" term)? \nterm ::= [0-9] | "(" root ")"'
    outputs = run(
        start(overlap=overlap),
        ("p", wild(json_schema(POINT))),
        ("q", free),
        ("r", wild({"schema_type": "regex", "schema": "[a-c]{3}-[0-9]{1,4}"})),
        ("s", wild({"schema_type": "ebnf", "schema": ebnf}, seed=3)),
        ("t", wild(OutputSchema.choice(["yes", "no"]), n=3)),
        ("u", free),
    )
    assert all(output.error is None for output in outputs)
    jsonschema.validate(json.loads(outputs[0].text), POINT)
    assert re.fullmatch("[a-c]{3}-[0-9]{1,4}", outputs[2].text)
    assert re.fullmatch("[0-9+()]+", outputs[3].text)
    assert {c.text for c in outputs[4].outputs} <= {"yes", "no"}
    assert {c.finish_reason for o in (outputs[0], outputs[2], outputs[4]) for c in o.outputs} == {
        "stop"
    }
    for index, prompt in ((1, "q"), (5, "u")):
        (alone,) = run(start(overlap=overlap), (prompt, free))
        assert outputs[index].outputs[0].token_ids == alone.outputs[0].token_ids


@pytest.mark.parametrize("overlap", [False, True])
def test_a_random_model_writes_valid_json(overlap: bool) -> None:
    """Cut texts are beginnings of valid ones, also of a request that is computed again."""
    requests = []
    for number in range(40):
        schema = SCHEMAS[number % len(SCHEMAS)]
        fields = {"seed": number, "max_tokens": 30 if number % 4 else 5}
        requests.append((f"{number}" * 40, wild(json_schema(schema), **fields)))
    roomy = run(start(overlap=overlap), *requests)
    for number, output in enumerate(roomy):
        schema, token_ids = SCHEMAS[number % len(SCHEMAS)], output.outputs[0].token_ids
        if output.outputs[0].finish_reason == "stop":
            jsonschema.validate(json.loads(output.text), schema)
        else:
            session = compile_bytes(json_schema(schema)).session(json_schema(schema))
            assert session.advance(token_ids) == len(token_ids)
    tight = start(overlap=overlap, num_blocks=8, block_size=16, prefix_cache=False)
    for output, again in zip(roomy, run(tight, *requests), strict=True):
        assert again.outputs[0].token_ids == output.outputs[0].token_ids
    assert tight.metrics.counters["preempted"] > 0


def test_reasoning_and_triggers_are_free_until_their_end() -> None:
    greedy = {"temperature": 0, "max_tokens": 40}
    plain = OutputSchema.regex("[0-9]{2}")
    thinking = plain.with_reasoning([A + 3])
    bound = plain.with_trigger([A, A + 9], bound_token_id=A + 2)
    outputs = run(
        start(),
        ("a", SamplingParams(output_schema=thinking, **greedy)),
        ("a", SamplingParams(output_schema=bound, **greedy)),
        ("a", SamplingParams(output_schema=plain.with_reasoning([2]), temperature=0, max_tokens=9)),
    )
    assert re.fullmatch("bcd[0-9]{2}", outputs[0].text)
    assert re.fullmatch("bcaj[0-9]{2}", outputs[1].text)
    assert outputs[2].text == "bcdefghij"  # cut while it still reasons


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("<;", "<=>[0-9]{2}"),
        ("<x>9", "[0-9]{2}"),
        (";", "[0-9]{2}"),
        ("<x><;", "<=>[0-9]{2}"),
    ],
)
def test_the_grammar_begins_behind_a_reasoning_section_that_the_prompt_opens(
    prompt: str, text: str
) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=40, output_schema=OutputSchema.regex("[0-9]{2}")
    )
    (output,) = run(start(), (prompt, params))
    assert re.fullmatch(text, output.text)


def test_stop_ids_wait_for_the_text_to_be_complete() -> None:
    dot = 3 + ord(".")
    schema = OutputSchema.regex(r"[0-9]{4}\.?")
    fields = {"stop_token_ids": [dot], "logit_bias": {dot: 1e6}}
    (output,) = run(start(), ("a", wild(schema, **fields)))
    assert re.fullmatch("[0-9]{4}", output.text)
    assert output.outputs[0].stop_reason == dot
    (output,) = run(start(), ("a", wild(schema, ignore_eos=True, max_tokens=9)))
    assert len(output.outputs[0].token_ids) == 9
    assert re.match("[0-9]{4}", output.text)


def test_a_request_waits_for_its_grammar_while_others_run() -> None:
    now = [0.0]
    engine = start(clock=lambda: now[0])
    slow = OutputSchema.regex("[0-9]{3}")
    future = engine.requests.grammars.hold(slow)  # type: ignore[attr-defined]
    waiting = engine.requests.submit("a", wild(slow), 0)
    running = engine.requests.submit("a", SamplingParams(max_tokens=3), 1)
    for _ in range(6):
        engine.requests.step()
    assert running.finished
    assert not waiting.finished
    assert engine.requests.num_compiling == 1
    assert engine.requests.has_unfinished
    assert not engine.requests.has_work
    now[0] = 7.0
    future.set_result(compile_bytes(slow))
    assert engine.requests.has_work
    while engine.requests.has_unfinished:
        engine.requests.step()
    assert re.fullmatch("[0-9]{3}", waiting.output().text)
    assert waiting.metrics.compile_s == 7.0
    assert running.metrics.compile_s is None
    assert engine.requests._metrics.distributions["compile"].num_observed == 1


def test_a_failed_or_cancelled_compile_ends_its_request_alone() -> None:
    engine = start()
    schemas = [OutputSchema.regex(f"[0-9]{{{n}}}") for n in (3, 4, 5)]
    held = [engine.requests.grammars.hold(s) for s in schemas]  # type: ignore[attr-defined]
    states = [engine.requests.submit("a", wild(s, n=2), i) for i, s in enumerate(schemas)]
    held[0].set_exception(CompileTimeoutError("took longer than 20 s"))
    engine.requests.abort([states[1]])
    ended = [state for state, delta in engine.requests.step() if delta.ends_request]
    assert ended == [states[1], states[0]]
    assert states[0].error is not None
    assert states[0].error.kind == "invalid_request"
    assert "took longer than 20 s" in states[0].error.message
    assert states[0].error.param == "output_schema"
    assert [c.finish_reason for c in states[1].output().outputs] == ["abort"] * 2
    assert held[1].cancelled()
    engine.requests.abort_all("shut down")
    ((_, first), (_, second)) = engine.requests.step()
    assert second.ends_request
    assert first.error == second.error
    assert states[2].error is not None
    assert states[2].error.message == "shut down"
    assert not engine.requests.has_unfinished


BAD: list[tuple[Any, str]] = [
    (3, "must be None, a `di_structured.OutputSchema` or a mapping"),
    ({"schema_type": "lark", "schema": "x"}, "unsupported grammar type 'lark'"),
    ({"schema_type": "json", "schema": '{"not": {}}'}, "$.not"),
    ({"schema_type": "regex", "schema": ""}, "must be"),
]


@pytest.mark.parametrize(("schema", "words"), BAD, ids=str)
def test_wrong_schemas_are_refused_before_anything_compiles(schema: Any, words: str) -> None:
    bad, good = run(start(), ("a", wild(schema)), ("a", SamplingParams(max_tokens=2)))
    assert bad.error is not None
    assert bad.error.kind == "invalid_request"
    assert words in bad.error.message
    assert good.error is None


def test_contradicting_parameters_are_named() -> None:
    (output,) = run(start(), ("a", wild(json_schema(POINT), min_tokens=4)))
    assert output.error is not None
    assert "`min_tokens` and `output_schema` exclude each other" in output.error.message


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "di_structured", None)
    values = {"output_schema": {"schema_type": "regex", "schema": "a"}}
    bad, good = run(start(), ("a", SamplingParams(**values)), ("a", SamplingParams(max_tokens=2)))
    assert bad.error is not None
    assert "install its wheel" in bad.error.message
    assert good.error is None


@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_fails_in_a_step_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    fill_masks = GrammarSession.fill_masks

    def break_one(self: GrammarSession, *arguments: Any) -> int:
        if self.request_id == "0" and self.num_tokens == 2:
            raise RuntimeError("from the inside")
        return fill_masks(self, *arguments)

    monkeypatch.setattr(GrammarSession, "fill_masks", break_one)
    schema = OutputSchema.regex("[0-9]{8}")
    bad, good = run(start(overlap=overlap), ("a", wild(schema)), ("a", wild(schema)))
    assert bad.error is not None
    assert "from the inside" in bad.error.message
    assert len(bad.outputs[0].token_ids) == 2
    assert re.fullmatch("[0-9]{8}", good.text)


def test_an_output_outside_its_grammar_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarSession, "fill_masks", lambda self, drafts, out, row: len(drafts))
    schema = OutputSchema.choice(["yes"])
    bad, last = run(start(), ("a", wild(schema)), ("a", wild(schema, max_tokens=1)))
    for output in (bad, last):
        assert output.error is not None
        assert "has left its grammar" in output.error.message
        assert output.outputs[0].finish_reason == "error"


def test_nothing_left_to_draw_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    banned = [3 + ord(c) for c in "0123456789"]
    (output,) = run(start(), ("a", wild(OutputSchema.regex("[0-9]"), banned_token_ids=banned)))
    assert output.error is not None
    assert "no token is allowed" in output.error.message


def test_the_engine_thread_wakes_up_for_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = ByteGrammars()
    monkeypatch.setattr(async_llm, "assemble", CountingEngine(overlap=True).assemble)
    monkeypatch.setattr(llm, "_make_grammars", lambda parts: grammars)
    schema, left, never = (OutputSchema.regex(f"[0-9]{{{n}}}") for n in (3, 4, 5))
    future, abandoned = grammars.hold(schema), grammars.hold(left)
    grammars.hold(never)

    async def main() -> None:
        async with AsyncLLM() as engine:
            asking = asyncio.create_task(engine.generate("a", wild(schema)))
            leaving = asyncio.create_task(engine.generate("a", wild(left)))
            assert (await engine.generate("a", SamplingParams(max_tokens=3))).error is None
            leaving.cancel()
            while not abandoned.cancelled():
                await asyncio.sleep(0.01)
            assert not asking.done()
            future.set_result(compile_bytes(schema))
            assert re.fullmatch("[0-9]{3}", (await asking).text)
            stuck = asyncio.create_task(engine.generate("a", wild(never)))
            while engine.num_unfinished == 0:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            await engine.shutdown()
            output = await stuck
            assert output.error is not None
            assert output.error.kind == "stopped"

    asyncio.run(asyncio.wait_for(main(), 60))
