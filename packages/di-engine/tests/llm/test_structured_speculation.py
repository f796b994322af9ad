"""Grammars and drafts together: the same tokens where drafts are coupled, valid ones everywhere."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch

from di_engine import RequestOutput, SamplingParams
from di_engine.runner.slot_state import SlotState
from di_engine.runner.speculation import Speculation
from di_engine.testing.byte_grammars import ByteGrammars, compile_bytes
from di_engine.testing.counting_engine import CountingEngine
from di_engine.testing.forced_drafts import ForcedDrafter, RandomRows
from di_scheduler import SchedulerConfig
from di_structured import OutputSchema
from di_structured.testing import BOUNDED_SCHEMAS

VOCAB = 259
A = 3 + ord("a")
NUM_REQUESTS = 18
RIGHT: dict[str, Callable[[str, int], bool]] = {
    "right": lambda request_id, position: True,
    "wrong": lambda request_id, position: False,
    "half": lambda request_id, position: position % 3 != 0,
}


def schema_of(number: int) -> OutputSchema | None:
    """JSON for two of three requests, half of them behind reasoning; a regex; nothing."""
    if number % 3 == 2:
        return OutputSchema.regex("[0-9]{2,9}(-[a-c]{3}){1,4}") if number % 2 else None
    schema = OutputSchema.json_schema(BOUNDED_SCHEMAS[number % 20], max_whitespace=1)
    # The counting model goes from `a` on, so the reasoning ends behind `number % 7` tokens.
    return schema.with_reasoning([A + 1 + number % 7]) if reasons(number) else schema


def reasons(number: int) -> bool:
    return number % 3 == 1


def params_of(number: int) -> SamplingParams:
    """A cold model that counts while it reasons, else one that draws nearly anything."""
    temperature = 0.05 if reasons(number) else 1e4
    return SamplingParams(
        temperature=temperature,
        seed=number,
        max_tokens=9 if number % 5 == 4 else 70,
        output_schema=schema_of(number),
    )


def run(**options: Any) -> list[RequestOutput]:
    counting = CountingEngine(grammars=ByteGrammars(), **options)
    states = [counting.requests.submit("a", params_of(n), n) for n in range(NUM_REQUESTS)]
    while counting.requests.has_unfinished:
        counting.requests.step()
        counting.scheduler.check_integrity()
    assert counting.runner.num_requests == 0
    return [state.output() for state in states]


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * NUM_REQUESTS
    return [output.outputs[0].token_ids for output in outputs]


def check_valid(outputs: list[RequestOutput]) -> None:
    """A finished text is valid, one that was cut a beginning that its grammar admits."""
    num_finished = 0
    for number, (output, token_ids) in enumerate(zip(outputs, tokens_of(outputs), strict=True)):
        schema = schema_of(number)
        if schema is None:
            continue
        if output.outputs[0].finish_reason != "stop":
            session = compile_bytes(schema).session(schema)
            assert session.advance(token_ids) == len(token_ids)
            continue
        num_finished += 1
        end = number % 7 + 1 if reasons(number) else 0
        assert token_ids[:end] == list(range(A + 1, A + 1 + end))
        text = bytes(token_id - 3 for token_id in token_ids[end:-1]).decode()
        if schema.kind == "regex":
            assert re.fullmatch("[0-9]{2,9}(-[a-c]{3}){1,4}", text)
        else:
            jsonschema.validate(json.loads(text), BOUNDED_SCHEMAS[number % 20])
    assert num_finished > NUM_REQUESTS // 2


def forced(
    answers: list[list[int]], num_drafts: int, kind: str, mode: Any
) -> Callable[[SchedulerConfig], Speculation]:
    known = {str(number): token_ids for number, token_ids in enumerate(answers)}

    def speculate(config: SchedulerConfig) -> Speculation:
        return Speculation(
            SlotState(config.state_slots, num_drafts, torch.device("cpu")),
            num_draft_tokens=num_drafts,
            mode=mode,
            drafter=ForcedDrafter(known, num_drafts, VOCAB, RIGHT[kind]),
        )

    return speculate


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    outputs = run()
    check_valid(outputs)
    return tokens_of(outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_drafts", "overlap"),
    [("right", 1, True), ("wrong", 3, True), ("half", 2, False), ("half", 5, True)],
)
def test_coupled_drafts_change_no_token(
    plain: list[list[int]], kind: str, num_drafts: int, overlap: bool
) -> None:
    outputs = run(
        speculate=forced(plain, num_drafts, kind, "coupled"),
        num_draft_tokens=num_drafts,
        drafts_after_prefill=True,
        overlap=overlap,
        row_budget=RandomRows(num_drafts) if kind == "half" else None,
        num_blocks=5 if num_drafts == 3 else 64,
        block_size=32,
    )
    assert tokens_of(outputs) == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind", "num_drafts"), [("ratio", "half", 5), ("block", "half", 3)]
)
def test_every_rule_of_acceptance_keeps_outputs_valid(
    plain: list[list[int]], mode: str, kind: str, num_drafts: int
) -> None:
    speculate = forced(plain, num_drafts, kind, mode)
    check_valid(run(speculate=speculate, num_draft_tokens=num_drafts, overlap=mode == "ratio"))
