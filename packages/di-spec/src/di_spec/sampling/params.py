"""Sampling parameters of one request, checked once at admission."""

import math
import numbers
import operator
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from di_spec.errors import InvalidSamplingError

__all__ = ["SamplingParams", "seed_bits"]

_MAX_TOP_K = 2**31 - 1


def seed_bits(seed: int | None) -> int:
    """The 64-bit seed that a user's `seed` means.

    Args:
        seed: Any integer, taken modulo 2**64 as DeepInfer's `seq_seed`; None draws 64 fresh bits.

    Raises:
        TypeError: If `seed` is neither an integer nor None.
    """
    if seed is None:
        return secrets.randbits(64)
    if isinstance(seed, bool):
        raise TypeError(f"`seed` must be an integer or None: got {seed!r}")
    try:
        return operator.index(seed) % 2**64
    except TypeError:
        raise TypeError(f"`seed` must be an integer or None: got {seed!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn. Names follow vLLM where a meaning is the same.

    The order of the steps: allowed and banned tokens, `min_tokens`, `logit_bias`, repetition,
    frequency and presence penalty, `bad_words`, the grammar mask of the batch, temperature, top-k,
    top-p, min-p, draw.

    Attributes:
        temperature: Divides the logits; 0 takes the largest logit, lowest token id among equals,
            and uses no random number. A tiny positive value draws among equal maxima at random, as
            DeepInfer 0.1.0 does below 1e-5.
        top_k: Keep this many most likely tokens; -1 or 0 keeps all.
        top_p: Keep the shortest prefix of tokens, most likely first, whose mass exceeds this; in
            (0, 1], 1 keeps all. Masses are those before top-k: the two filters commute.
        min_p: Keep tokens at least this fraction as likely as the most likely one; in [0, 1].
        repetition_penalty: Divides positive and multiplies negative logits of tokens in the prompt
            or output; above 0, 1 does nothing.
        frequency_penalty: Subtracted from a logit once per occurrence in the output.
        presence_penalty: Subtracted from the logit of every token in the output.
        logit_bias: Token id to a finite number added to its logit.
        allowed_token_ids: If given, all other tokens are banned.
        banned_token_ids: Token ids that are never drawn.
        bad_words: Token id sequences of which the last id is banned whenever the output ends with
            the ids before it.
        min_tokens: `stop_token_ids` are banned until the output has this many tokens.
        stop_token_ids: The ids that `min_tokens` bans, end-of-sequence among them.
        seed: Any integer, taken modulo 2**64; None draws fresh bits, once, here.
        is_plain_greedy: Derived: temperature 0 and nothing that edits logits.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    has_penalties: bool = field(init=False, repr=False, compare=False)
    has_edits: bool = field(init=False, repr=False, compare=False)
    is_plain_greedy: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Checks every value and derives the flags.

        Raises:
            InvalidSamplingError: If values are out of range; lists all of them.
            TypeError: If `seed` is neither an integer nor None.
        """
        problems = [text for is_good, text in self._rules() if not is_good]
        if problems:
            raise InvalidSamplingError("; ".join(problems))
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        has_penalties = penalties != (1.0, 0.0, 0.0)
        has_edits = bool(
            has_penalties
            or self.logit_bias
            or self.allowed_token_ids is not None
            or len(self.banned_token_ids)
            or len(self.bad_words)
            or (self.min_tokens and len(self.stop_token_ids))
        )
        derive = object.__setattr__
        derive(self, "seed", seed_bits(self.seed))
        derive(self, "has_penalties", has_penalties)
        derive(self, "has_edits", has_edits)
        derive(self, "is_plain_greedy", self.temperature == 0 and not has_edits)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks that every token id named by these parameters is in the vocabulary.

        Raises:
            InvalidSamplingError: If any is not; names the field and the ids.
        """
        named = {
            "logit_bias": list(self.logit_bias),
            "allowed_token_ids": list(self.allowed_token_ids or ()),
            "banned_token_ids": list(self.banned_token_ids),
            "bad_words": [token_id for word in self.bad_words for token_id in word],
            "stop_token_ids": list(self.stop_token_ids),
        }
        problems = []
        for name, token_ids in named.items():
            outside = [t for t in token_ids if not (_is_int(t) and 0 <= t < vocab_size)]
            if outside:
                problems.append(
                    f"`{name}` must hold token ids from 0 to {vocab_size - 1}: got {outside[:5]}"
                )
        if problems:
            raise InvalidSamplingError("; ".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        def number(name: str, low: float, high: float, words: str) -> tuple[bool, str]:
            value = getattr(self, name)
            is_good = _is_real(value) and low <= value <= high
            return is_good, f"`{name}` must be {words}: got {value!r}"

        largest = 1e30
        smallest = 5e-324
        return [
            number("temperature", 0, largest, "a finite number of at least 0"),
            (
                _is_int(self.top_k) and -1 <= self.top_k <= _MAX_TOP_K,
                f"`top_k` must be -1 (keep all) or an integer of at least 1: got {self.top_k!r}",
            ),
            number("top_p", smallest, 1, "in (0, 1]"),
            number("min_p", 0, 1, "in [0, 1]"),
            number("repetition_penalty", smallest, largest, "a finite number above 0"),
            number("frequency_penalty", -largest, largest, "a finite number"),
            number("presence_penalty", -largest, largest, "a finite number"),
            (
                all(_is_real(bias) and abs(bias) <= largest for bias in self.logit_bias.values()),
                "`logit_bias` must map token ids to finite numbers (use `banned_token_ids` to "
                "forbid a token)",
            ),
            (
                self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                "`allowed_token_ids` must name at least one token, or be None to allow all",
            ),
            (all(len(word) for word in self.bad_words), "`bad_words` must not hold an empty word"),
            (
                _is_int(self.min_tokens) and self.min_tokens >= 0,
                f"`min_tokens` must be an integer of at least 0: got {self.min_tokens!r}",
            ),
        ]


def _is_real(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _is_int(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Integral)
