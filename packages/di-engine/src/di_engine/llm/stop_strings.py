"""Finds stop strings in text that arrives in pieces, without ever letting a part of one out.

The string whose last character comes first wins; among strings that end at the same character, the
one that starts first. That rule looks at characters only, so how the text was cut into tokens does
not change the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["StopMatch", "StopStringFilter"]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was found.

    Attributes:
        stop: The string.
        text: Text released by the call that found it: up to the string, or through it.
    """

    stop: str
    text: str


class StopStringFilter:
    """Passes text through until a stop string is complete.

    What may still become a stop string is held back: the longest end of the text that begins one.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Prepares the search.

        Args:
            stops: Non-empty strings; none makes `push` pass everything on.
            include_stop: Whether the string itself belongs to the released text.
        """
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._seen = ""

    def push(self, text: str, *, may_stop: bool = True) -> str | StopMatch:
        """Takes the next piece of text.

        Args:
            text: Whole characters.
            may_stop: False while `min_tokens` is not reached: a string that is completed by this
                piece is let through as ordinary text.

        Returns:
            The text that may be shown, or the match that ends the request. After a match the
            filter must not be used again.
        """
        if not self._stops:
            return text
        # A match must end inside the new piece: everything before was searched already.
        window = self._seen + text
        if may_stop and (match := self._first_match(window, len(self._seen))) is not None:
            begin, end, stop = match
            offset = len(window) - len(text) - len(self._held)
            cut = end if self._include_stop else begin
            return StopMatch(stop, window[offset:cut])
        self._seen = window[max(0, len(window) - self._longest + 1) :]
        pending = self._held + text
        self._held = pending[len(pending) - self._held_len(pending) :]
        return pending[: len(pending) - len(self._held)]

    def flush(self) -> str:
        """Releases what was held back; called when the text has ended without a match."""
        held, self._held, self._seen = self._held, "", ""
        return held

    def _first_match(self, window: str, searched: int) -> tuple[int, int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = window.find(stop, max(0, searched - len(stop) + 1))
            if begin < 0:
                continue
            end = begin + len(stop)
            if best is None or (end, begin) < (best[1], best[0]):
                best = (begin, end, stop)
        return best

    def _held_len(self, pending: str) -> int:
        for length in range(min(self._longest - 1, len(pending)), 0, -1):
            end = pending[len(pending) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
