"""What a caller may ask of the sampler and of the stop rules, for one request.

The names are those of vLLM's `SamplingParams` where the meaning is the same. An object may hold any
values: they are judged when a request is submitted, so that one bad request among many comes back
as one output with an error, at its own index, and harms no other.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from di_engine.errors import InvalidRequestError
from di_engine.llm.output_schema import is_output_schema

if TYPE_CHECKING:
    from di_structured import OutputSchema

__all__ = ["MAX_LOGPROBS", "LogprobsMode", "SamplingParams", "as_ids"]

LogprobsMode = Literal["raw", "processed"]

MAX_LOGPROBS = 1000
"""Most alternatives per position; the limit of DeepInfer 0.1.0 `sampling_params.py`."""

_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    Attributes:
        n: Number of completions to generate for the prompt.
        temperature: Divides the logits; 0 takes the most likely token (lowest id among equals).
        top_p: Keep the shortest prefix of tokens, most likely first, whose mass exceeds this;
            in (0, 1], 1 keeps all.
        top_k: Keep this many most likely tokens; -1 or 0 keeps all.
        min_p: Keep tokens at least this fraction as likely as the most likely one; in [0, 1].
        presence_penalty: Subtracted from the logit of every token generated before; in [-2, 2].
        frequency_penalty: Subtracted once per earlier occurrence in the output; in [-2, 2].
        repetition_penalty: Divides positive and multiplies negative logits of tokens in the prompt
            or output; above 0, 1 does nothing.
        logit_bias: Token id to a number added to its logit.
        allowed_token_ids: The only token ids that may be generated; None allows all.
        banned_token_ids: Token ids that are never generated.
        seed: Seed of the counter-based noise, any integer, taken modulo 2**64. The same seed gives
            the same tokens whatever else runs. None takes a seed of its own, made from the
            engine's `seed` and the request's number. Completion `i` of `n` uses `seed + i`.
        max_tokens: Most tokens to generate, at least 1.
        min_tokens: Until this many tokens exist, end-of-sequence and `stop_token_ids` are not
            generated, and a `stop` string does not end the request.
        stop: String or strings that end the request once they appear in the text, also across
            tokens. The string that is complete first wins. Neither it nor a part of it is ever
            returned, unless `include_stop_str_in_output`.
        stop_token_ids: Token ids that end the request. The id is the last of `token_ids`; its text
            is returned only with `include_stop_str_in_output`.
        include_stop_str_in_output: Return the text of the stop string or stop token as well.
        ignore_eos: Go on after end-of-sequence.
        logprobs: Return the log-probability of each generated token and of this many most likely
            alternatives; None returns none, 0 the token's own.
        prompt_logprobs: The same for every prompt token but the first.
        logprobs_mode: `raw` is the log-softmax of the model's logits; `processed` comes after bias,
            penalties, temperature and the top filters, as the token was drawn.
        skip_special_tokens: Leave special tokens out of the text.
        detokenize: Make text. Must be true for `stop`.
        output_schema: What the output must obey: a `di_structured.OutputSchema`, or a mapping as
            DeepInfer 0.1.0's `so_args` (`schema_type` `json`, `regex` or `ebnf`, and `schema`).
            The text may end, by end-of-sequence or a stop token, exactly when it is complete; one
            that is cut by `max_tokens` or a `stop` string is the beginning of a valid one. With
            `ignore_eos`, what follows the end is free. None for no constraint.
        priority: Requests with a lower number start first, and are the last to lose their cache
            blocks; see `scheduler.priority_aging`.
        cache_salt: Cached prefixes are shared among requests of the same salt.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] | None = None
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    skip_special_tokens: bool = True
    detokenize: bool = True
    output_schema: OutputSchema | Mapping[str, Any] | None = None
    priority: int = 0
    cache_salt: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Builds parameters from a mapping such as a JSON object.

        Raises:
            InvalidRequestError: If a key is not a field; names each such key and the nearest field.
        """
        known = [field.name for field in fields(cls)]
        unknown = [key for key in values if key not in known]
        if unknown:
            raise InvalidRequestError(
                "; ".join(_unknown_field(str(key), known) for key in unknown), param=str(unknown[0])
            )
        return cls(**values)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def problems(self, vocab_size: int | None = None) -> list[tuple[str, str]]:
        """Everything that is wrong with these values, as (field, message).

        Args:
            vocab_size: Token ids must be below this; None leaves that unchecked.
        """
        found: list[tuple[str, str]] = []
        for name, (describe, accepts) in _RULES.items():
            value = getattr(self, name)
            if not accepts(value):
                found.append((name, f"`{name}` must be {describe}: got {value!r}"))
        if not found:
            found += self._contradictions()
            if vocab_size is not None:
                found += self._ids_outside(vocab_size)
        return found

    def validate(self, vocab_size: int | None = None) -> None:
        """Raises one error that lists every problem.

        Raises:
            InvalidRequestError: If any value is out of range; `param` is the first such field.
        """
        found = self.problems(vocab_size)
        if found:
            raise InvalidRequestError("; ".join(text for _, text in found), param=found[0][0])

    def _contradictions(self) -> list[tuple[str, str]]:
        found = []
        if self.min_tokens > self.max_tokens:
            found.append(
                (
                    "min_tokens",
                    f"`min_tokens` must not exceed `max_tokens`: got {self.min_tokens} and "
                    f"{self.max_tokens}",
                )
            )
        if self.min_tokens and self.output_schema is not None:
            found.append(
                (
                    "min_tokens",
                    "`min_tokens` and `output_schema` exclude each other, because a complete text "
                    "has no other continuation than its end: leave one out, or ask for more text "
                    "in the schema",
                )
            )
        if self.stop_strings and not self.detokenize:
            found.append(
                (
                    "stop",
                    "`stop` strings need text: set `detokenize=True`, or use `stop_token_ids`",
                )
            )
        return found

    def _ids_outside(self, vocab_size: int) -> list[tuple[str, str]]:
        found = []
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
            bad = [i for i in as_ids(getattr(self, name)) if not 0 <= i < vocab_size]
            if bad:
                found.append(
                    (
                        name,
                        f"`{name}` holds token ids outside the vocabulary of {vocab_size}: "
                        f"{', '.join(map(str, bad[:5]))}{' ...' if len(bad) > 5 else ''}",
                    )
                )
        banned = set(as_ids(self.banned_token_ids))
        allowed = self.allowed_token_ids
        choices = range(vocab_size) if allowed is None else as_ids(allowed)
        if not found and not any(token_id not in banned for token_id in choices):
            found.append(
                ("banned_token_ids", "`banned_token_ids` leaves no token that may be generated")
            )
        return found


def as_ids(values: Iterable[int] | None) -> tuple[int, ...]:
    """Token ids, possibly an array, as plain integers; none for None."""
    return () if values is None else tuple(int(value) for value in values)


def _unknown_field(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean `{near[0]}`" if near else f"; known are {', '.join(known)}"
    return f"`{key}` is not a sampling parameter{hint}"


def _is_int(value: object) -> bool:
    """Accepts what counts exactly, also a numpy integer, but no bool and no float."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]  # the call is the question
    except TypeError:
        return False
    return True


def _int_in(low: int, high: int = _MAX_COUNT) -> Callable[[Any], bool]:
    return lambda value: _is_int(value) and low <= int(value) <= high


def _optional(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


def _is_real(value: object) -> bool:
    if isinstance(value, bool | str | bytes):
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]  # the call is the question
    except (TypeError, OverflowError):
        return False


def _real(accepts: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_real(value) and accepts(float(value))


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _are_ids(value: object) -> bool:
    """Accepts a list, tuple, set or one-dimensional array of whole numbers."""
    if isinstance(value, str | bytes | Mapping):
        return False
    try:
        return all(_is_int(item) for item in value)  # type: ignore[attr-defined]
    except TypeError:
        return False


def _are_stops(value: object) -> bool:
    if isinstance(value, str):
        return value != ""
    return isinstance(value, list | tuple) and all(isinstance(s, str) and s for s in value)


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_int(key) and _is_real(bias) for key, bias in value.items()
    )


_Rule = tuple[str, Callable[[Any], bool]]
_ONE_TO_MAX: _Rule = ("a whole number from 1 to 2147483647", _int_in(1))
_PENALTY: _Rule = ("a number from -2 to 2", _real(lambda x: -2 <= x <= 2))
_LOGPROBS: _Rule = (
    f"None or a whole number from 0 to {MAX_LOGPROBS}",
    _optional(_int_in(0, MAX_LOGPROBS)),
)
_BOOL: _Rule = ("True or False", _is_bool)
_IDS: _Rule = ("None or a list of token ids", _optional(_are_ids))

_RULES: dict[str, _Rule] = {
    "n": ("a whole number from 1 to 1024", _int_in(1, 1024)),
    "temperature": ("a finite number, 0 or more", _real(lambda x: x >= 0)),
    "top_p": ("a number above 0 and at most 1", _real(lambda x: 0 < x <= 1)),
    "top_k": ("-1 or 0 (all tokens) or a whole number from 1 to 2147483647", _int_in(-1)),
    "min_p": ("a number from 0 to 1", _real(lambda x: 0 <= x <= 1)),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": ("a finite number above 0", _real(lambda x: x > 0)),
    "logit_bias": ("None or a mapping from token id to a finite number", _optional(_is_bias)),
    "allowed_token_ids": (
        "None or a list of one token id or more",
        _optional(lambda value: _are_ids(value) and len(value) > 0),
    ),
    "banned_token_ids": _IDS,
    "seed": ("None or an integer", _optional(_is_int)),
    "max_tokens": _ONE_TO_MAX,
    "min_tokens": ("a whole number from 0 to 2147483647", _int_in(0)),
    "stop": ("None, a non-empty string or a list of such", _optional(_are_stops)),
    "stop_token_ids": _IDS,
    "include_stop_str_in_output": _BOOL,
    "ignore_eos": _BOOL,
    "logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "logprobs_mode": ("'raw' or 'processed'", lambda value: value in ("raw", "processed")),
    "skip_special_tokens": _BOOL,
    "detokenize": _BOOL,
    "output_schema": (
        "None, a `di_structured.OutputSchema` or a mapping with `schema_type` and `schema`",
        _optional(is_output_schema),
    ),
    "priority": ("a whole number from -2147483648 to 2147483647", _int_in(-_MAX_COUNT - 1)),
    "cache_salt": ("a string", lambda value: isinstance(value, str)),
}
