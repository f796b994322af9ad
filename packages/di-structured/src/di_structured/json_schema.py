"""What a JSON schema may say, and the form in which xgrammar enforces it.

xgrammar 0.2.9 compiles every schema and leaves out, without an error, what it cannot express:
`not`, `uniqueItems`, `allOf` with several members, lengths beside a pattern, constraints beside
`$ref` or `enum`, required names that are no properties, and more. `lower` walks a schema, reports
each such place with its path, and rewrites what has an equal form that xgrammar does enforce. The
promise is soundness: every text that the lowered schema admits is valid under the original one. It
is not completeness: properties keep the schema's order, objects with `properties` are closed unless
they say otherwise, and patterns match the whole string.
"""

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from di_structured.disjoint import may_overlap
from di_structured.errors import EmptyGrammarError, InvalidSchemaError

__all__ = ["KNOWN_FORMATS", "LoweredSchema", "lower"]

MAX_DEPTH = 200
MAX_SCHEMA_BYTES = 1 << 20
LONGEST_PATTERN_LENGTH = (
    512  # `pattern` with a larger count takes xgrammar seconds, and grows with its square
)
LARGEST_MULTIPLE = 1000  # its rule has one branch for each remainder and digit
MAX_DECIMALS = 6  # digits behind the point that xgrammar's number ranges keep

ANNOTATIONS = frozenset(
    (
        *("$schema", "$comment", "$defs", "definitions", "$vocabulary", "$anchor", "title"),
        *("description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType", "contentSchema", "discriminator"),
    )
)
IGNORED = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "additionalItems"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    )
)
HEADS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
KEYWORDS_OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    ),
}
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
KNOWN_FORMATS = frozenset(
    (
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)


@dataclass(frozen=True, slots=True)
class LoweredSchema:
    """A schema in the form that xgrammar enforces.

    Attributes:
        schema: The decoded schema.
        warnings: What the grammar ignores, one sentence each; empty unless `strict` was off.
    """

    schema: Any
    warnings: tuple[str, ...]


def lower(
    schema: Any,
    *,
    strict: bool = True,
    is_open: bool = False,
    path: str = "$",
    inside_tag: bool = False,
    is_raw: bool = False,
) -> LoweredSchema:
    """Checks a decoded schema and rewrites it for xgrammar.

    Args:
        schema: A decoded JSON schema (draft 2020-12): a dict or a boolean. It is not modified.
        strict: Refuse keywords that the grammar would ignore; otherwise they become warnings.
        is_open: Objects without `additionalProperties` admit names that they do not mention.
        path: How problems name the root.
        inside_tag: The schema is part of a structural tag, whose vocabulary does not keep control
            characters out.
        is_raw: The members of the root object are written as tool arguments, strings among them as
            raw text.

    Raises:
        InvalidSchemaError: All problems found, each with its path.
        EmptyGrammarError: No value can satisfy the schema.
    """
    document = copy.deepcopy(schema)
    walk = _Walk(
        document, path, is_open=is_open, inside_tag=inside_tag, raw_depth=1 if is_raw else -1
    )
    walk.visit(document, path, 0)
    if walk.empty and not walk.invalid:
        raise EmptyGrammarError(f"no value satisfies the schema: {walk.empty[0]}", walk.empty)
    problems = [*walk.invalid, *walk.empty, *(walk.ignored if strict else ())]
    if problems:
        hint = (
            " (`strict=False` accepts the schema without them)" if strict and walk.ignored else ""
        )
        raise InvalidSchemaError(
            "the JSON schema cannot be enforced: " + "; ".join(problems) + hint, problems
        )
    return LoweredSchema(document, tuple(walk.ignored))


def canonical_text(schema: Any) -> str:
    """Returns compact JSON; members keep their order, because it is the order of the output."""
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None
    if len(text.encode("utf-8", "surrogatepass")) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(
            f"the schema has {len(text)} characters; the limit is {MAX_SCHEMA_BYTES} bytes"
        )
    return text


@dataclass
class _Walk:
    """One pass over a document, rewritten in place so that references keep their targets."""

    document: Any
    root: str
    is_open: bool = False
    inside_tag: bool = False
    raw_depth: int = -1
    invalid: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def visit(self, node: Any, path: str, depth: int) -> None:
        if isinstance(node, bool):
            return
        if not isinstance(node, dict):
            self.invalid.append(
                f"`{path}` must be an object or a boolean, got {type(node).__name__}"
            )
            return
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if depth > MAX_DEPTH:
            self.invalid.append(f"`{path[:80]}...` is nested deeper than {MAX_DEPTH} levels")
            return
        self._check_names(node, path, is_root=depth == 0)
        head = next((name for name in HEADS if name in node), None)
        if head is None:
            self._visit_typed(node, path, depth)
            return
        if head in ("anyOf", "oneOf") and "type" in node:
            self._push_type_down(node, head, path)
        if head in ("const", "enum"):
            self._visit_values(node, head, path)
        self._check_beside(node, head, path)
        if head == "$ref":
            self._visit_reference(node["$ref"], path, depth)
        elif head in ("anyOf", "oneOf", "allOf"):
            self._visit_branches(node, head, path, depth)

    def _check_names(self, node: dict[str, Any], path: str, *, is_root: bool) -> None:
        known = {name for names in KEYWORDS_OF_TYPE.values() for name in names} | {"type", *HEADS}
        for name in node:
            place = f"`{path}.{name}`"
            if name in IGNORED:
                self.ignored.append(f"{place} is ignored by the grammar")
            elif name == "nullable":
                if node[name]:
                    self.ignored.append(
                        f"{place} is ignored by the grammar; add the type `null` instead"
                    )
            elif name == "$id":
                if not is_root:
                    self.ignored.append(f"{place} below the root is ignored by the grammar")
            elif name not in known and name not in ANNOTATIONS and not name.startswith("x-"):
                self.ignored.append(f"{place} is no keyword that is known here")

    def _check_beside(self, node: dict[str, Any], head: str, path: str) -> None:
        for names in (("type", *HEADS), *KEYWORDS_OF_TYPE.values()):
            for name in names:
                if name in node and name != head:
                    self.ignored.append(f"`{path}.{name}` is ignored beside `{head}`")

    # --- references and combinations

    def _visit_reference(self, reference: Any, path: str, depth: int) -> None:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            self.invalid.append(
                f"`{path}.$ref` must point into this schema (`#/...`), got {reference!r:.100}"
            )
            return
        if "/oneOf/" in reference:
            self.invalid.append(f"`{path}.$ref` points into a `oneOf`; move the schema to `$defs`")
            return
        target: Any = self.document
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                self.invalid.append(f"`{path}.$ref` points at nothing: {reference!r:.100}")
                return
        where = self.root + "".join("." + part for part in reference.split("/")[1:])
        self.visit(target, where, depth + 1)

    def _push_type_down(self, node: dict[str, Any], head: str, path: str) -> None:
        """Moves a `type` beside `anyOf` into the branches, where xgrammar sees it."""
        outer = node["type"] if isinstance(node["type"], list) else [node["type"]]
        branches = node[head] if isinstance(node[head], list) else []
        plain = all(isinstance(b, dict) and not any(name in b for name in HEADS) for b in branches)
        if not plain:
            return
        kept: list[list[str]] = []
        for branch in branches:
            inner = branch.get("type", outer)
            inner = inner if isinstance(inner, list) else [inner]
            if "integer" in outer and "number" in inner:
                inner = ["integer" if name == "number" else name for name in inner]
            kept.append([n for n in inner if n in outer or (n == "integer" and "number" in outer)])
        if not any(kept):
            self.empty.append(f"`{path}.{head}` has no branch of the type beside it")
        elif all(kept):
            for branch, names in zip(branches, kept, strict=True):
                branch["type"] = names
            del node["type"]

    def _visit_branches(self, node: dict[str, Any], head: str, path: str, depth: int) -> None:
        branches = node[head]
        if not isinstance(branches, list) or not branches:
            self.invalid.append(f"`{path}.{head}` must be a non-empty array")
            return
        if head == "allOf" and len(branches) > 1:
            self.ignored.append(
                f"`{path}.allOf` with more than one member is ignored by the grammar; merge them"
            )
            return
        for index, branch in enumerate(branches):
            self.visit(branch, f"{path}.{head}[{index}]", depth + 1)
        if head == "oneOf":
            self._check_disjoint(branches, path)
            # xgrammar knows fewer ways to tell branches apart than `may_overlap`, and warns of the
            # others.
            node["anyOf"] = node.pop("oneOf")

    def _check_disjoint(self, branches: list[Any], path: str) -> None:
        for second, branch in enumerate(branches):
            for first in range(second):
                if may_overlap(branches[first], branch, self.document):
                    self.ignored.append(
                        f"`{path}.oneOf[{first}]` and `[{second}]` may both match one value, which "
                        "the grammar cannot rule out; use `anyOf`, or a property with different "
                        "`const` values"
                    )

    def _visit_values(self, node: dict[str, Any], head: str, path: str) -> None:
        """Checks `enum` and `const`, and takes out the values that a `type` beside them forbids."""
        values = [node["const"]] if head == "const" else node["enum"]
        if not isinstance(values, list):
            self.invalid.append(f"`{path}.enum` must be an array, got {type(values).__name__}")
            return
        for value in values:
            if not _is_exact(value):
                self.ignored.append(
                    f"`{path}.{head}` holds a number beyond 64-bit integers, which the grammar "
                    "rounds"
                )
        if "type" in node:
            names = node.pop("type")
            names = names if isinstance(names, list) else [names]
            values = [value for value in values if any(_has_type(value, name) for name in names)]
            if head == "enum":
                node["enum"] = values
        if not values:
            self.empty.append(f"`{path}.{head}` has no value of the type beside it")

    # --- typed schemas

    def _visit_typed(self, node: dict[str, Any], path: str, depth: int) -> None:
        types = self._types(node, path)
        if "string" in types:
            self._visit_string(node, path, is_only_type=len(types) == 1, depth=depth)
        if "integer" in types or "number" in types:
            self._visit_number(node, types, path)
        if "array" in types:
            self._visit_array(node, path, depth)
        if "object" in types:
            self._visit_object(node, path, depth)

    def _types(self, node: dict[str, Any], path: str) -> list[str]:
        """Returns the types of a schema; without `type`, those whose keywords it uses."""
        if "type" not in node:
            types = [
                name for name, words in KEYWORDS_OF_TYPE.items() if any(w in node for w in words)
            ]
            if types:
                node["type"] = types if len(types) > 1 else types[0]
            return types
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        wrong = [name for name in types if name not in TYPES]
        if wrong or not types:
            self.invalid.append(
                f"`{path}.type` must be one or more of {', '.join(TYPES)}, got "
                f"{node['type']!r:.100}"
            )
            return []
        if "number" in types and "integer" in types:
            types = [name for name in types if name != "integer"]
            node["type"] = types if len(types) > 1 else types[0]
        return types

    def _count(self, node: dict[str, Any], name: str, path: str) -> int | None:
        value = node.get(name)
        if value is None and name not in node:
            return None
        if isinstance(value, float) and value.is_integer():
            value = node[name] = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            self.invalid.append(
                f"`{path}.{name}` must be an integer from 0 to 2147483647, got {value!r:.50}"
            )
            return None
        return value

    def _visit_string(
        self, node: dict[str, Any], path: str, *, is_only_type: bool, depth: int
    ) -> None:
        shortest, longest = (
            self._count(node, "minLength", path),
            self._count(node, "maxLength", path),
        )
        if shortest is not None and longest is not None and shortest > longest and is_only_type:
            self.empty.append(
                f"`{path}.minLength` {shortest} is greater than `maxLength` {longest}"
            )
        if shortest == 0:
            del node["minLength"]
        if "pattern" in node and not isinstance(node["pattern"], str):
            self.invalid.append(f"`{path}.pattern` must be a string")
        if "pattern" in node and "format" in node:
            self.ignored.append(f"`{path}.format` is ignored beside `pattern`")
        if "format" in node and node["format"] not in KNOWN_FORMATS:
            self.ignored.append(
                f"`{path}.format` {node['format']!r:.50} is ignored by the grammar; known are "
                + ", ".join(sorted(KNOWN_FORMATS))
            )
        for name in ("minLength", "maxLength"):
            for other in ("pattern", "format"):
                if name in node and other in node:
                    self.ignored.append(f"`{path}.{name}` is ignored beside `{other}`")
        if (
            self.inside_tag
            and depth != self.raw_depth
            and ("minLength" in node or "maxLength" in node)
        ):
            self._length_as_pattern(node, path)

    def _length_as_pattern(self, node: dict[str, Any], path: str) -> None:
        """Writes lengths as a pattern, which keeps control characters out of the string."""
        if "pattern" in node or "format" in node:
            return
        shortest, longest = node.pop("minLength", 0), node.pop("maxLength", None)
        if max(shortest, longest or 0) > LONGEST_PATTERN_LENGTH:
            self.ignored.append(
                f"`{path}` has a length bound over {LONGEST_PATTERN_LENGTH}, which is not "
                "enforced inside tool arguments"
            )
            return
        upper = "" if longest is None else longest
        node["pattern"] = f'^[^\\x00-\\x1f"\\\\]{{{shortest},{upper}}}$'

    def _visit_number(self, node: dict[str, Any], types: list[str], path: str) -> None:
        bounds: dict[str, float] = {}
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if name not in node:
                continue
            value = node[name]
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not math.isfinite(value)
            ):
                self.invalid.append(f"`{path}.{name}` must be a finite number, got {value!r:.50}")
                return
            if abs(value) >= 1 << 53 or round(value, MAX_DECIMALS) != value:
                self.ignored.append(
                    f"`{path}.{name}` {value!r:.50} needs more than {MAX_DECIMALS} decimals or 53 "
                    "bits, which the "
                    "grammar does not keep"
                )
            bounds[name] = value
        multiple = self._visit_multiple(node, types, path)
        if "integer" in types:
            self._bound_integer(node, bounds, path, is_only_type=len(types) == 1, multiple=multiple)
        else:
            for inclusive, exclusive, stricter in (
                ("minimum", "exclusiveMinimum", max),
                ("maximum", "exclusiveMaximum", min),
            ):
                if inclusive in bounds and exclusive in bounds:
                    tight = stricter(bounds[inclusive], bounds[exclusive])
                    node.pop(inclusive if bounds[exclusive] == tight else exclusive)

    def _visit_multiple(self, node: dict[str, Any], types: list[str], path: str) -> int | None:
        if "multipleOf" not in node:
            return None
        value = node["multipleOf"]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            self.invalid.append(f"`{path}.multipleOf` must be a number above 0, got {value!r:.50}")
        elif "number" in types or value != int(value) or value > LARGEST_MULTIPLE:
            self.ignored.append(
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
        self,
        node: dict[str, Any],
        bounds: Mapping[str, float],
        path: str,
        *,
        is_only_type: bool,
        multiple: int | None,
    ) -> None:
        """Writes the bounds of integers as whole, inclusive numbers."""
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
            self.empty.append(
                f"`{path}` has no integer between its bounds {max(lows)} and {min(highs)}"
            )
        if multiple is not None and bounds:
            self.ignored.append(f"`{path}.multipleOf` is not enforced beside bounds")

    def _visit_array(self, node: dict[str, Any], path: str, depth: int) -> None:
        fewest, most = self._count(node, "minItems", path), self._count(node, "maxItems", path)
        if fewest is not None and most is not None and fewest > most:
            self.empty.append(f"`{path}.minItems` {fewest} is greater than `maxItems` {most}")
        if node.get("uniqueItems") and (most is None or most > 1):
            self.ignored.append(f"`{path}.uniqueItems` is ignored by the grammar")
        prefix = node.get("prefixItems", [])
        if isinstance(node.get("items"), list) or not isinstance(prefix, list):
            self.invalid.append(
                f"`{path}`: a tuple is written `prefixItems: [...]` with `items` as one schema"
            )
            return
        for index, item in enumerate(prefix):
            self.visit(item, f"{path}.prefixItems[{index}]", depth + 1)
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
            self.visit(node["items"], f"{path}.items", depth + 1)

    def _visit_object(self, node: dict[str, Any], path: str, depth: int) -> None:
        properties = node.get("properties", {})
        required = node.get("required", [])
        if not isinstance(properties, dict):
            self.invalid.append(f"`{path}.properties` must be an object")
            return
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self.invalid.append(f"`{path}.required` must be an array of strings")
            return
        if "unevaluatedProperties" in node:
            rest = node.pop("unevaluatedProperties")
            node.setdefault("additionalProperties", rest)
        by_pattern: list[str] = [
            name for name in ("patternProperties", "propertyNames") if name in node
        ]
        self._visit_key_patterns(
            node, by_pattern, path, depth, has_names=bool(properties or required)
        )
        if not properties and not by_pattern and "additionalProperties" not in node:
            node["additionalProperties"] = True  # nothing is said about members: any object
        extra = node.get("additionalProperties", self.is_open)
        if not by_pattern:
            self._add_required(node, properties, required, path)
        for name, member in list(properties.items()):
            if extra is not False and "\\" in json.dumps(name, ensure_ascii=False):
                self.ignored.append(
                    f"`{path}.properties` has the name {name!r:.50}, whose escapes the free names "
                    "of an open object may spell as well"
                )
            self.visit(member, f"{path}.properties.{name}", depth + 1)
            if member is False and name not in required:
                if extra is not False:
                    self.ignored.append(
                        f"`{path}.properties.{name}` forbids a name, which an open object cannot"
                    )
                del properties[name]
        if not isinstance(extra, bool):
            self.visit(extra, f"{path}.additionalProperties", depth + 1)
        fewest, most = (
            self._count(node, "minProperties", path),
            self._count(node, "maxProperties", path),
        )
        if fewest is not None and most is not None and fewest > most:
            self.empty.append(
                f"`{path}.minProperties` {fewest} is greater than `maxProperties` {most}"
            )
        if fewest is not None and fewest > 1 and (by_pattern or extra is not False):
            self.ignored.append(
                f"`{path}.minProperties` over 1 is not enforced where names are free, because a "
                "name may repeat"
            )

    def _visit_key_patterns(
        self, node: dict[str, Any], by_pattern: list[str], path: str, depth: int, *, has_names: bool
    ) -> None:
        if len(by_pattern) > 1 or (by_pattern and has_names):
            beside = "the other" if len(by_pattern) > 1 else "`properties` or `required`"
            self.ignored.append(f"`{path}.{by_pattern[0]}` is ignored beside {beside}")
        patterns = node.get("patternProperties", {})
        if not isinstance(patterns, dict):
            self.invalid.append(f"`{path}.patternProperties` must be an object")
            return
        if len(patterns) > 1:
            self.ignored.append(
                f"`{path}.patternProperties`: of several patterns only one is applied to a name"
            )
        for pattern, member in patterns.items():
            self.visit(member, f"{path}.patternProperties[{pattern!r:.40}]", depth + 1)
        names = node.get("propertyNames")
        if names is None:
            return
        if "patternProperties" not in node and node.get("additionalProperties", True) is not True:
            self.ignored.append(f"`{path}.additionalProperties` is ignored beside `propertyNames`")
        if isinstance(names, dict) and "pattern" in names and set(names) <= {"type", "pattern"}:
            names["type"] = "string"
        elif isinstance(names, dict) and set(names) <= {"type", "enum"} and names.get("enum"):
            self._visit_values(names, "enum", f"{path}.propertyNames")
        elif names is not True:
            self.ignored.append(
                f"`{path}.propertyNames` is enforced for a `pattern` or an `enum` alone"
            )

    def _add_required(
        self, node: dict[str, Any], properties: dict[str, Any], required: list[str], path: str
    ) -> None:
        """Declares required names that are no properties: xgrammar would drop them."""
        for name in required:
            if name in properties:
                if properties[name] is False:
                    self.empty.append(f"`{path}.properties.{name}` is required and forbidden")
                continue
            extra = node.get("additionalProperties", True)
            if extra is False:
                self.empty.append(
                    f"`{path}.required` names `{name}`, which the object does not admit"
                )
            else:
                properties[name] = copy.deepcopy(extra)
                node["properties"] = properties


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
    return name in kinds and isinstance(value, kinds[name])
