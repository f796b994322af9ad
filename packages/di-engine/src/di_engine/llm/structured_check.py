"""One batch with every kind of constraint, each output validated by something else than a grammar.

What `di generate --check-structured` runs: whether grammars, masks and sampling fit together on
this model and machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from di_engine.llm.llm import LLM
from di_engine.llm.output_schema import import_structured
from di_engine.llm.outputs import RequestOutput
from di_engine.llm.sampling_params import SamplingParams

__all__ = ["CheckedOutput", "check_structured"]

_PATTERN = "[A-F]{2}-[0-9]{3,6}"
_SUM = 'root ::= number (" + " number){1,3}\nnumber ::= [1-9] [0-9]{0,2}'
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
}
_MAX_TOKENS = 160


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """One request of the check.

    Attributes:
        kind: `regex`, `json`, `ebnf` or `free`.
        text: What was generated.
        problem: What is wrong with it; None if nothing is.
    """

    kind: str
    text: str
    problem: str | None


def check_structured(llm: LLM, prompts: list[str], params: dict[str, Any]) -> list[CheckedOutput]:
    """Generates for each prompt a regex, a JSON, an EBNF and a free output, all in one batch.

    Args:
        llm: The engine.
        prompts: What to continue.
        params: Fields of `SamplingParams` for all requests; `max_tokens` is at least what the
            constrained texts may take.

    Raises:
        UnsupportedEnvironmentError: If `di-structured` is not installed.
    """
    values = {
        **params,
        "n": 1,
        "max_tokens": max(_MAX_TOKENS, params.get("max_tokens") or 0),
        "skip_special_tokens": True,
    }
    structured = import_structured()
    schemas = {
        "regex": structured.OutputSchema.regex(_PATTERN),
        "json": structured.OutputSchema.json_schema(_PERSON, max_whitespace=1),
        "ebnf": structured.OutputSchema.ebnf(_SUM),
        "free": None,
    }
    cases = [(prompt, kind) for prompt in prompts for kind in schemas]
    outputs = llm.generate(
        [prompt for prompt, _ in cases],
        [SamplingParams.from_dict(values | {"output_schema": schemas[kind]}) for _, kind in cases],
    )
    return [
        CheckedOutput(kind, _text(output), _problem(kind, output))
        for (_, kind), output in zip(cases, outputs, strict=True)
    ]


def _text(output: RequestOutput) -> str:
    return output.outputs[0].text if output.outputs else ""


def _problem(kind: str, output: RequestOutput) -> str | None:
    if output.error is not None:
        return output.error.message
    completion = output.outputs[0]
    if kind == "free":
        return None if completion.token_ids else "no token was generated"
    if completion.finish_reason != "stop":
        return f"the text did not end by itself: {completion.finish_reason}"
    return _VALIDATORS[kind](completion.text)


def _regex_problem(text: str) -> str | None:
    return None if re.fullmatch(_PATTERN, text) else f"does not match {_PATTERN}"


def _sum_problem(text: str) -> str | None:
    numbers = text.split(" + ")
    is_sum = 2 <= len(numbers) <= 4 and all(re.fullmatch("[1-9][0-9]{0,2}", n) for n in numbers)
    return None if is_sum else "is no sum of two to four numbers"


def _person_problem(text: str) -> str | None:
    try:
        person = json.loads(text)
    except ValueError as error:
        return f"is not JSON: {error}"
    is_valid = (
        isinstance(person, dict)
        and list(person) == ["name", "age", "tags"]
        and isinstance(person["name"], str)
        and len(person["name"]) <= 10
        and type(person["age"]) is int
        and 0 <= person["age"] <= 150
        and isinstance(person["tags"], list)
        and len(person["tags"]) <= 2
        and all(tag in ("a", "b", None) for tag in person["tags"])
    )
    return None if is_valid else "does not fit the schema"


_VALIDATORS: dict[str, Callable[[str], str | None]] = {
    "regex": _regex_problem,
    "json": _person_problem,
    "ebnf": _sum_problem,
}
