"""Schemas as data, and the adapter for DeepInfer's dictionaries."""

import contextlib
import pickle

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from di_structured import InvalidSchemaError, OutputSchema, schema_from_so_args
from di_structured.testing import compile_here

# U+D000 to U+D7FF begin with the byte of the surrogates, which is hidden as a token of its own: a
# vocabulary of bytes cannot write them.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0").filter(
    lambda char: not "\ud000" <= char <= "\ud7ff"
)


@settings(max_examples=30)
@given(st.lists(st.text(CHARACTERS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_choice_admits_exactly_its_values(vocabulary, encode, values):
    schema = OutputSchema.choice(values)
    grammar = compile_here(schema, vocabulary)
    for value in values:
        session = grammar.session(schema)
        session.advance(encode(value))
        assert session.is_complete
    session = grammar.session(schema)
    with pytest.raises(Exception, match="forbidden"):
        session.advance(encode(values[0] + "".join(values) + "!"))


def test_free_sections_do_not_change_the_key_of_the_grammar():
    plain = OutputSchema.regex("a")
    other = plain.with_trigger([1, 2], bound_token_id=0).with_reasoning([3])
    assert other.key == plain.key
    assert (other.trigger_token_ids, other.bound_token_id) == ((1, 2), 0)
    assert other.reasoning_end_token_ids == (3,)
    assert pickle.loads(pickle.dumps(other)) == other
    assert len({plain, other}) == 2


def test_whatever_changes_the_grammar_changes_the_key():
    schema = {"type": "object"}
    keys = [
        OutputSchema.json_schema(schema),
        OutputSchema.json_schema(schema, max_whitespace=3),
        OutputSchema.json_schema(schema, additional_properties=True),
        OutputSchema.json_schema({"type": "array"}),
        OutputSchema.regex("a"),
        OutputSchema.ebnf("a"),
    ]
    assert len({one.key for one in keys}) == len(keys)


@pytest.mark.parametrize(
    "call",
    [
        lambda: OutputSchema.regex(""),
        lambda: OutputSchema.regex("a\0"),
        lambda: OutputSchema.regex("a" * 70_000),
        lambda: OutputSchema.regex("\ud800"),
        lambda: OutputSchema.ebnf(""),
        lambda: OutputSchema.choice([]),
        lambda: OutputSchema.choice("abc"),
        lambda: OutputSchema.choice(["a", ""]),
        lambda: OutputSchema.choice(["a", 3]),
        lambda: OutputSchema.structural_tag("[]"),
        lambda: OutputSchema.regex("a").with_trigger([-1]),
        lambda: OutputSchema.regex("a").with_trigger([True]),
        lambda: OutputSchema.regex("a").with_trigger([], bound_token_id=3),
        lambda: OutputSchema.regex("a").with_trigger([1], bound_token_id=False),
        lambda: OutputSchema.regex("a").with_reasoning([1.0]),
        lambda: OutputSchema.json_schema({}, max_whitespace=-1),
        lambda: OutputSchema.json_schema({"const": {1, 2}}),
    ],
)
def test_wrong_arguments_are_refused_at_once(call):
    with pytest.raises(InvalidSchemaError):
        call()


def test_ids_outside_the_vocabulary_are_refused(vocabulary):
    OutputSchema.regex("a").with_trigger([275]).check_vocabulary(276)
    with pytest.raises(InvalidSchemaError, match="`bound_token_id` holds 276"):
        OutputSchema.regex("a").with_trigger([1], bound_token_id=276).check_vocabulary(276)


@pytest.mark.parametrize(
    ("so_args", "expected"),
    [
        ({"schema_type": "regex", "schema": "a+"}, OutputSchema.regex("a+")),
        ({"schema_type": "ebnf", "schema": 'root ::= "a"'}, OutputSchema.ebnf('root ::= "a"')),
        ({"schema_type": "json", "schema": "{}"}, OutputSchema.json_schema({})),
        (
            {
                "schema_type": "regex",
                "schema": "a",
                "trigger_token_ids": [0, 5],
                "bound_token_id": 0,
            },
            OutputSchema.regex("a").with_trigger([0, 5], 0),
        ),
        (
            {"schema_type": "regex", "schema": "a", "trigger_token_ids": None},
            OutputSchema.regex("a"),
        ),
    ],
)
def test_so_args_are_read(so_args, expected):
    assert schema_from_so_args(so_args) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_type": "lark"}, "unsupported grammar type 'lark'"),
        ({"schema": {"a": 1}}, "`schema` must be a string"),
        ({"serialized": True}, "unknown keys serialized"),
        ({"bound_token_ids": [1]}, "the name is `bound_token_id`"),
        ({"bound_token_id": 3}, "needs `trigger_token_ids`"),
        ({"trigger_token_ids": [True]}, "non-negative integers"),
        ({"trigger_token_ids": 5}, "must be a list"),
        ({"trigger_token_ids": [1], "bound_token_id": -1}, "non-negative integers"),
    ],
)
def test_wrong_so_args_are_refused(change, words):
    with pytest.raises(InvalidSchemaError, match=words):
        schema_from_so_args({"schema_type": "regex", "schema": "a", **change})


KEYWORDS = [
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties", "required"),
    *("additionalProperties", "patternProperties", "propertyNames", "minProperties", "items"),
    *("prefixItems", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength", "pattern"),
    *("format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "not"),
    *("$defs", "$id", "nullable", "unevaluatedItems", "unevaluatedProperties", "x", "a"),
]
junk = st.recursive(
    st.one_of(
        st.sampled_from([None, True, 10**400, -(2**63), "string", "integer", "object", "array"]),
        st.sampled_from(["#", "#/a", "#/$defs/a", "date", "", ".*", "("]),
        st.integers(-3, 3),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(value=junk, strict=st.booleans())
def test_whatever_comes_is_a_schema_or_refused(value, strict):
    tag = {"type": "json_schema", "json_schema": value}
    for make in (
        lambda: OutputSchema.json_schema(value, strict=strict),
        lambda: OutputSchema.structural_tag(tag, strict=strict),
        lambda: OutputSchema.structural_tag(value),
        lambda: OutputSchema.tool_calls([{"name": "f", "parameters": value}], strict=strict),
        lambda: OutputSchema.tool_calls(value),
        lambda: OutputSchema.choice(value),
        lambda: OutputSchema.regex(value),
        lambda: OutputSchema.ebnf(value),
        lambda: OutputSchema.regex("a").with_reasoning(value),
        lambda: schema_from_so_args(value),
    ):
        with contextlib.suppress(InvalidSchemaError):
            assert isinstance(make(), OutputSchema)
