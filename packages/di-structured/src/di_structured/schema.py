"""What a request asks of its output: a grammar and when it begins."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from di_structured.errors import InvalidSchemaError
from di_structured.json_schema import canonical_text, lower
from di_structured.vocabulary import VocabularyView

__all__ = ["OutputSchema", "SchemaKind", "schema_from_so_args"]

SchemaKind = Literal["json_schema", "regex", "ebnf", "structural_tag"]

MAX_WHITESPACE = 16
MAX_REGEX_BYTES = 1 << 16
MAX_GRAMMAR_BYTES = 1 << 20
MAX_JSON_DEPTH = 500
SO_ARGS_KEYS = frozenset(("schema_type", "schema", "trigger_token_ids", "bound_token_id"))


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """A constraint on the output of one request: plain data, hashable, picklable.

    Make one with a class method; they refuse at once what no compile is needed to see. The output
    has up to three
    sections: reasoning, free until `reasoning_end_token_ids`; free text until `trigger_token_ids`;
        then the grammar.

    Attributes:
        kind: The language of `text`.
        text: The grammar's source in canonical form.
        max_whitespace: For JSON, the most whitespace characters between two elements; 0 for none at
            all.
        is_open: For JSON, whether objects admit names that their schema does not mention.
        strict: Whether a warning of the grammar engine about something it ignores is an error.
        warnings: What the grammar ignores; empty unless `strict` was off.
        trigger_token_ids: The grammar starts behind this sequence; empty for at once.
        bound_token_id: Once this token appears before the trigger is complete, the rest of the
            trigger is forced.
        reasoning_end_token_ids: The reasoning section ends behind this sequence; empty for no
            reasoning section.
    """

    kind: SchemaKind
    text: str
    max_whitespace: int = MAX_WHITESPACE
    is_open: bool = False
    strict: bool = True
    warnings: tuple[str, ...] = ()
    trigger_token_ids: tuple[int, ...] = ()
    bound_token_id: int | None = None
    reasoning_end_token_ids: tuple[int, ...] = ()

    @classmethod
    def json_schema(
        cls,
        schema: str | bytes | bool | Mapping[str, Any],
        *,
        strict: bool = True,
        max_whitespace: int = MAX_WHITESPACE,
        additional_properties: bool = False,
    ) -> "OutputSchema":
        """Constrains the output to JSON that a schema (draft 2020-12) accepts.

        Properties come in the schema's order. Patterns match the whole string. A name that an open
        object adds is told from a declared one by its spelling, so an escaped spelling of a
        declared name is not checked against it.

        Args:
            schema: The schema, decoded or as text.
            strict: Refuse keywords that the grammar would ignore; otherwise they are listed in
                `warnings`.
            max_whitespace: The most whitespace characters between two elements; 0 for compact JSON.
            additional_properties: What an object with `properties` and without
                `additionalProperties` means. JSON schema says open; here, as in DeepInfer 0.1.0 and
                xgrammar, it is closed unless this is set.

        Raises:
            InvalidSchemaError: The schema is malformed or would be ignored in part; all problems
                are listed.
            EmptyGrammarError: No value satisfies the schema.
        """
        decoded = _decode(schema) if isinstance(schema, (str, bytes)) else schema
        canonical_text(decoded)
        lowered = lower(decoded, strict=strict, is_open=additional_properties)
        return cls(
            "json_schema",
            canonical_text(lowered.schema),
            max_whitespace=_check_whitespace(max_whitespace),
            is_open=additional_properties,
            strict=strict,
            warnings=lowered.warnings,
        )

    @classmethod
    def json_object(cls, *, max_whitespace: int = MAX_WHITESPACE) -> "OutputSchema":
        """Constrains the output to any JSON object."""
        return cls.json_schema(
            {"type": "object"}, max_whitespace=max_whitespace, additional_properties=True
        )

    @classmethod
    def regex(cls, pattern: str, *, strict: bool = True) -> "OutputSchema":
        r"""Constrains the whole output to a regular expression.

        Args:
            pattern: ECMAScript syntax without look-around, back-references, flags and word
                boundaries; `^` and `$` at the ends mean nothing, because the whole output is
                matched.
            strict: Refuse what xgrammar only warns about, such as `^` in the middle or an unknown
                escape.

        Raises:
            InvalidSchemaError: The pattern is empty, holds NUL, or is longer than 65,536 bytes.
        """
        return cls(
            "regex", _check_text(pattern, "regular expression", MAX_REGEX_BYTES), strict=strict
        )

    @classmethod
    def ebnf(cls, grammar: str) -> "OutputSchema":
        """Constrains the output to an EBNF grammar (GBNF syntax) whose first rule is `root`.

        Args:
            grammar: The grammar. `Token(5)` stands for the token with id 5, special or not.

        Raises:
            InvalidSchemaError: The text is empty, holds NUL, or is longer than 1 MiB.
        """
        return cls("ebnf", _check_text(grammar, "grammar", MAX_GRAMMAR_BYTES))

    @classmethod
    def choice(cls, values: Sequence[str]) -> "OutputSchema":
        """Constrains the output to one of some texts.

        Raises:
            InvalidSchemaError: There is no value, or one is empty, no string, or holds NUL.
        """
        given: Any = values
        if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
            raise InvalidSchemaError(
                f"`choice` must be a non-empty list of strings, got {values!r:.100}"
            )
        items: list[Any] = list(given)
        for index, value in enumerate(items):
            if not isinstance(value, str) or not value:
                raise InvalidSchemaError(
                    f"`choice[{index}]` must be a non-empty string, got {value!r:.100}"
                )
        literals = " | ".join(f'"{_escape(value)}"' for value in dict.fromkeys(values))
        return cls("ebnf", _check_text(f"root ::= {literals}", "choice", MAX_GRAMMAR_BYTES))

    @classmethod
    def structural_tag(
        cls, tag: str | bytes | Mapping[str, Any], *, strict: bool = True
    ) -> "OutputSchema":
        """Constrains the output with an xgrammar structural tag: free text and constrained parts.

        JSON schemas inside (`{"type": "json_schema", "json_schema": ...}`) are checked like
        `json_schema`'s.

        Raises:
            InvalidSchemaError: The tag is no JSON object, or a schema inside cannot be enforced.
        """
        decoded = _decode(tag) if isinstance(tag, (str, bytes)) else tag
        if not isinstance(decoded, Mapping):
            raise InvalidSchemaError(
                f"a structural tag must be an object, got {type(decoded).__name__}"
            )
        if decoded.get("type") != "structural_tag":
            decoded = {"type": "structural_tag", "format": decoded}
        warnings: list[str] = []
        lowered = _lower_inside(json.loads(canonical_text(decoded)), "$", strict, warnings)
        return cls(
            "structural_tag", canonical_text(lowered), strict=strict, warnings=tuple(warnings)
        )

    @classmethod
    def tool_calls(
        cls,
        tools: Sequence[Mapping[str, Any]],
        *,
        choice: str = "auto",
        parallel: bool = True,
        block_is_open: bool = False,
        strict: bool = True,
    ) -> "OutputSchema":
        """Constrains the output to DeepSeek-V4.1's own tool-call syntax.

        Args:
            tools: OpenAI function tools (`{"type": "function", "function": {...}}`) or bare
                functions, each with `name` and an optional `parameters` schema.
            choice: `auto` for text with an optional block of calls, `none` for text alone,
                `required` for a block of calls, or the name of the one tool to call.
            parallel: Whether a block may hold more than one call.
            block_is_open: The prompt already ends with the opening of the block, as the model's
                prompts for required calls do; the output then begins with the first call.
            strict: Refuse parameter schemas that the grammar would ignore in part.

        Raises:
            InvalidSchemaError: A tool is malformed, twice there or missing, or its schema cannot be
                enforced.
        """
        from di_structured.tool_calls import tool_call_tag

        tag = tool_call_tag(tools, choice, parallel=parallel, block_is_open=block_is_open)
        return cls.structural_tag(tag, strict=strict)

    def with_trigger(
        self, token_ids: Iterable[int], bound_token_id: int | None = None
    ) -> "OutputSchema":
        """Returns this schema with free text until a token sequence.

        Args:
            token_ids: The trigger; empty for none.
            bound_token_id: The free text ends at this token too; what is missing of the trigger is
                then forced.

        Raises:
            InvalidSchemaError: An id is no non-negative integer, or there is a bound without a
                trigger.
        """
        trigger = _check_ids(token_ids, "trigger_token_ids")
        if bound_token_id is not None:
            _check_ids((bound_token_id,), "bound_token_id")
            if not trigger:
                raise InvalidSchemaError(
                    "`bound_token_id` needs `trigger_token_ids`, which are empty"
                )
        return replace(self, trigger_token_ids=trigger, bound_token_id=bound_token_id)

    def with_reasoning(self, end_token_ids: Iterable[int]) -> "OutputSchema":
        """Returns this schema with a reasoning section, free until a token sequence.

        The grammar (or the free text before a trigger) starts with the token behind the sequence;
        whitespace there is subject to the grammar. Leave it out when the prompt has closed the
        reasoning section already.

        Args:
            end_token_ids: The end marker, for V4.1 the id of `</think>`; empty for no reasoning
                section.

        Raises:
            InvalidSchemaError: An id is no non-negative integer.
        """
        return replace(self, reasoning_end_token_ids=_check_ids(end_token_ids, "end_token_ids"))

    @property
    def key(self) -> str:
        """What a compiled grammar depends on: the free sections are no part of it."""
        return json.dumps((self.kind, self.max_whitespace, self.is_open, self.strict, self.text))

    @property
    def view(self) -> VocabularyView:
        """The view of the vocabulary that the grammar is compiled for."""
        views: dict[SchemaKind, VocabularyView] = {"json_schema": "json", "structural_tag": "full"}
        return views.get(self.kind, "plain")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks the ids of the free sections.

        Raises:
            InvalidSchemaError: An id is outside the vocabulary, so that its section could never
                end.
        """
        bound = () if self.bound_token_id is None else (self.bound_token_id,)
        for name, ids in (
            ("trigger_token_ids", self.trigger_token_ids),
            ("bound_token_id", bound),
            ("reasoning_end_token_ids", self.reasoning_end_token_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidSchemaError(
                        f"`{name}` holds {token_id}, outside the vocabulary of {vocab_size} tokens"
                    )


def schema_from_so_args(so_args: Mapping[str, Any], *, strict: bool = True) -> OutputSchema:
    """Reads the `so_args` dictionary of DeepInfer 0.1.0's sampling parameters.

    Keys: `schema_type` (`json`, `regex` or `ebnf`), `schema` (text), and optionally
    `trigger_token_ids` and `bound_token_id`. As there, booleans are no integers, and `serialized`
    and `bound_token_ids` are refused.

    Raises:
        InvalidSchemaError: A key or value is not allowed.
    """
    if not isinstance(so_args, Mapping):
        raise InvalidSchemaError(f"`so_args` must be a dictionary, got {type(so_args).__name__}")
    if "bound_token_ids" in so_args:
        raise InvalidSchemaError("`so_args` has `bound_token_ids`; the name is `bound_token_id`")
    unknown = sorted(set(map(str, so_args)) - SO_ARGS_KEYS)
    if unknown:
        allowed = ", ".join(sorted(SO_ARGS_KEYS))
        raise InvalidSchemaError(
            f"`so_args` has unknown keys {', '.join(unknown)}; allowed are {allowed}"
        )
    kind, text = so_args.get("schema_type"), so_args.get("schema")
    if kind not in ("json", "regex", "ebnf"):
        raise InvalidSchemaError(
            f"unsupported grammar type {kind!r:.50}; allowed are json, regex, ebnf"
        )
    if not isinstance(text, str):
        raise InvalidSchemaError(f"`schema` must be a string, got {type(text).__name__}")
    if kind == "json":
        schema = OutputSchema.json_schema(text, strict=strict)
    elif kind == "regex":
        schema = OutputSchema.regex(text, strict=strict)
    else:
        schema = OutputSchema.ebnf(text)
    trigger = so_args.get("trigger_token_ids")
    if trigger is not None and not isinstance(trigger, (list, tuple)):
        raise InvalidSchemaError(
            f"`trigger_token_ids` must be a list, got {type(trigger).__name__}"
        )
    return schema.with_trigger(trigger or (), so_args.get("bound_token_id"))


def _decode(text: str | bytes) -> Any:
    """Decodes JSON, refusing what would be ambiguous or too deep to walk."""

    def refuse_constant(name: str) -> Any:
        raise InvalidSchemaError(f"the schema holds {name}, which is no JSON")

    def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidSchemaError(f"the schema has the member {twice!r:.50} twice in one object")
        return members

    if len(text) > MAX_GRAMMAR_BYTES:
        raise InvalidSchemaError(
            f"the schema has {len(text)} characters; the limit is {MAX_GRAMMAR_BYTES} bytes"
        )
    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_repeated)
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deeply to be read") from None
    except ValueError as error:
        if isinstance(error, InvalidSchemaError):
            raise
        raise InvalidSchemaError(f"the schema is not valid JSON: {error}") from None


def _lower_inside(node: Any, path: str, strict: bool, warnings: list[str], depth: int = 0) -> Any:
    """Lowers the JSON schemas inside a structural tag."""
    if depth > MAX_JSON_DEPTH:
        raise InvalidSchemaError(
            f"the structural tag is nested deeper than {MAX_JSON_DEPTH} levels"
        )
    if isinstance(node, list):
        return [
            _lower_inside(item, f"{path}[{i}]", strict, warnings, depth + 1)
            for i, item in enumerate(node)
        ]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "json_schema" and "json_schema" in node:
        is_raw = node.get("style", "json") != "json"
        lowered = lower(
            node["json_schema"],
            strict=strict,
            path=f"{path}.json_schema",
            inside_tag=True,
            is_raw=is_raw,
        )
        warnings.extend(lowered.warnings)
        return {"max_whitespace_cnt": MAX_WHITESPACE, **node, "json_schema": lowered.schema}
    return {
        name: _lower_inside(item, f"{path}.{name}", strict, warnings, depth + 1)
        for name, item in node.items()
    }


def _check_text(given: Any, what: str, limit: int) -> str:
    text = given if isinstance(given, str) else ""
    if not text:
        raise InvalidSchemaError(f"the {what} must be a non-empty string, got {given!r:.50}")
    if "\0" in text:
        raise InvalidSchemaError(f"the {what} holds a NUL character")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise InvalidSchemaError(f"the {what} has {size} bytes; the limit is {limit}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(f"the {what} is not valid Unicode: {error.reason}") from None
    return text


def _check_whitespace(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 1024:
        raise InvalidSchemaError(
            f"`max_whitespace` must be an integer from 0 to 1024, got {count!r:.50}"
        )
    return count


def _check_ids(token_ids: Any, name: str) -> tuple[int, ...]:
    ids = tuple(token_ids) if isinstance(token_ids, Iterable) else (token_ids,)
    for token_id in ids:
        if type(token_id) is not int or token_id < 0:
            raise InvalidSchemaError(
                f"`{name}` must hold non-negative integers, got {token_id!r:.50}"
            )
    return ids


def _escape(text: str) -> str:
    """Writes a text for the inside of an EBNF literal."""
    return "".join(
        char
        if char.isascii() and char.isprintable() and char not in '"\\'
        else f"\\U{ord(char):08x}"
        for char in text
    )
