"""Turns the token ids of one completion into text, piece by piece, and finds its stop strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from di_engine.llm.sampling_params import SamplingParams
from di_engine.llm.stop_strings import StopMatch, StopStringFilter

__all__ = ["Detokenizer", "TextPiece", "TextStream", "TokenDecoder"]


class TokenDecoder(Protocol):
    """Decodes one completion; holds incomplete characters back."""

    def push(self, token_id: int) -> str:
        """Takes the next token and returns the characters that are now complete."""

    def finish(self) -> str:
        """Returns what is left; bytes that are no character read as U+FFFD."""


class Detokenizer(Protocol):
    """The part of a tokenizer that makes text; `di_engine.tokenizer.Tokenizer` is one."""

    def stream(self, skip_special_tokens: bool = True) -> TokenDecoder:
        """Returns a decoder for one completion."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Decodes whole token lists at once."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text released by one token, and the stop string that it completed, if any."""

    text: str
    stop: str | None = None


class TextStream:
    """Text of one completion: tokens in, text that may be shown out.

    Nothing that is part of a stop string is ever released, and no character in parts.
    """

    def __init__(self, detokenizer: Detokenizer | None, params: SamplingParams) -> None:
        """Opens the stream; without a detokenizer, or with `detokenize` off, all text is empty."""
        self._decoder = (
            detokenizer.stream(params.skip_special_tokens)
            if detokenizer is not None and params.detokenize
            else None
        )
        self._filter = StopStringFilter(
            params.stop_strings, include_stop=params.include_stop_str_in_output
        )
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(self, token_id: int) -> TextPiece:
        """Takes the next token of the completion's text."""
        self._num_tokens += 1
        if self._decoder is None:
            return TextPiece("")
        return self._pass_on(self._decoder.push(token_id))

    def finish(self) -> TextPiece:
        """Ends the text: releases what was held back, unless it completes a stop string."""
        if self._decoder is None:
            return TextPiece("")
        piece = self._pass_on(self._decoder.finish())
        if piece.stop is not None:
            return piece
        return TextPiece(piece.text + self._filter.flush())

    def _pass_on(self, text: str) -> TextPiece:
        result = self._filter.push(text, may_stop=self._num_tokens > self._min_tokens)
        if isinstance(result, StopMatch):
            return TextPiece(result.text, result.stop)
        return TextPiece(result)
