"""JSON schema keywords of single values: strings, numbers, `enum` and `const`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "KNOWN_FORMATS",
    "Findings",
    "are_types",
    "count",
    "lower_number",
    "lower_string",
    "lower_values",
]

LONGEST_PATTERN_LENGTH = 512
"""A `pattern` with a larger count takes xgrammar seconds, and grows with its square."""
LARGEST_MULTIPLE = 1000
"""Its rule has one branch for each remainder and digit."""
MAX_DECIMALS = 6
"""Digits behind the point that xgrammar's number ranges keep."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
KNOWN_FORMATS = frozenset(
    (
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)


@dataclass
class Findings:
    """What a walk over a schema has found, one sentence with a path each.

    Attributes:
        invalid: Malformed parts.
        ignored: What the grammar would leave out.
        empty: Parts that no value satisfies.
    """

    invalid: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def are_types(names: list[Any], path: str, found: Findings) -> bool:
    """Whether the names beside `type` are those of types, one at least."""
    if names and all(name in TYPES for name in names):
        return True
    found.invalid.append(
        f"`{path}.type` must be one or more of {', '.join(TYPES)}, got {names!r:.100}"
    )
    return False


def count(node: dict[str, Any], name: str, path: str, found: Findings) -> int | None:
    """Reads a number of characters, items or members; None if there is none, or a wrong one."""
    value = node.get(name)
    if value is None and name not in node:
        return None
    if isinstance(value, float) and value.is_integer():
        value = node[name] = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        found.invalid.append(
            f"`{path}.{name}` must be an integer from 0 to 2147483647, got {value!r:.50}"
        )
        return None
    return value


def lower_string(
    node: dict[str, Any],
    path: str,
    found: Findings,
    *,
    is_only_type: bool,
    lengths_as_pattern: bool,
) -> None:
    """Keywords of strings.

    Args:
        node: The schema, rewritten in place.
        path: Its name in findings.
        found: Takes what is wrong.
        is_only_type: Whether nothing but strings may match.
        lengths_as_pattern: Whether lengths are written as a pattern, which keeps control characters
            out of the string.
    """
    shortest, longest = (
        count(node, "minLength", path, found),
        count(node, "maxLength", path, found),
    )
    if shortest is not None and longest is not None and shortest > longest and is_only_type:
        found.empty.append(f"`{path}.minLength` {shortest} is greater than `maxLength` {longest}")
    if shortest == 0:
        del node["minLength"]
    if "pattern" in node and not isinstance(node["pattern"], str):
        found.invalid.append(f"`{path}.pattern` must be a string")
    if "pattern" in node and "format" in node:
        found.ignored.append(f"`{path}.format` is ignored beside `pattern`")
    if "format" in node and node["format"] not in sorted(KNOWN_FORMATS):
        found.ignored.append(
            f"`{path}.format` {node['format']!r:.50} is ignored by the grammar; known are "
            + ", ".join(sorted(KNOWN_FORMATS))
        )
    for name in ("minLength", "maxLength"):
        for other in ("pattern", "format"):
            if name in node and other in node:
                found.ignored.append(f"`{path}.{name}` is ignored beside `{other}`")
    if lengths_as_pattern and ("minLength" in node or "maxLength" in node):
        _length_as_pattern(node, shortest or 0, longest, path, found)


def _length_as_pattern(
    node: dict[str, Any], shortest: int, longest: int | None, path: str, found: Findings
) -> None:
    if "pattern" in node or "format" in node:
        return
    for name in ("minLength", "maxLength"):
        node.pop(name, None)
    if max(shortest, longest or 0) > LONGEST_PATTERN_LENGTH:
        found.ignored.append(
            f"`{path}` has a length bound over {LONGEST_PATTERN_LENGTH}, which is not "
            "enforced inside tool arguments"
        )
        return
    upper = "" if longest is None else longest
    node["pattern"] = f'^[^\\x00-\\x1f"\\\\]{{{shortest},{upper}}}$'


def lower_number(node: dict[str, Any], types: list[str], path: str, found: Findings) -> None:
    """Keywords of numbers; bounds of integers become whole and inclusive."""
    bounds: dict[str, float] = {}
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if name not in node:
            continue
        value = node[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or (isinstance(value, float) and not math.isfinite(value))
        ):
            found.invalid.append(f"`{path}.{name}` must be a finite number, got {value!r:.50}")
            return
        if abs(value) >= 1 << 53 or round(value, MAX_DECIMALS) != value:
            found.ignored.append(
                f"`{path}.{name}` {value!r:.50} needs more than {MAX_DECIMALS} decimals or 53 "
                "bits, which the "
                "grammar does not keep"
            )
        bounds[name] = value
    multiple = _lower_multiple(node, types, path, found)
    if "integer" in types:
        _bound_integer(node, bounds, path, found, is_only_type=len(types) == 1, multiple=multiple)
    else:
        for inclusive, exclusive, stricter in (
            ("minimum", "exclusiveMinimum", max),
            ("maximum", "exclusiveMaximum", min),
        ):
            if inclusive in bounds and exclusive in bounds:
                tight = stricter(bounds[inclusive], bounds[exclusive])
                node.pop(inclusive if bounds[exclusive] == tight else exclusive)


def _lower_multiple(
    node: dict[str, Any], types: list[str], path: str, found: Findings
) -> int | None:
    if "multipleOf" not in node:
        return None
    value = node["multipleOf"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        found.invalid.append(f"`{path}.multipleOf` must be a number above 0, got {value!r:.50}")
    elif "number" in types or value != int(value) or value > LARGEST_MULTIPLE:
        found.ignored.append(
            f"`{path}.multipleOf` {value!r:.50} is ignored by the grammar, which knows whole "
            "numbers up to "
            f"{LARGEST_MULTIPLE} for the type integer"
        )
    elif value == 1:
        del node["multipleOf"]
    else:
        node["multipleOf"] = int(value)
        return int(value)
    return None


def _bound_integer(
    node: dict[str, Any],
    bounds: Mapping[str, float],
    path: str,
    found: Findings,
    *,
    is_only_type: bool,
    multiple: int | None,
) -> None:
    lows = [math.ceil(bounds["minimum"])] if "minimum" in bounds else []
    lows += [math.floor(bounds["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in bounds else []
    highs = [math.floor(bounds["maximum"])] if "maximum" in bounds else []
    highs += [math.ceil(bounds["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in bounds else []
    for name in bounds:
        node.pop(name, None)
    if lows:
        node["minimum"] = max(lows)
    if highs:
        node["maximum"] = min(highs)
    if lows and highs and max(lows) > min(highs) and is_only_type:
        found.empty.append(
            f"`{path}` has no integer between its bounds {max(lows)} and {min(highs)}"
        )
    if multiple is not None and bounds:
        found.ignored.append(f"`{path}.multipleOf` is not enforced beside bounds")


def lower_values(node: dict[str, Any], head: str, path: str, found: Findings) -> None:
    """Checks `enum` and `const`, and takes out the values that a `type` beside them forbids."""
    values = [node["const"]] if head == "const" else node["enum"]
    if not isinstance(values, list):
        found.invalid.append(f"`{path}.enum` must be an array, got {type(values).__name__}")
        return
    for value in values:
        if not _is_exact(value):
            found.ignored.append(
                f"`{path}.{head}` holds a number beyond 64-bit integers, which the grammar rounds"
            )
    if "type" in node:
        names = node.pop("type")
        names = names if isinstance(names, list) else [names]
        if not are_types(names, path, found):
            return
        values = [value for value in values if any(_has_type(value, name) for name in names)]
        if head == "enum":
            node["enum"] = values
    if not values:
        found.empty.append(f"`{path}.{head}` has no value of the type beside it")


def _is_exact(value: Any) -> bool:
    """Whether xgrammar writes a value as it is: its integers have 64 bits."""
    if isinstance(value, Mapping):
        return all(_is_exact(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_exact(item) for item in value)
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return not isinstance(value, float) or math.isfinite(value)


def _has_type(value: Any, name: str) -> bool:
    """Whether a decoded JSON value has a JSON schema type."""
    if name in ("number", "integer"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (name == "number" or value == int(value))
    kinds: dict[str, type] = {
        "null": type(None),
        "boolean": bool,
        "string": str,
        "array": list,
        "object": dict,
    }
    return isinstance(value, kinds[name])
