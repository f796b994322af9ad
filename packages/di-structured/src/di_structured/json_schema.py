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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from di_structured.disjoint import may_overlap
from di_structured.errors import EmptyGrammarError, InvalidSchemaError
from di_structured.json_containers import lower_array, lower_object
from di_structured.json_pattern import escape_for_json
from di_structured.json_scalars import (
    Findings,
    are_types,
    lower_number,
    lower_string,
    lower_values,
)

__all__ = ["LoweredSchema", "canonical_text", "lower"]

MAX_DEPTH = 200
MAX_SCHEMA_BYTES = 1 << 20

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
    walk.check_shared()
    found = walk.found
    if found.empty and not found.invalid:
        raise EmptyGrammarError(f"no value satisfies the schema: {found.empty[0]}", found.empty)
    problems = [*found.invalid, *found.empty, *(found.ignored if strict else ())]
    if problems:
        hint = (
            " (`strict=False` accepts the schema without them)" if strict and found.ignored else ""
        )
        raise InvalidSchemaError(
            "the JSON schema cannot be enforced: " + "; ".join(problems) + hint, problems
        )
    return LoweredSchema(document, tuple(found.ignored))


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
    nesting: int = 0
    found: Findings = field(default_factory=Findings)
    seen: dict[int, int] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    has_escapes: bool = False

    def visit(self, node: Any, path: str, depth: int) -> None:
        if isinstance(node, bool):
            return
        if not isinstance(node, dict):
            self.found.invalid.append(
                f"`{path}` must be an object or a boolean, got {type(node).__name__}"
            )
            return
        role = min(self.nesting, 2) if self.raw_depth >= 0 else 2
        if id(node) in self.seen:
            if self.seen[id(node)] != role:
                self.shared.append(path)
            return
        self.seen[id(node)] = role
        if depth > MAX_DEPTH:
            self.found.invalid.append(f"`{path[:80]}...` is nested deeper than {MAX_DEPTH} levels")
            return
        self._check_names(node, path, is_root=depth == 0)
        head = next((name for name in HEADS if name in node), None)
        if head is None:
            self._visit_typed(node, path, depth)
            return
        if head in ("anyOf", "oneOf") and "type" in node:
            self._push_type_down(node, head, path)
        if head in ("const", "enum"):
            lower_values(node, head, path, self.found)
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
                self.found.ignored.append(f"{place} is ignored by the grammar")
            elif name == "nullable":
                if node[name]:
                    self.found.ignored.append(
                        f"{place} is ignored by the grammar; add the type `null` instead"
                    )
            elif name == "$id":
                if not is_root:
                    self.found.ignored.append(f"{place} below the root is ignored by the grammar")
            elif name not in known and name not in ANNOTATIONS and not name.startswith("x-"):
                self.found.ignored.append(f"{place} is no keyword that is known here")

    def _check_beside(self, node: dict[str, Any], head: str, path: str) -> None:
        for names in (("type", *HEADS), *KEYWORDS_OF_TYPE.values()):
            for name in names:
                if name in node and name != head:
                    self.found.ignored.append(f"`{path}.{name}` is ignored beside `{head}`")

    # --- references and combinations

    def _visit_reference(self, reference: Any, path: str, depth: int) -> None:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            self.found.invalid.append(
                f"`{path}.$ref` must point into this schema (`#/...`), got {reference!r:.100}"
            )
            return
        if "/oneOf/" in reference:
            self.found.invalid.append(
                f"`{path}.$ref` points into a `oneOf`; move the schema to `$defs`"
            )
            return
        target: Any = self.document
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                self.found.invalid.append(f"`{path}.$ref` points at nothing: {reference!r:.100}")
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
            self.found.empty.append(f"`{path}.{head}` has no branch of the type beside it")
        elif all(kept):
            for branch, names in zip(branches, kept, strict=True):
                branch["type"] = names
            del node["type"]

    def _visit_branches(self, node: dict[str, Any], head: str, path: str, depth: int) -> None:
        branches = node[head]
        if not isinstance(branches, list) or not branches:
            self.found.invalid.append(f"`{path}.{head}` must be a non-empty array")
            return
        if head == "allOf" and len(branches) > 1:
            self.found.ignored.append(
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
                    self.found.ignored.append(
                        f"`{path}.oneOf[{first}]` and `[{second}]` may both match one value, which "
                        "the grammar cannot rule out; use `anyOf`, or a property with different "
                        "`const` values"
                    )

    # --- typed schemas

    def _visit_typed(self, node: dict[str, Any], path: str, depth: int) -> None:
        types = self._types(node, path)
        if "string" in types:
            lower_string(
                node,
                path,
                self.found,
                is_only_type=len(types) == 1,
                lengths_as_pattern=self.inside_tag and depth != self.raw_depth,
            )
            if isinstance(node.get("pattern"), str):
                node["pattern"] = self._escape_pattern(node["pattern"], self.nesting)
        if "integer" in types or "number" in types:
            lower_number(node, types, path, self.found)

        def visit(member: Any, member_path: str) -> None:
            self.nesting += 1
            self.visit(member, member_path, depth + 1)
            self.nesting -= 1

        if "array" in types:
            lower_array(node, path, self.found, visit)
        if "object" in types:
            lower_object(node, path, self.found, visit, is_open=self.is_open)
            patterns = node.get("patternProperties")
            if isinstance(patterns, dict):
                node["patternProperties"] = {
                    self._escape_pattern(pattern, self.nesting + 1): member
                    for pattern, member in patterns.items()
                }

    def _escape_pattern(self, pattern: str, nesting: int) -> str:
        """Rewrites the pattern of a string or name, unless it is written as raw text."""
        escaped = escape_for_json(pattern)
        self.has_escapes |= escaped != pattern
        return pattern if self.raw_depth >= 0 and nesting == 1 else escaped

    def check_shared(self) -> None:
        """Reports schemas of raw text and of JSON at once, where a pattern would need two forms."""
        if self.has_escapes:
            self.found.ignored += [
                f"`{path}` is used inside JSON and as raw text, where patterns with quotes, "
                "backslashes or control characters differ; write the schema twice"
                for path in self.shared
            ]

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
        if not are_types(types, path, self.found):
            return []
        if "number" in types and "integer" in types:
            types = [name for name in types if name != "integer"]
            node["type"] = types if len(types) > 1 else types[0]
        return types
