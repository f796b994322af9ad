"""Whole generations with a random model: always valid, the same with and without drafts."""

import itertools
import json
import re

import jsonschema
import pytest

from di_structured import OutputSchema
from di_structured.testing import BOUNDED_SCHEMAS, generate

THINK_END = 3


def split(token_ids, thinking):
    """Returns the constrained part of an output, or None if the reasoning did not end."""
    if not thinking:
        return list(token_ids)
    return list(token_ids[token_ids.index(THINK_END) + 1 :]) if THINK_END in token_ids else None


def check(generation, thinking, schema, decode, fresh):
    """A finished output is valid under the schema, a cut one a prefix that the grammar admits."""
    constrained = split(generation.token_ids, thinking)
    assert constrained is not None
    if generation.is_finished:
        jsonschema.Draft202012Validator(schema).validate(json.loads(decode(constrained)))
    else:
        assert fresh.advance(constrained) == len(constrained)


@pytest.mark.slow
@pytest.mark.parametrize("verification", ["coupled", "ratio"])
def test_generations_are_valid(compile_schema, decode, verification):
    finished = rejected = 0
    for number in range(0, 1000, 7):
        schema = BOUNDED_SCHEMAS[number % 20]
        num_drafts, thinking = number // 20 % 6, number // 120 % 2 == 1
        plain = OutputSchema.json_schema(schema, max_whitespace=2)
        output_schema = plain.with_reasoning([THINK_END]) if thinking else plain
        script = [40] * (number // 240 % 6) + [THINK_END] if thinking else []
        grammar = compile_schema(plain)
        generation = generate(
            grammar.session(output_schema, request_id=str(number)),
            seed=number,
            num_drafts=num_drafts,
            max_tokens=[40, 90][number % 6 > 0],
            verification=verification,
            script=script,
        )
        check(generation, thinking, schema, decode, grammar.session(plain))
        finished += generation.is_finished
        rejected += generation.rejected
    assert finished > 110
    assert rejected > 70


@pytest.mark.parametrize("schema", BOUNDED_SCHEMAS[::4], ids=lambda schema: str(schema)[:40])
def test_coupled_verification_gives_the_same_output_with_any_number_of_drafts(
    compile_schema, schema
):
    output_schema = OutputSchema.json_schema(schema, max_whitespace=2).with_reasoning([THINK_END])
    outputs = set()
    for num_drafts in range(6):
        session = compile_schema(OutputSchema.json_schema(schema, max_whitespace=2)).session(
            output_schema
        )
        script = [40, 41, THINK_END]
        outputs.add(
            generate(session, seed=9, num_drafts=num_drafts, max_tokens=60, script=script).token_ids
        )
    assert len(outputs) == 1


@pytest.mark.parametrize(("window", "position"), list(itertools.product(range(1, 6), range(6))))
def test_the_reasoning_may_end_at_every_position_of_the_window(
    compile_schema, decode, window, position
):
    schema = BOUNDED_SCHEMAS[1]
    plain = OutputSchema.json_schema(schema, max_whitespace=0)
    session = compile_schema(plain).session(plain.with_reasoning([THINK_END]))
    script = [40] * position + [THINK_END]
    generation = generate(session, seed=window, num_drafts=window, max_tokens=150, script=script)
    assert generation.token_ids[: position + 1] == tuple(script)
    check(generation, True, schema, decode, compile_schema(plain).session(plain))


def test_a_trigger_split_over_windows_starts_the_grammar(compile_schema, decode):
    plain = OutputSchema.regex("[0-9]{3}")
    for num_drafts in range(6):
        session = compile_schema(plain).session(plain.with_trigger([40, 40, 41]))
        script = [40, 40, 40, 41]
        generation = generate(session, seed=3, num_drafts=num_drafts, max_tokens=40, script=script)
        assert re.fullmatch("[0-9]{3}", decode(generation.token_ids[4:]))


def test_ratio_verification_draws_from_the_masked_law(compile_schema, encode):
    """A forbidden draft is a rejection: the token then has the masked law."""
    plain = OutputSchema.choice(["a", "b"])
    a, b = encode("ab")
    counts = {a: 0, b: 0}
    for seed in range(400):
        generation = generate(
            compile_schema(plain).session(plain),
            seed=seed,
            num_drafts=2,
            max_tokens=1,
            verification="ratio",
            stop_bias=0,
            script=[5],
            script_bias=0,
        )
        counts[generation.token_ids[0]] += 1
    assert 150 < counts[a] < 250
