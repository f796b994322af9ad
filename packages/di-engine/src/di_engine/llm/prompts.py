"""Prompts in every accepted form, brought to token ids one by one."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from di_engine.errors import InvalidRequestError

__all__ = ["Encoder", "PreparedPrompt", "Prompt", "prepare_prompt", "split_prompts"]

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids (a list, or a one-dimensional integer array or tensor), or a mapping with
`prompt` or `prompt_token_ids`."""


class Encoder(Protocol):
    """The part of a tokenizer that prompts need; `di_engine.tokenizer.Tokenizer` is one."""

    @property
    def bos_token_id(self) -> int:
        """Token id that begins every text."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as token ids, and its text if it was given as text."""

    text: str | None
    token_ids: list[int]


def split_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Any]:
    """Tells one prompt from a batch.

    A string, a mapping, a list of plain numbers and a one-dimensional array are one prompt; any
    other sequence is a batch. Members are not judged here: each fails, or not, on its own.
    """
    if isinstance(prompts, str | bytes | Mapping):
        return [prompts]
    ndim = getattr(prompts, "ndim", None)
    if ndim is not None:
        return [prompts] if ndim < 2 else list(prompts)
    try:
        members = list(prompts)
    except TypeError:
        return [prompts]
    if members and all(_is_number(member) for member in members):
        return [members]
    return members


def prepare_prompt(prompt: Any, encoder: Encoder | None, vocab_size: int) -> PreparedPrompt:
    """Encodes and checks one prompt.

    Text gets the begin-of-sequence token in front unless it brings its own (the release's text
    encoding does so: DeepInfer 0.1.0 `tokenizer` policy). Token ids are taken as they are.

    Args:
        prompt: One prompt in any form of `Prompt`.
        encoder: Makes token ids of text; None if the model has no tokenizer.
        vocab_size: Token ids must be below this.

    Raises:
        InvalidRequestError: If the prompt is empty, of a wrong type, or holds impossible ids.
    """
    if isinstance(prompt, Mapping):
        prompt = _from_mapping(prompt)
    if isinstance(prompt, str):
        return PreparedPrompt(prompt, _encode(prompt, encoder))
    token_ids = _to_ids(prompt)
    if not token_ids:
        raise InvalidRequestError(
            "the prompt is empty: give at least one token id", param="prompt_token_ids"
        )
    bad = [(i, t) for i, t in enumerate(token_ids) if not 0 <= t < vocab_size]
    if bad:
        position, token_id = bad[0]
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise InvalidRequestError(
            f"token id {token_id} at position {position}{more} is outside the vocabulary: "
            f"0 to {vocab_size - 1} are allowed",
            param="prompt_token_ids",
        )
    return PreparedPrompt(None, token_ids)


def _from_mapping(prompt: Mapping[str, Any]) -> Any:
    known = ("prompt", "prompt_token_ids")
    unknown = [str(key) for key in prompt if key not in known]
    given = [key for key in known if prompt.get(key) is not None]
    if unknown or len(given) != 1:
        raise InvalidRequestError(
            "a prompt mapping holds either `prompt` (text) or `prompt_token_ids`: got "
            f"{', '.join(f'`{key}`' for key in prompt) or 'nothing'}",
            param=unknown[0] if unknown else "prompt",
        )
    value = prompt[given[0]]
    if (given[0] == "prompt") != isinstance(value, str):
        expected = "text" if given[0] == "prompt" else "token ids"
        raise InvalidRequestError(
            f"`{given[0]}` must be {expected}: got {type(value).__name__}", param=given[0]
        )
    return value


def _encode(text: str, encoder: Encoder | None) -> list[int]:
    if not text:
        raise InvalidRequestError(
            "the prompt is empty: give at least one character", param="prompt"
        )
    if encoder is None:
        raise InvalidRequestError(
            "a text prompt needs a tokenizer and this model has none: give token ids",
            param="prompt",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the prompt is not valid Unicode: lone surrogate at character {error.start}",
            param="prompt",
        ) from None
    token_ids = encoder.encode(text)
    if token_ids[:1] != [encoder.bos_token_id]:
        token_ids = [encoder.bos_token_id, *token_ids]
    return token_ids


def _to_ids(prompt: Any) -> list[int]:
    ndim = getattr(prompt, "ndim", 1)
    if isinstance(prompt, bytes) or not hasattr(prompt, "__iter__") or ndim != 1:
        what = type(prompt).__name__ if ndim == 1 else f"an array of {ndim} dimensions"
        raise InvalidRequestError(
            f"a prompt is text or a list of token ids: got {what}", param="prompt"
        )
    values = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    token_ids = []
    for position, value in enumerate(values):
        try:
            if isinstance(value, bool):
                raise TypeError
            token_ids.append(operator.index(value))
        except TypeError:
            raise InvalidRequestError(
                f"token ids must be integers: got {value!r} ({type(value).__name__}) at position "
                f"{position}",
                param="prompt_token_ids",
            ) from None
    return token_ids


def _is_number(value: object) -> bool:
    if isinstance(value, int | float):
        return True
    return hasattr(value, "dtype") and getattr(value, "ndim", None) == 0
