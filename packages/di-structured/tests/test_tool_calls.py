"""DeepSeek-V4.1's call syntax: what is admitted, token by token."""

import pytest

from di_structured import GrammarViolationError, InvalidSchemaError, OutputSchema, allocate_masks
from di_structured.testing import allowed_in_row

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"name": "ping"},
]
DSML = "｜DSML｜"
OPEN, CLOSE = f"<{DSML} calls>\n", f"</{DSML} calls>"
PING = f'<{DSML} invoke name="ping">\n</{DSML} invoke>\n'


def weather(arguments):
    return f'<{DSML} invoke name="get_weather">\n{arguments}</{DSML} invoke>\n'


def argument(name, value, is_string):
    kind = "true" if is_string else "false"
    return f'<{DSML} parameter name="{name}" string="{kind}">{value}</{DSML} parameter>\n'


CITY = argument("city", 'São "Paulo"\n\tx', True)
DAYS = argument("days", "3", False)


def encode_call(text):
    """Single bytes, with the marker as its own token, id 4."""
    head, *parts = text.split(DSML)
    ids = [5 + byte for byte in head.encode()]
    for part in parts:
        ids += [4, *(5 + byte for byte in part.encode())]
    return ids


def admits(session, text):
    try:
        session.advance(encode_call(text))
    except GrammarViolationError:
        return False
    return session.is_complete


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            {},
            [
                "hello",
                "",
                "\n\n" + OPEN + PING + CLOSE,
                "text" + OPEN + weather(CITY + DAYS) + PING + CLOSE,
            ],
            [
                OPEN + CLOSE,
                OPEN + weather(DAYS) + CLOSE,
                OPEN + weather(argument("city", "x", False)) + CLOSE,
                OPEN + PING + CLOSE + "more",
            ],
        ),
        ({"choice": "none"}, ["hello"], [OPEN + PING + CLOSE]),
        ({"choice": "required"}, ["\n\n" + OPEN + PING + weather(CITY) + CLOSE], ["hello", ""]),
        (
            {"choice": "ping"},
            ["\n\n" + OPEN + PING + CLOSE],
            ["\n\n" + OPEN + PING + PING + CLOSE, "\n\n" + OPEN + weather(CITY) + CLOSE],
        ),
        (
            {"choice": "required", "parallel": False},
            ["\n\n" + OPEN + PING + CLOSE],
            ["\n\n" + OPEN + PING + PING + CLOSE],
        ),
        (
            {"choice": "required", "block_is_open": True},
            [PING + CLOSE],
            ["\n\n" + OPEN + PING + CLOSE, "hi"],
        ),
    ],
    ids=str,
)
def test_what_is_admitted(start, options, good, bad):
    schema = OutputSchema.tool_calls(TOOLS, **options)
    for text in [*good, *bad]:
        assert admits(start(schema), text) == (text in good), text


def test_an_unknown_name_cannot_be_begun(start):
    session = start(OutputSchema.tool_calls(TOOLS, choice="required"))
    session.advance(encode_call("\n\n" + OPEN + f'<{DSML} invoke name="'))
    masks = allocate_masks(1, session.vocab_size)
    session.fill_masks([], masks)
    assert allowed_in_row(masks[0]) == [5 + ord("g"), 5 + ord("p")]


@pytest.mark.parametrize(
    ("tools", "options", "words"),
    [
        ([{"type": "function"}], {}, r"`tools\[0\]` needs a function"),
        ([{"name": 'a"b'}], {}, "cannot carry"),
        ([{"name": "a"}, {"name": "a"}], {}, "`a` twice"),
        ([{"name": "a"}], {"choice": "b"}, "one of"),
        ([], {"choice": "required"}, "at least one tool"),
        ([{"name": "a", "parameters": []}], {}, "object schema"),
        (
            [{"name": "a", "parameters": {"properties": {"x": {"not": {}}}}}],
            {},
            r"json_schema\.properties\.x\.not",
        ),
    ],
)
def test_wrong_tools_are_refused(tools, options, words):
    with pytest.raises(InvalidSchemaError, match=words):
        OutputSchema.tool_calls(tools, **options)
