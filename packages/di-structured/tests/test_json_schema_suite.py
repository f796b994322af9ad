"""The public JSON Schema Test Suite, for the keywords that are claimed.

Three promises: a schema is either enforced or refused; what is invalid is never admitted; masks
equal the oracle's. What is valid need not be admitted: order of names, schemas of several types and
whole-string patterns narrow the output.
"""

import json
from pathlib import Path

import pytest

from di_structured import GrammarViolationError, InvalidSchemaError, OutputSchema, allocate_masks
from di_structured.testing import allowed_by_oracle, allowed_in_row, compile_here

FILES = sorted((Path(__file__).parent / "data" / "json_schema_test_suite").glob("*.json"))
CASES = [(file.stem, case) for file in FILES for case in json.loads(file.read_text("utf-8"))]


def admits(grammar, schema, token_ids):
    session = grammar.session(schema)
    try:
        session.advance(token_ids)
    except GrammarViolationError:
        return False
    return session.is_complete


def check_masks(grammar, schema, token_ids):
    session = grammar.session(schema)
    masks = allocate_masks(1, session.vocab_size)
    for token_id in [*token_ids[:3], None]:
        session.fill_masks([], masks)
        expected = allowed_by_oracle(grammar, schema, session.token_ids)
        assert allowed_in_row(masks[0]) == expected
        if token_id not in expected:
            return
        session.advance([token_id])


def judge(case, vocabulary, encode):
    """Returns the numbers of refused schemas, admitted valid and refused valid instances."""
    try:
        schema = OutputSchema.json_schema(case["schema"], additional_properties=True)
        grammar = compile_here(schema, vocabulary)
    except InvalidSchemaError:
        return 1, 0, 0
    admitted = narrowed = 0
    for test in case["tests"]:
        token_ids = encode(json.dumps(test["data"], ensure_ascii=False))
        is_admitted = admits(grammar, schema, token_ids)
        assert test["valid"] or not is_admitted, (case["schema"], test["data"])
        admitted += is_admitted
        narrowed += test["valid"] and not is_admitted
    check_masks(grammar, schema, encode(json.dumps(case["tests"][0]["data"], ensure_ascii=False)))
    return 0, admitted, narrowed


@pytest.mark.slow
def test_the_suite_holds_no_invalid_text_that_is_admitted(vocabulary, encode, record_property):
    totals = [judge(case, vocabulary, encode) for _, case in CASES]
    refused, admitted, narrowed = (sum(column) for column in zip(*totals, strict=True))
    record_property("schemas", len(CASES))
    record_property("refused", refused)
    record_property("admitted", admitted)
    record_property("narrowed", narrowed)
    assert len(CASES) > 150
    assert refused < len(CASES) // 2
    assert admitted > narrowed
