r"""DeepSeek-V4.1's tool-call syntax as an xgrammar structural tag.

The shape (DeepSeek-V4.1-Flash `encoding/encoding.py`, which the model's prompts show to it)::

    \n\n<｜DSML｜ calls>\n
    <｜DSML｜ invoke name="NAME">\n
    <｜DSML｜ parameter name="KEY" string="true|false">VALUE</｜DSML｜ parameter>\n
    </｜DSML｜ invoke>\n
    </｜DSML｜ calls>

String values are raw text with `string="true"`, all others JSON with `string="false"`. The turn
ends behind the block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from di_structured.errors import InvalidSchemaError

__all__ = ["tool_call_tag"]

MARK = "｜DSML｜"
BLOCK_OPEN = f"<{MARK} calls>"
BLOCK_CLOSE = f"</{MARK} calls>"
CALL_CLOSE = f"</{MARK} invoke>\n"
ARGUMENT_STYLE = "deepseek_v4_1_xml"
REASONING_MARKERS = ("<think>", "</think>")


def tool_call_tag(
    tools: Sequence[Mapping[str, Any]], choice: str, *, parallel: bool, block_is_open: bool
) -> dict[str, Any]:
    """Returns the structural tag for tools; the arguments are those of `OutputSchema.tool_calls`.

    Raises:
        InvalidSchemaError: A tool has no name or one that the syntax cannot carry, a name is there
            twice, or `choice` names no tool.
    """
    given: Any = tools
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidSchemaError(f"`tools` must be a list of tools, got {type(tools).__name__}")
    functions = [_function(tool, index) for index, tool in enumerate(given)]
    names = [function["name"] for function in functions]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidSchemaError(f"`tools` has the name `{twice}` twice")
    if choice not in ("auto", "none", "required"):
        functions = [function for function in functions if function["name"] == choice]
        if not functions:
            raise InvalidSchemaError(
                f"`choice` must be auto, none, required or one of {names}, got {choice!r:.50}"
            )
    if choice == "none" or (choice == "auto" and not functions):
        return _tag({"type": "any_text", "excludes": [*REASONING_MARKERS, BLOCK_OPEN]})
    if not functions:
        raise InvalidSchemaError("`choice` required needs at least one tool")
    only_one = not parallel or choice not in ("auto", "required")
    calls: dict[str, Any] = {
        "type": "tags_with_separator",
        "tags": [_call(function) for function in functions],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": only_one,
    }
    if block_is_open:
        return _tag(_sequence(calls, _const(BLOCK_CLOSE)))
    if choice != "auto":
        return _tag(_sequence(_const(f"\n\n{BLOCK_OPEN}\n"), calls, _const(BLOCK_CLOSE)))
    block = {"type": "tag", "begin": f"{BLOCK_OPEN}\n", "content": calls, "end": BLOCK_CLOSE}
    return _tag(
        {
            "type": "triggered_tags",
            "triggers": [BLOCK_OPEN],
            "tags": [block],
            "excludes": list(REASONING_MARKERS),
            "stop_after_first": True,
        }
    )


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise InvalidSchemaError(f"`tools[{index}]` needs a function with a `name`")
    if any(char in name for char in '"<>\n\r\0') or MARK in name:
        raise InvalidSchemaError(
            f"`tools[{index}]` has a name that the call syntax cannot carry: {name!r:.50}"
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidSchemaError(f"`tools[{index}].parameters` must be an object schema")
    return function


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {
        "type": "tag",
        "begin": f'<{MARK} invoke name="{function["name"]}">\n',
        "content": {
            "type": "json_schema",
            "json_schema": dict(parameters),
            "style": ARGUMENT_STYLE,
        },
        "end": CALL_CLOSE,
    }


def _const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _tag(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}
