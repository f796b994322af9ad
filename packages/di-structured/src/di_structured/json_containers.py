"""JSON schema keywords of arrays and objects."""

import copy
import json
from collections.abc import Callable
from typing import Any

from di_structured.json_scalars import Findings, count, lower_values

__all__ = ["lower_array", "lower_object"]

Visit = Callable[[Any, str], None]
"""Called with a schema inside the present one, and its path."""


def lower_array(node: dict[str, Any], path: str, found: Findings, visit: Visit) -> None:
    """Keywords of arrays."""
    fewest, most = count(node, "minItems", path, found), count(node, "maxItems", path, found)
    if fewest is not None and most is not None and fewest > most:
        found.empty.append(f"`{path}.minItems` {fewest} is greater than `maxItems` {most}")
    if node.get("uniqueItems") and (most is None or most > 1):
        found.ignored.append(f"`{path}.uniqueItems` is ignored by the grammar")
    prefix = node.get("prefixItems", [])
    if isinstance(node.get("items"), list) or not isinstance(prefix, list):
        found.invalid.append(
            f"`{path}`: a tuple is written `prefixItems: [...]` with `items` as one schema"
        )
        return
    for index, item in enumerate(prefix):
        visit(item, f"{path}.prefixItems[{index}]")
    if "unevaluatedItems" in node:
        rest = node.pop("unevaluatedItems")
        node.setdefault("items", rest)
    if (
        "items" not in node
        and "prefixItems" not in node
        and (fewest is not None or most is not None)
    ):
        node["items"] = True
    if "items" in node:
        visit(node["items"], f"{path}.items")


def lower_object(
    node: dict[str, Any], path: str, found: Findings, visit: Visit, *, is_open: bool
) -> None:
    """Keywords of objects.

    Args:
        node: The schema, rewritten in place.
        path: Its name in findings.
        found: Takes what is wrong.
        visit: Lowers the schema of a member.
        is_open: Whether names that the schema does not mention are admitted unless it says so.
    """
    properties = node.get("properties", {})
    required = node.get("required", [])
    if not isinstance(properties, dict):
        found.invalid.append(f"`{path}.properties` must be an object")
        return
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        found.invalid.append(f"`{path}.required` must be an array of strings")
        return
    if "unevaluatedProperties" in node:
        rest = node.pop("unevaluatedProperties")
        node.setdefault("additionalProperties", rest)
    by_pattern: list[str] = [
        name for name in ("patternProperties", "propertyNames") if name in node
    ]
    _lower_key_patterns(
        node, by_pattern, path, found, visit, has_names=bool(properties or required)
    )
    if not properties and not by_pattern and "additionalProperties" not in node:
        node["additionalProperties"] = True  # nothing is said about members: any object
    extra = node.get("additionalProperties", is_open)
    if not by_pattern:
        _add_required(node, properties, required, path, found)
    for name, member in list(properties.items()):
        if extra is not False and "\\" in json.dumps(name, ensure_ascii=False):
            found.ignored.append(
                f"`{path}.properties` has the name {name!r:.50}, whose escapes the free names "
                "of an open object may spell as well"
            )
        visit(member, f"{path}.properties.{name}")
        if member is False and name not in required:
            if extra is not False:
                found.ignored.append(
                    f"`{path}.properties.{name}` forbids a name, which an open object cannot"
                )
            del properties[name]
    if not isinstance(extra, bool):
        visit(extra, f"{path}.additionalProperties")
    fewest, most = (
        count(node, "minProperties", path, found),
        count(node, "maxProperties", path, found),
    )
    if fewest is not None and most is not None and fewest > most:
        found.empty.append(
            f"`{path}.minProperties` {fewest} is greater than `maxProperties` {most}"
        )
    if fewest is not None and fewest > 1 and (by_pattern or extra is not False):
        found.ignored.append(
            f"`{path}.minProperties` over 1 is not enforced where names are free, because a "
            "name may repeat"
        )


def _lower_key_patterns(
    node: dict[str, Any],
    by_pattern: list[str],
    path: str,
    found: Findings,
    visit: Visit,
    *,
    has_names: bool,
) -> None:
    if len(by_pattern) > 1 or (by_pattern and has_names):
        beside = "the other" if len(by_pattern) > 1 else "`properties` or `required`"
        found.ignored.append(f"`{path}.{by_pattern[0]}` is ignored beside {beside}")
    patterns = node.get("patternProperties", {})
    if not isinstance(patterns, dict):
        found.invalid.append(f"`{path}.patternProperties` must be an object")
        return
    if len(patterns) > 1:
        found.ignored.append(
            f"`{path}.patternProperties`: of several patterns only one is applied to a name"
        )
    for pattern, member in patterns.items():
        visit(member, f"{path}.patternProperties[{pattern!r:.40}]")
    names = node.get("propertyNames")
    if names is None:
        return
    if "patternProperties" not in node and node.get("additionalProperties", True) is not True:
        found.ignored.append(f"`{path}.additionalProperties` is ignored beside `propertyNames`")
    if isinstance(names, dict) and "pattern" in names and set(names) <= {"type", "pattern"}:
        names["type"] = "string"
        visit(names, f"{path}.propertyNames")
    elif isinstance(names, dict) and set(names) <= {"type", "enum"} and names.get("enum"):
        lower_values(names, "enum", f"{path}.propertyNames", found)
    elif names is not True:
        found.ignored.append(
            f"`{path}.propertyNames` is enforced for a `pattern` or an `enum` alone"
        )


def _add_required(
    node: dict[str, Any],
    properties: dict[str, Any],
    required: list[str],
    path: str,
    found: Findings,
) -> None:
    """Declares required names that are no properties: xgrammar would drop them."""
    for name in required:
        if name in properties:
            if properties[name] is False:
                found.empty.append(f"`{path}.properties.{name}` is required and forbidden")
            continue
        extra = node.get("additionalProperties", True)
        if extra is False:
            found.empty.append(f"`{path}.required` names `{name}`, which the object does not admit")
        else:
            properties[name] = copy.deepcopy(extra)
            node["properties"] = properties
