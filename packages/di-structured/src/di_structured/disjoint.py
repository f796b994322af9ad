"""Whether two branches of a `oneOf` can match the same value."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["may_overlap"]

ALL_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
MAX_FOLLOWED = 8


def may_overlap(first: Any, second: Any, document: Any) -> bool:
    """Returns False only when no value can match both schemas.

    Schemas are told apart by type, by `const` or `enum`, and by a property that both require with
    different values.

    Args:
        first: A decoded schema.
        second: A decoded schema.
        document: The root that references point into.
    """
    first, second = _follow(first, document), _follow(second, document)
    if first is False or second is False:
        return False
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return True
    if not _types(first) & _types(second):
        return False
    values, others = _values(first), _values(second)
    if values is not None and others is not None:
        return bool(values & others)
    if _types(first) & _types(second) != {"object"}:
        return True
    shared = set(_names(first)) & set(_names(second))
    return not any(_tells_apart(first, second, name, document) for name in shared)


def _follow(schema: Any, document: Any) -> Any:
    for _ in range(MAX_FOLLOWED):
        if not isinstance(schema, Mapping) or not str(schema.get("$ref", "")).startswith("#"):
            return schema
        target = document
        for part in schema["$ref"].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                return True
            target = target[key]
        schema = target
    return True


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return (
            frozenset(_type_of(value) for value in values)
            if isinstance(values, list)
            else ALL_TYPES
        )
    given = schema.get("type", sorted(ALL_TYPES))
    given = given if isinstance(given, list) else [given]
    if any(name in schema for name in ("anyOf", "oneOf", "allOf")):
        return ALL_TYPES
    return frozenset("number" if name == "integer" else name for name in given)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _values(schema: Mapping[str, Any]) -> frozenset[str] | None:
    if "const" in schema:
        return frozenset((_key(schema["const"]),))
    values = schema.get("enum")
    return frozenset(_key(value) for value in values) if isinstance(values, list) else None


def _key(value: Any) -> str:
    """A text that is equal for equal JSON values: 1 and 1.0 are the same number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(_key(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(json.dumps(k) + ":" + _key(v) for k, v in value.items())) + "}"
    return json.dumps(value)


def _names(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _tells_apart(
    first: Mapping[str, Any], second: Mapping[str, Any], name: str, document: Any
) -> bool:
    if name not in first.get("required", ()) or name not in second.get("required", ()):
        return False
    return not may_overlap(_names(first)[name], _names(second)[name], document)
