"""JSON schemas whose texts are short, of every kind of keyword."""

from typing import Any

__all__ = ["BOUNDED_SCHEMAS"]

_TEXT: dict[str, Any] = {"type": "string", "maxLength": 6}
BOUNDED_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["a"],
    },
    {
        "type": "object",
        "properties": {"name": _TEXT, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
    },
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "null"}, _TEXT], "minItems": 2},
    {"enum": ["red", "green", 3, None]},
    {"const": {"a": [1, "é"]}},
    {"anyOf": [_TEXT, {"type": "integer", "minimum": -5, "maximum": 5}]},
    {"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]{2}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "integer", "multipleOf": 5},
    {
        "type": "object",
        "propertyNames": {"enum": ["x", "y"]},
        "additionalProperties": True,
        "maxProperties": 1,
    },
    {
        "$defs": {"leaf": _TEXT},
        "type": "object",
        "properties": {"l": {"$ref": "#/$defs/leaf"}},
        "required": ["l"],
    },
    {
        "type": "object",
        "properties": {
            "n": {
                "anyOf": [
                    {"type": "null"},
                    {"type": "object", "properties": {"n": {"type": "null"}}},
                ]
            }
        },
    },
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "object", "properties": {"x": {"enum": [1]}, "y": {"enum": [2]}}, "minProperties": 1},
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}, "maxProperties": 2},
]
