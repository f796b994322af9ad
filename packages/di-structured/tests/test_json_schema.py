"""What a schema may say, with the paths of what it may not; and soundness against a validator."""

import json

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given, settings

from di_structured import (
    EmptyGrammarError,
    GrammarViolationError,
    InvalidSchemaError,
    OutputSchema,
)
from di_structured.testing import compile_here, generate


def admits(session, token_ids):
    try:
        session.advance(token_ids)
    except GrammarViolationError:
        return False
    return session.is_complete


IGNORED = [
    ({"not": {}}, "$.not"),
    ({"if": {}, "then": {}}, "$.if"),
    ({"type": "array", "contains": {}}, "$.contains"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "$.uniqueItems"),
    ({"type": "object", "dependentRequired": {}}, "$.dependentRequired"),
    ({"type": "object", "properties": {"a": {"not": {}}}}, "$.properties.a.not"),
    ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "$.allOf"),
    ({"anyOf": [{"type": "string"}], "maxLength": 2}, "$.maxLength"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "$.oneOf[0]"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}, "maxLength": 1}, "$.maxLength"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, "$.$defs.a.not"),
    ({"enum": ["a"], "maxLength": 1}, "$.maxLength"),
    ({"const": 2**70}, "$.const"),
    ({"type": "string", "pattern": "a", "maxLength": 2}, "$.maxLength"),
    ({"type": "string", "format": "date", "minLength": 2}, "$.minLength"),
    ({"type": "string", "format": "nonsense"}, "$.format"),
    ({"type": "number", "multipleOf": 0.5}, "$.multipleOf"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1}, "$.multipleOf"),
    ({"type": "number", "minimum": 1e-9}, "$.minimum"),
    ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "$.patternProperties"),
    (
        {"type": "object", "patternProperties": {"a": {}}, "properties": {"b": {}}},
        "$.patternProperties",
    ),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, "$.propertyNames"),
    ({"type": "object", "additionalProperties": True, "minProperties": 2}, "$.minProperties"),
    ({"type": "string", "nullable": True}, "$.nullable"),
    ({"type": "string", "maxLenght": 3}, "$.maxLenght"),
    ({"$dynamicRef": "#x"}, "$.$dynamicRef"),
    ({"properties": {"a\n": {"type": "null"}}, "additionalProperties": True}, "$.properties"),
]
INVALID = [
    ({"type": "text"}, "$.type"),
    ({"type": []}, "$.type"),
    ({"properties": {"a": 3}}, "$.properties.a"),
    ({"type": "object", "required": "a"}, "$.required"),
    ({"type": "array", "items": [{}]}, "prefixItems"),
    ({"type": "string", "minLength": -1}, "$.minLength"),
    ({"type": "array", "maxItems": 2**64 - 1}, "$.maxItems"),
    ({"type": "number", "exclusiveMinimum": True}, "$.exclusiveMinimum"),
    ({"$ref": "http://x/y"}, "$.$ref"),
    ({"$ref": "#/$defs/b"}, "$.$ref"),
    ({"anyOf": []}, "$.anyOf"),
    (3, "`$` must be an object or a boolean"),
    ("{", "not valid JSON"),
    ('{"a": NaN}', "NaN"),
    ('{"type": "string", "type": "integer"}', "'type' twice"),
    ("[" * 100_000, "nested"),
    (" " * (1 << 21), "limit"),
]
# What an unknown keyword holds is no schema, and is not looked into where such keywords pass.
INVALID_WHEN_STRICT = [('{"a":' * 300 + "1" + "}" * 300, "$.a")]
EMPTY = [
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "integer", "minimum": 1.2, "maximum": 1.8},
    {"type": "array", "minItems": 3, "maxItems": 2},
    {"type": "string", "enum": [1, None]},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "required": ["a"], "additionalProperties": False},
]


@pytest.mark.parametrize(("schema", "path"), IGNORED, ids=lambda value: str(value)[:40])
def test_ignored_keywords_are_refused_with_their_path_and_allowed_on_request(schema, path):
    with pytest.raises(InvalidSchemaError) as caught:
        OutputSchema.json_schema(schema)
    assert f"`{path}" in str(caught.value)
    assert "strict=False" in str(caught.value)
    assert any(
        path in warning for warning in OutputSchema.json_schema(schema, strict=False).warnings
    )


@pytest.mark.parametrize(
    ("schema", "words", "strict"),
    [(*case, True) for case in INVALID + INVALID_WHEN_STRICT]
    + [(*case, False) for case in INVALID],
    ids=lambda value: str(value)[:30],
)
def test_malformed_schemas_are_refused(schema, words, strict):
    with pytest.raises(InvalidSchemaError) as caught:
        OutputSchema.json_schema(schema, strict=strict)
    assert words in str(caught.value)


@pytest.mark.parametrize("schema", EMPTY, ids=str)
def test_schemas_that_nothing_satisfies_are_refused(schema):
    with pytest.raises(EmptyGrammarError, match="no value satisfies"):
        OutputSchema.json_schema(schema)


def test_all_problems_are_listed():
    schema = {
        "type": "object",
        "properties": {"a": {"not": {}}, "b": {"type": "x"}, "c": {"if": {}}},
    }
    with pytest.raises(InvalidSchemaError) as caught:
        OutputSchema.json_schema(schema)
    assert len(caught.value.problems) == 3


def test_the_caller_keeps_its_schema():
    schema = {"type": "object", "required": ["a"], "properties": {"b": False}}
    before = json.dumps(schema)
    OutputSchema.json_schema(schema)
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "object", "required": ["a"]},
            ['{"a":1}', '{"a": "x", "b": 2}'],
            ["{}", '{"b":1}'],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}},
            ["{}", '{"a":null}'],
            ['{"b":1}'],
        ),
        ({"type": "string", "maxLength": 2}, ['""', '"é!"'], ['"abc"', '"\t"', '"\x01"', "1"]),
        ({"type": "array", "minItems": 1}, ["[1]", '[[],"a"]'], ["[]"]),
        ({"minimum": 3}, ["3", "44"], ["2", '"a"']),
        ({"maxLength": 1, "minimum": 3}, ['"a"', "4"], ['"ab"', "2", "null"]),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "14", "-7"], ["1", "13"]),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": 1}, ["1.5"], ["1"]),
        ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
        ({"type": "string", "anyOf": [{"enum": ["a"]}]} | {"type": "string"}, [], []),
        (
            {"type": ["string", "null"], "anyOf": [{"maxLength": 1}, {"type": "null"}]},
            ['"a"', "null"],
            ['"ab"', "1"],
        ),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ['"a"', "null"], ["1"]),
        ({"allOf": [{"type": "boolean"}], "description": "x"}, ["true"], ["1"]),
        (
            {
                "$ref": "#/$defs/n",
                "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}},
            },
            ["{}", '{"n":{"n":{}}}'],
            ['{"n":1}'],
        ),
        (
            {"type": "object", "properties": {"a": False, "b": {"type": "null"}}},
            ["{}", '{"b":null}'],
            ['{"a":1}'],
        ),
        (True, ["1", "[]"], [""]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_schemas_admit(vocabulary, encode, schema, good, bad):
    try:
        output_schema = OutputSchema.json_schema(schema, max_whitespace=2)
    except InvalidSchemaError:
        assert not good
        return
    grammar = compile_here(output_schema, vocabulary)
    for text in [*good, *bad]:
        assert admits(grammar.session(output_schema), encode(text)) == (text in good), text


def test_compact_json_has_no_whitespace(vocabulary, encode):
    schema = OutputSchema.json_schema(
        {"type": "array", "items": {"type": "null"}}, max_whitespace=0
    )
    session = compile_here(schema, vocabulary).session(schema)
    session.advance(encode("[null,null]"))
    assert session.is_complete
    session.rollback(1)
    with pytest.raises(Exception, match="forbidden"):
        session.advance(encode(" "))


names = st.sampled_from(["a", "b", "kind"])
numbers = st.one_of(st.integers(-50, 50), st.integers(-5000, 5000).map(lambda n: n / 100))
leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": round(max(a, b) + 1, 2)},
        numbers,
        numbers,
    ),
    st.builds(
        lambda a, b: {
            "type": "number",
            "exclusiveMinimum": min(a, b),
            "maximum": round(max(a, b) + 1, 2),
        },
        numbers,
        numbers,
    ),
    st.builds(lambda n: {"type": "integer", "multipleOf": n}, st.integers(2, 30)),
    st.builds(
        lambda a, n: {"type": "string", "minLength": a, "maxLength": a + n},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.sampled_from(
        [
            *("^[a-z]{1,3}$", "x|yz", "a.c", "^[^a]$", "\\d+\\.\\d", "^(ab)*$"),
            *('^"$', "^\\\\$", "^\\n$", '^"[^a]$', "^\n.$", '^["\\t]$'),
        ]
    ).map(lambda p: {"type": "string", "pattern": p}),
    st.lists(
        st.one_of(st.text(max_size=3), numbers, st.booleans(), st.none()), min_size=1, max_size=3
    ).map(lambda v: {"enum": v}),
    st.builds(
        lambda v, t: {"enum": [*v, 1, "s"], "type": t},
        st.lists(numbers, max_size=2),
        st.sampled_from(["string", "integer", "number"]),
    ),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda i, a, n: {"type": "array", "items": i, "minItems": a, "maxItems": a + n},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda a, b, i: {"type": "array", "prefixItems": [a, b], "items": i, "maxItems": 4},
            inner,
            inner,
            inner,
        ),
        st.builds(
            lambda p, r, x: {"type": "object", "properties": p, "required": [*list(p)[:r], *x]},
            st.dictionaries(names, inner, max_size=3),
            st.integers(0, 2),
            st.sampled_from([[], ["more"]]),
        ),
        st.builds(
            lambda p, n: {
                "type": "object",
                "properties": p,
                "minProperties": n,
                "maxProperties": n + 1,
            },
            st.dictionaries(names, inner, min_size=2, max_size=3),
            st.integers(0, 2),
        ),
        st.builds(
            lambda i, n: {"type": "object", "additionalProperties": i, "maxProperties": n},
            inner,
            st.integers(0, 2),
        ),
        st.builds(
            lambda i: {"type": "object", "patternProperties": {"^[ab]$": i}, "maxProperties": 2},
            inner,
        ),
        st.just(
            {
                "type": "object",
                "propertyNames": {"enum": ["p", "q"]},
                "additionalProperties": True,
                "maxProperties": 1,
            }
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(
            lambda a, b: {
                "oneOf": [{"type": "null"}, {"type": "array", "items": a, "maxItems": 2}]
            },
            inner,
            inner,
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=40)
@given(nested, st.integers(0, 2**31))
def test_every_output_is_valid_under_the_schema(vocabulary, decode, schema, seed):
    output_schema = OutputSchema.json_schema(schema, max_whitespace=2)
    try:
        grammar = compile_here(output_schema, vocabulary)
    except EmptyGrammarError:
        return
    generation = generate(grammar.session(output_schema), seed=seed, num_drafts=2, max_tokens=150)
    if generation.is_finished:
        value = json.loads(decode(generation.token_ids))
        jsonschema.Draft202012Validator(schema).validate(value)
