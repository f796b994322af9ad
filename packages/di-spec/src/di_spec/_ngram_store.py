"""Texts of a batch of requests, each with a hash table of its n-grams, in two arrays for all.

A table holds the place after the first occurrence of each n-gram of each length. It has lines of 8
entries, filled from the left; a full line hands on to the next one. An entry holds 26 bits of the
hash, the length of the n-gram and the place after it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec._ngrams import HEAD, MAX_N, MULTIPLIERS, first_occurrences
from di_spec._segments import Segments

__all__ = [
    "HASH_BITS",
    "LENGTH_SHIFT",
    "LINE",
    "MASK",
    "MATCH_END",
    "MATCH_LENGTH",
    "NUM_LINES",
    "PLACE_BITS",
    "SIZE",
    "TABLE",
    "TEXT",
    "WAITING",
    "NgramStore",
]

LINE = 8
"""Entries of a line of a table."""

HASH_BITS = 0x3FFFFFF << 37
LENGTH_SHIFT = 32
PLACE_BITS = 2**32 - 1
"""What an entry is made of."""

MIN_ROOM = 64
"""Most tokens that `_reserve` makes room for."""

SIZE, MATCH_END, MATCH_LENGTH, WAITING, _LIMIT, MASK, TEXT, CAPACITY, TABLE, NUM_LINES = range(10)
"""Columns of the state, which has a row for each text; sizes and places count the head.

The place after the match and its length, 0 without a match; the place from which on n-grams that
end there wait to be entered; the size that the text may reach before `_reserve`; the number of
lines of the table less one; and where the text and the table lie.
"""

_FILL_AT_FIRST, _FILL_AT_MOST = 2, 4
"""Entries of a line, on average over a table; lines of 8 are rarely full then."""

_MIN_LINES = 64

_MARGIN = MAX_N + 1
"""Elements after a text that may be read or written but hold nothing."""


class NgramStore:
    """Texts with tables of their n-grams.

    Args:
        min_n: Length of the shortest n-grams, at least 1.
        max_n: Length of the longest n-grams, at most 16.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        self.min_n, self.max_n = min_n, max_n
        self._state = np.zeros((8, 10), np.int64)
        self._cells = _rows_of(self._state)
        self._texts = Segments(np.int64, 1, self._state[:, TEXT : CAPACITY + 1])
        self._tables = Segments(np.int64, LINE, self._state[:, TABLE : NUM_LINES + 1])
        self._free_rows: list[int] = []
        self._num_rows = 0
        self._room = 0  # tokens that every text can take without a look at its memory
        self._back = -1 - np.arange(max_n)[:, None]
        self._multipliers = MULTIPLIERS[:max_n, None].copy()
        self._lengths = np.arange(min_n, max_n + 1)

    def add(self, token_ids: Sequence[int] | NDArray[np.integer]) -> int:
        """Adds a text and looks up its end.

        Args:
            token_ids: Tokens, ids from 0 to 2**31 - 1.

        Returns:
            The row of the text, for the other methods.
        """
        text = np.concatenate([np.full(MAX_N, HEAD, np.int64), np.asarray(token_ids, np.int64)])
        row = self._free_rows.pop() if self._free_rows else self._new_row()
        self._write(row, text)
        self._index(row)
        return row

    def remove(self, row: int) -> None:
        """Removes a text; its row will be used again."""
        self._texts.release(row)
        self._tables.release(row)
        self._free_rows.append(row)

    def truncate(self, row: int, num_tokens: int) -> None:
        """Cuts a text to its first tokens and looks up its end; costs as much as `add`."""
        size = MAX_N + min(max(num_tokens, 0), self.num_tokens(row))
        start = self._cells[row][TEXT]
        self._write(row, self._texts.data[start : start + size].copy())
        self._index(row)

    def num_tokens(self, row: int) -> int:
        """Length of a text."""
        return self._cells[row][SIZE] - MAX_N

    def text(self, row: int) -> NDArray[np.int64]:
        """Tokens of a text: a view that is valid until a text is added or extended."""
        start, size = self._cells[row][TEXT], self._cells[row][SIZE]
        tokens: NDArray[np.int64] = self._texts.data[start + MAX_N : start + size]
        return tokens

    def match(self, row: int) -> tuple[int, int]:
        """The earlier match of a text's end.

        Returns:
            Place after it, and its number of tokens (at least `min_n`, not limited by `max_n`);
            (0, 0) without a match.
        """
        end, length = self._cells[row][MATCH_END], self._cells[row][MATCH_LENGTH]
        return (end - MAX_N, length) if end else (0, 0)

    # Memory

    def _new_row(self) -> int:
        row = self._num_rows
        self._num_rows += 1
        if row == len(self._state):
            self._state = np.concatenate([self._state, np.zeros_like(self._state)])
            self._cells = _rows_of(self._state)
            self._texts.where = self._state[:, TEXT : CAPACITY + 1]
            self._tables.where = self._state[:, TABLE : NUM_LINES + 1]
        return row

    def _write(self, row: int, text: NDArray[np.int64]) -> None:
        """Puts a text with its head where it has room to grow."""
        start = self._texts.lend(row, len(text) + len(text) // 4 + 2 * MIN_ROOM)
        self._texts.data[start : start + len(text)] = text
        self._cells[row][SIZE] = len(text)

    def _reserve(self, num_tokens: int) -> None:
        """Gives every text room for new tokens, at most `MIN_ROOM`."""
        if num_tokens > self._room:
            self._check_room()
        self._room -= num_tokens

    def _check_room(self) -> None:
        """Gives every text room for at least `MIN_ROOM` tokens."""
        rows = self._state[:, NUM_LINES].nonzero()[0]
        room = self._state[:, _LIMIT] - self._state[:, SIZE]
        for row in rows[room.take(rows) < MIN_ROOM].tolist():
            self._make_room(row)
        room = self._state[:, _LIMIT] - self._state[:, SIZE]
        self._room = int(room.take(rows).min(initial=2**31))

    def _make_room(self, row: int) -> None:
        """Moves a text or makes a larger table where room is short; sets the limit of the text."""
        size, _, _, _, _, _, start, capacity, table, num_lines = self._cells[row].tolist()
        if capacity - _MARGIN - size < MIN_ROOM:
            self._write(row, self._texts.data[start : start + size].copy())
        num_entries = int(np.count_nonzero(self._tables.units[table : table + num_lines]))
        free = _FILL_AT_MOST * num_lines - num_entries
        if free < max(MIN_ROOM * len(self._lengths), 3 * num_lines // 2):
            self._enter_all(row)
        else:
            self._set_limit(row, num_entries)

    def _set_limit(self, row: int, num_entries: int) -> None:
        """Sets the limit of a text by what its memory still holds in the worst case."""
        size, _, _, _, _, _, _, capacity, _, num_lines = self._cells[row].tolist()
        free = _FILL_AT_MOST * num_lines - num_entries
        self._cells[row][_LIMIT] = min(capacity - _MARGIN, size + free // len(self._lengths))

    # n-grams of a whole text

    def _index(self, row: int) -> None:
        """Makes the table of a text and looks up its end."""
        end, length = self._enter_all(row)
        self._cells[row][MATCH_END], self._cells[row][MATCH_LENGTH] = end, length
        self._room = min(self._room, self._cells[row][_LIMIT] - self._cells[row][SIZE])

    def _enter_all(self, row: int) -> tuple[int, int]:
        """Makes the table of a text, all but the n-grams at its end, with room for more.

        Returns:
            The match that a look-up of the end gives.
        """
        size, start = self._cells[row][SIZE], self._cells[row][TEXT]
        text = self._texts.data[start : start + size]
        found = []
        match = 0, 0
        for n, firsts, first_of_end in first_occurrences(text, self.min_n, self.max_n):
            if first_of_end < size:
                match = first_of_end, n
            found.append((n, firsts[firsts < size]))
        num_entries = sum(len(firsts) for _, firsts in found)
        num_lines = (num_entries + MIN_ROOM * len(self._lengths)) // _FILL_AT_FIRST
        table = self._tables.lend(row, max(_MIN_LINES, num_lines))
        mask = self._cells[row][MASK] = self._cells[row][NUM_LINES] - 1
        for n, firsts in found:
            windows = text.take(self._back[:n] + firsts)
            hashes = np.add.reduce(windows * self._multipliers[:n], axis=0)
            entries = (hashes & HASH_BITS) | (firsts + (n << LENGTH_SHIFT))
            lines = hashes & mask
            while len(lines):
                lost = self._put(lines + table, entries)
                lines, entries = lines.take(lost), entries.take(lost)
                lines += self._tables.units[lines + table, -1] != 0
                lines &= mask
        self._cells[row][WAITING] = size
        self._set_limit(row, num_entries)
        return match

    def _put(self, lines: NDArray[np.int64], entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Enters n-grams that are not in their tables, in given lines where these have room.

        Returns:
            Which entries are left: their line is full, or another one got the place they wanted.
        """
        data = self._tables.data
        is_free = self._tables.units.take(lines, axis=0) == 0
        slots = is_free.argmax(1)
        slots += lines * LINE
        has_room = is_free[:, -1]
        if np.count_nonzero(has_room) == len(lines):
            data[slots] = entries
        else:
            data[slots[has_room]] = entries[has_room]
        left: NDArray[np.int64] = (data.take(slots) != entries).nonzero()[0]
        return left


def _rows_of(state: NDArray[np.int64]) -> list[memoryview]:
    """The rows of a state for Python, which reads single elements faster from a memoryview."""
    return [memoryview(row.data) for row in state]
