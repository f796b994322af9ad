"""Patterns with characters that JSON strings escape: their rewritten form, and what it admits."""

import json
import re

import pytest

from di_structured import GrammarViolationError, InvalidSchemaError, OutputSchema
from di_structured.json_pattern import escape_for_json
from di_structured.testing import generate

DSML = "｜DSML｜"
QUOTE = {"type": "string", "pattern": '^"$'}


def admits(session, token_ids):
    try:
        session.advance(token_ids)
    except GrammarViolationError:
        return False
    return True


def arguments(value_schema):
    """A tag of V4.1 tool arguments whose only one has this schema."""
    return arguments_of({"type": "object", "properties": {"a": value_schema}, "required": ["a"]})


def arguments_of(parameters):
    return {
        "type": "structural_tag",
        "format": {
            "type": "json_schema",
            "json_schema": parameters,
            "style": "deepseek_v4_1_xml",
        },
    }


def argument(value, *, name="a", is_string=True):
    kind = "true" if is_string else "false"
    return f'<{DSML} parameter name="{name}" string="{kind}">{value}</{DSML} parameter>\n'


@pytest.mark.parametrize(
    ("pattern", "escaped"),
    [
        ('^"$', r'^(?:\\")$'),
        (r"^\\$", r"^(?:\\\\)$"),
        ("^\n$", r"^(?:\\n)$"),
        (r"^\n$", r"^(?:\\n)$"),
        (r"\t\r\f\v", r"(?:\\t)(?:\\r)(?:\\f)(?:\\u000b)"),
        ("\x08\x01", r"(?:\\b)(?:\\u0001)"),
        ('a"+b', r'a(?:\\")+b'),
        (r"\"*?\\{2}", r'(?:\\")*?(?:\\\\){2}'),
        (r"\x22a\u0022?\u{22}", r'(?:\\")a(?:\\")?(?:\\")'),
        (r"\cJ\cj\0\01", r"(?:\\n)(?:\\n)(?:\\u0000)(?:\\u0001)"),
        ("\\\n", r"(?:\\n)"),
        (r'["]+', r'(?:\\")+'),
        (r'["\n\b]', r'(?:\\"|\\n|\\b)'),
        (r'[\x00-\x02"]', r'(?:\\u0000|\\u0001|\\u0002|\\")'),
        (r'[\]"]"', r'(?:[\u005d]|\\")(?:\\")'),
        ('".', r'(?:\\")[^\x00-\x1f"\\\u2028\u2029]'),
        (r'"\s\S', r'(?:\\")[ ][^\x00-\x1f"\\\s]'),
        (r'"\W\D\w\d', r'(?:\\")[^\x00-\x1f"\\\w][^\x00-\x1f"\\\d]\w\d'),
        ('"[^a][^-b]', r'(?:\\")[^\x00-\x1f"\\a][^\x00-\x1f"\\\-b]'),
        ('"[!-z]', r'(?:\\")(?:[\u0021\u0023-\u005b\u005d-\u007a]|\\"|\\\\)'),
        (r'"[\w-"]', r'(?:\\")(?:[\w\u002d]|\\")'),
        (r'"[\w\W.]', r'(?:\\")(?:[\w\u002e]|[^\x00-\x1f"\\\w])'),
        (r'\["\]', r'\[(?:\\")\]'),
    ],
)
def test_what_json_escapes_is_rewritten(pattern, escaped):
    assert escape_for_json(pattern) == escaped


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^a+|b{2}$",
        r"\b\B\d\D\w\W\s\S.",
        r"(a)\1(?<n>b)\k<n>\p{L}\P{L}",
        r'["a][^"][!-"][\s"]["-]',
        r"[\x00-\x20][^\\]",
        r"\/\.\$\x41\u00e9\u{1f600}",
        "[]",
        "\\",
    ],
)
def test_all_else_stays(pattern):
    assert escape_for_json(pattern) == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        '^"$',
        r"^\\$",
        r"^\n$",
        "^\t$",
        r"^\x01$",
        'a"+b',
        r'["\n]{2}',
        r'[a"]\\\\',
        r'".\s[^a][!-z]\W',
    ],
)
def test_values_match_their_pattern(start, decode, pattern):
    schema = OutputSchema.json_schema({"type": "string", "pattern": pattern}, max_whitespace=0)
    for seed in range(5):
        generation = generate(start(schema), seed=seed, num_drafts=0, max_tokens=200)
        assert generation.is_finished
        value = json.loads(decode(generation.token_ids))
        assert re.fullmatch(pattern.strip("^$"), value, re.ASCII)
    assert not admits(start(schema), [5 + byte for byte in b'"""'])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "patternProperties": {'^"$': {"type": "null"}}},
        {"type": "object", "propertyNames": {"pattern": '^"$'}},
    ],
    ids=["patternProperties", "propertyNames"],
)
def test_names_match_their_pattern(start, encode, schema):
    schema = OutputSchema.json_schema(schema, max_whitespace=0)
    assert admits(start(schema), encode(r'{"\"":null}'))
    assert not admits(start(schema), encode('{""":null}'))


@pytest.mark.parametrize(
    "schema",
    [QUOTE, {"anyOf": [QUOTE, {"type": "null"}]}, {"allOf": [QUOTE]}],
    ids=["plain", "anyOf", "allOf"],
)
def test_raw_arguments_keep_the_pattern(start, encode, schema):
    tag = OutputSchema.structural_tag(arguments(schema))
    assert admits(start(tag), encode(argument('"')))
    assert not admits(start(tag), encode(argument(r"\"")))


def test_raw_arguments_keep_the_pattern_behind_a_reference(start, encode):
    tag = OutputSchema.structural_tag(
        arguments_of(
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/quote"}},
                "required": ["a"],
                "$defs": {"quote": QUOTE},
            }
        )
    )
    assert admits(start(tag), encode(argument('"')))
    assert not admits(start(tag), encode(argument(r"\"")))


def test_names_of_raw_arguments_keep_the_pattern(start, encode):
    tag = OutputSchema.structural_tag(
        arguments_of({"type": "object", "patternProperties": {'^"$': {"type": "null"}}})
    )
    assert admits(start(tag), encode(argument("null", name='"', is_string=False)))


def test_strings_inside_json_arguments_are_escaped(start, encode):
    tag = OutputSchema.structural_tag(
        arguments({"type": "array", "items": QUOTE, "minItems": 1, "maxItems": 1})
    )
    assert admits(start(tag), encode(argument(r'["\""]', is_string=False)))
    assert not admits(start(tag), encode(argument('["""]', is_string=False)))


def test_a_pattern_cannot_be_shared_by_raw_text_and_json():
    quote = {"$ref": "#/$defs/quote"}
    parameters = {
        "type": "object",
        "properties": {"a": quote, "b": {"type": "array", "items": quote}},
        "$defs": {"quote": QUOTE},
    }
    with pytest.raises(InvalidSchemaError, match="write the schema twice"):
        OutputSchema.structural_tag(arguments_of(parameters))
    parameters["$defs"] = {"quote": {"type": "string", "pattern": '^[^"]$'}}
    assert OutputSchema.structural_tag(arguments_of(parameters)).warnings == ()
