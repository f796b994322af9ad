"""Texts of a batch of requests, and for each the earlier match of its end.

A match is followed for as long as the text goes on as it did, also beyond `max_n` tokens, since a
longer match beats a shorter one. Where a text goes on in another way, the longest suffix of `min_n`
to `max_n` tokens that occurred before is looked up; of several occurrences the first one counts, as
in vLLM's n-gram drafter.

Each text has a hash table of the places after the first occurrence of its n-grams of each length.
The length of the match tells which n-grams at the end of a text are new: those that are longer. So
a token that follows a long match costs a comparison, n-grams are entered without a search, only the
end of a match needs a look-up for each length, and no text is searched twice: a token costs O(1). A
look-up compares the tokens of what it finds, so that equal hashes never make a match.

n-grams at the end of a text may wait to be entered until its next look-up: until then nobody asks
for them.

A large batch is extended by numpy operations over all requests, whose number does not depend on the
batch; the few cases that they cannot decide (a full line, equal hashes) and small batches are left
to Python, request by request. Either path goes on where the other one stopped.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from operator import mul

import numpy as np
from numpy.typing import NDArray

from di_spec._new_tokens import NewTokens, check_lengths, columns, padded
from di_spec._ngram_store import (
    HASH_BITS,
    LENGTH_SHIFT,
    LINE,
    MASK,
    MATCH_END,
    MATCH_LENGTH,
    NUM_LINES,
    PLACE_BITS,
    SIZE,
    TABLE,
    TEXT,
    WAITING,
    NgramStore,
)
from di_spec._ngrams import HEAD, MAX_N, MULTIPLIERS

__all__ = ["NgramIndex"]

_MANY = 18
"""Requests from which on numpy is faster than Python."""

_MAX_STEP = 32
"""Most new tokens of a request that are taken at once."""

_ONE_LONGER = 1 << LENGTH_SHIFT
"""What entries of n-grams that end at the same place differ by, for each token more."""

_PLACES = np.arange(_MAX_STEP + 1)
_MULTIPLIERS: list[int] = MULTIPLIERS.tolist()


class NgramIndex(NgramStore):
    """Texts with an index of their n-grams.

    Args:
        min_n: Shortest suffix to match, at least 1.
        max_n: Longest suffix to match, at most 16.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        super().__init__(min_n, max_n)
        num_lengths = len(self._lengths)
        # A match has `min_n` tokens at least, so that not more places have new n-grams behind it.
        num_waiting = max(1, num_lengths - 1)
        self._waiting_places = np.arange(num_waiting + 1)[:, None]
        self._length_column = self._lengths[:, None, None]
        self._length_bits = self._length_column << LENGTH_SHIFT
        self._is_beyond = np.arange(max_n)[:, None] >= np.arange(max_n + 1)  # of each length
        self._lengths_of_slots = np.repeat(self._lengths[::-1], LINE)

    def propose(
        self,
        rows: NDArray[np.int64],
        new_token_ids: NewTokens,
        limits: int | Sequence[int],
        width: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Adds tokens to texts and gives what followed the matches of their new ends.

        Args:
            rows: Texts, none twice, int64 [rows].
            new_token_ids: Tokens for each of them, ids from 0 to 2**31 - 1: a list for each, or,
                read faster, int64 [rows, most], each row with -1 from its end.
            limits: Most tokens to propose for each text, or for all.
            width: Columns of the result; no text gets more tokens.

        Returns:
            Tokens, int64 [rows, width], -1 from the end of each row; their numbers, int64 [rows];
            and the lengths of the matches, at most `max_n`, int64 [rows].

        Raises:
            ValueError: If the lengths of the arguments differ.
        """
        longest = check_lengths(len(rows), new_token_ids, limits)
        while longest > _MAX_STEP:
            self.propose(rows, columns(new_token_ids, 0, _MAX_STEP), 0, 1)
            new_token_ids = columns(new_token_ids, _MAX_STEP, longest)
            longest -= _MAX_STEP
        self._reserve(longest)
        if len(rows) < _MANY:
            lists: Sequence[Sequence[int]] = (
                new_token_ids.tolist() if isinstance(new_token_ids, np.ndarray) else new_token_ids
            )
            return self._propose_few(rows, lists, limits, width)
        self._extend_many(rows, padded(new_token_ids, longest))
        return self._continue_many(self._state.take(rows, 0), limits, width)

    # One request

    def _propose_few(
        self,
        rows: NDArray[np.int64],
        new_token_ids: Sequence[Sequence[int]],
        limits: int | Sequence[int],
        width: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """`propose`, text by text, each with room for its tokens; a -1 ends them."""
        num_rows, max_n = len(rows), self.max_n
        tokens = np.empty((num_rows, width), np.int64)
        numbers, matched = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
        for i, row in enumerate(rows.tolist()):
            tail, match, length = self._extend(self._cells[row], new_token_ids[i])
            limit = limits if isinstance(limits, int) else limits[i]
            number = max(0, min(limit, width)) if length else 0
            numbers[i] = number
            matched[i] = length if length < max_n else max_n
            if number == width <= tail - match:
                tokens[i] = self._texts.data[match : match + width]
                continue
            drafts = self._texts.view[match : min(match + number, tail)].tolist()
            while len(drafts) < number:
                drafts += drafts[: number - len(drafts)]
            tokens[i] = drafts + [HEAD] * (width - number)
        return tokens, numbers, matched

    def _extend(self, cells: memoryview, token_ids: Sequence[int]) -> tuple[int, int, int]:
        """Adds tokens to a text that has room for them; a -1 ends them.

        Args:
            cells: Its state.
            token_ids: Tokens.

        Returns:
            Where the text ends, the place in it after its match, and the length of the match.
        """
        text = self._texts.view
        size, end, length, waiting, _, _, start, _, table, num_lines = cells.tolist()
        tail, match = start + size, start + end
        begin = tail - length  # of the suffix that has a match
        for token_id in token_ids:
            if token_id < 0:
                break
            text[tail] = token_id
            tail += 1
            if text[match] == token_id:  # without a match this is the head
                match += 1
                continue
            slots = self._slots(table, num_lines)
            if start + waiting < tail:
                self._enter_waiting(slots, start, waiting, tail, begin)
            end, length = self._look_up(slots, start, tail)
            match, begin = start + end, tail - length
            waiting = tail + 1 - start
        length = tail - begin
        cells[SIZE], cells[MATCH_END] = tail - start, match - start
        cells[MATCH_LENGTH], cells[WAITING] = length, waiting
        return tail, match, length

    def _enter_waiting(
        self, slots: memoryview, start: int, waiting: int, tail: int, begin: int
    ) -> None:
        """Enters the n-grams that wait.

        Args:
            slots: The table.
            start: Where the text starts.
            waiting: First of its places, counted from there, whose n-grams wait.
            tail: Where the text ends; the n-grams before this place are left alone.
            begin: Where the suffix begins that has a match.
        """
        for place in range(start + waiting, min(tail, begin + self.max_n)):
            known = max(place - begin, self.min_n - 1)
            hashes = self._hashes(place, known)
            self._enter(slots, hashes, (known << LENGTH_SHIFT) + place - start)

    def _look_up(self, slots: memoryview, start: int, tail: int) -> tuple[int, int]:
        """Looks the n-grams at the end of a text up, and enters those that are new.

        An n-gram that occurred has a shorter one that did, so that the first miss ends the search.

        Args:
            slots: Its table.
            start: Where the text starts.
            tail: Where it ends.

        Returns:
            Place after the first occurrence of the longest one, and its length; 0 and 0 without.
        """
        text, mask, last_slot = self._texts.view, len(slots) // LINE - 1, len(slots) - 1
        found = length = 0
        n = self.min_n - 1
        hashes = self._hashes(tail, n)
        for value in hashes:
            n += 1
            slot = (value & mask) * LINE
            key = value & HASH_BITS | n << LENGTH_SHIFT
            while entry := slots[slot]:
                end = entry ^ key
                if end <= PLACE_BITS:
                    at = start + end
                    # Where the shorter one was found only one more token is to be compared.
                    if (
                        text[at - n] == text[tail - n]
                        if end == found
                        else text[at - n : at] == text[tail - n : tail]
                    ):
                        found, length = end, n
                        break
                slot = slot + 1 & last_slot
            else:
                slots[slot] = key | tail - start
                self._enter(slots, hashes, (n << LENGTH_SHIFT) + tail - start)
                break
        return found, length

    def _enter(self, slots: memoryview, hashes: Iterable[int], length_and_place: int) -> None:
        """Enters n-grams that are not in their table and end at one place.

        Args:
            slots: The table.
            hashes: Of the n-grams, in their last 64 bits, shortest first.
            length_and_place: Of the n-gram before the first one, as in an entry.
        """
        mask, last_slot = len(slots) // LINE - 1, len(slots) - 1
        for value in hashes:
            length_and_place += _ONE_LONGER
            slot = (value & mask) * LINE
            while slots[slot]:
                slot = slot + 1 & last_slot
            slots[slot] = value & HASH_BITS | length_and_place

    def _slots(self, table: int, num_lines: int) -> memoryview:
        """The table that begins with a line."""
        return self._tables.view[table * LINE : (table + num_lines) * LINE]

    def _hashes(self, tail: int, known: int) -> Iterator[int]:
        """Hashes, in their last 64 bits, of the n-grams before a place of all texts' memory.

        Shortest first, of those that are longer than `known`.
        """
        window = self._texts.view[tail - self.max_n : tail].tolist()
        window.reverse()
        return islice(accumulate(map(mul, window, _MULTIPLIERS)), known, None)

    # Many requests

    def _extend_many(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """Adds tokens to texts that have room for all columns.

        Args:
            rows: Texts, [rows].
            tokens: Tokens with `HEAD` from the end of each row, [rows, most + 1].
        """
        counts = (tokens < 0).argmax(1)
        places = _PLACES[: tokens.shape[1]]
        state, text = self._state.take(rows, 0), self._texts.data
        starts = state[:, TEXT]
        text[(state[:, SIZE] + starts)[:, None] + places] = tokens
        while True:
            # Where a match never ends it does at the token after the new ones, which is no token.
            matches = (state[:, MATCH_END] + starts)[:, None] + places
            followed = (text.take(matches) != tokens).argmax(1)
            moved = np.minimum(followed + 1, counts)
            state[:, : MATCH_LENGTH + 1] += moved[:, None]
            broken = (followed < counts).nonzero()[0]
            if len(broken):
                part = state.take(broken, 0)
                self._look_up_many(part.T)
                state[broken] = part
            self._state[rows] = state
            left = (moved != counts).nonzero()[0]
            if len(left) < _MANY:
                for i in left.tolist():
                    self._extend(self._cells[rows[i]], tokens[i, moved[i] :].tolist())
                return
            rows, counts, state = rows.take(left), (counts - moved).take(left), state.take(left, 0)
            starts = state[:, TEXT]
            places = _PLACES[: int(counts.max()) + 1]
            tokens = text.take((state[:, SIZE] + starts)[:, None] + places)

    def _continue_many(
        self, state: NDArray[np.int64], limits: int | Sequence[int], width: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """What followed the matches of texts with a state [rows, 10]; see `propose`."""
        end, places = state[:, MATCH_END], np.arange(width)
        at = (state[:, TEXT] + end)[:, None]
        period = (state[:, SIZE] - end)[:, None]
        is_short = period < width  # where a text ends its own copy goes on
        tokens = self._texts.data.take(
            at + (places % period if np.count_nonzero(is_short) else places)
        )
        # Places of matches count the head, so that they are 0 or more than `MAX_N`.
        numbers = np.minimum(end, width) if width <= MAX_N else (end > 0) * width
        if not isinstance(limits, int) or limits < width or width > MAX_N:
            numbers = np.minimum(numbers, np.maximum(limits, 0))
            tokens[places >= numbers[:, None]] = HEAD  # otherwise they are those of the head
        return tokens, numbers, np.minimum(state[:, MATCH_LENGTH], self.max_n)

    def _look_up_many(self, part: NDArray[np.int64]) -> None:
        """Enters the n-grams that wait and looks up the ends of texts with a state [10, texts]."""
        size, starts = part[SIZE], part[TEXT]
        places = part[WAITING] + self._waiting_places
        places[-1] = size
        windows = self._texts.data.take((starts + places) + self._back[:, None])
        hashes = windows * self._multipliers[:, None]
        for shorter, longer in pairwise(hashes):
            longer += shorter
        hashes = hashes[self.min_n - 1 :]  # [lengths, places, texts]
        lines = hashes & part[MASK]
        lines += part[TABLE]
        keys = hashes & HASH_BITS
        keys |= self._length_bits

        is_new = self._length_column > places + (part[MATCH_LENGTH] - size)
        is_new &= places < size
        new = is_new.ravel().nonzero()[0]
        entries = (keys | places).ravel().take(new)
        left = self._put(lines.ravel().take(new), entries)
        if len(left):
            self._put_each(part, hashes[is_new], entries, is_new.nonzero()[2], left)
        part[WAITING] = size
        self._find(part, lines[::-1, -1].T, keys[::-1, -1].T, windows[:, -1])

    def _put_each(
        self,
        part: NDArray[np.int64],
        hashes: NDArray[np.int64],
        entries: NDArray[np.int64],
        texts: NDArray[np.int64],
        which: NDArray[np.int64],
    ) -> None:
        """Enters some of many n-grams, one by one; `texts` are columns of `part`."""
        for i in which.tolist():
            slots = self._slots(*part[TABLE : NUM_LINES + 1, texts[i]].tolist())
            length_and_place = int(entries[i]) & ~HASH_BITS
            self._enter(slots, [int(hashes[i])], length_and_place - _ONE_LONGER)

    def _find(
        self,
        part: NDArray[np.int64],
        lines: NDArray[np.int64],
        keys: NDArray[np.int64],
        windows: NDArray[np.int64],
    ) -> None:
        """Looks the n-grams at the ends of several texts up.

        Args:
            part: Their state, [10, texts].
            lines: Line of each n-gram, [texts, lengths], longest first.
            keys: Hash and length of each as in an entry, [texts, lengths].
            windows: The last tokens of the texts, the last one first, [max_n, texts].
        """
        entries = self._tables.units.take(lines, 0)
        places = (entries ^ keys[:, :, None]).reshape(len(lines), -1)  # or more, without a hit
        is_hit = places <= PLACE_BITS
        slots = is_hit.argmax(1)
        at = slots + np.arange(0, is_hit.size, is_hit.shape[1])
        hit = is_hit.ravel().take(at)
        ends = places.ravel().take(at) * hit
        lengths = self._lengths_of_slots.take(slots) * hit
        part[MATCH_END], part[MATCH_LENGTH] = ends, lengths
        is_same = self._texts.data.take((part[TEXT] + ends) + self._back) == windows
        is_same |= self._is_beyond.take(lengths, 1)
        full = entries[:, :, -1]
        if np.count_nonzero(is_same) == is_same.size and not np.count_nonzero(full):
            return
        doubtful = ~is_same.all(0) | full.any(1)
        for i in doubtful.nonzero()[0].tolist():
            size, _, _, _, _, _, start, _, table, num_lines = part[:, i].tolist()
            match = self._look_up(self._slots(table, num_lines), start, start + size)
            part[MATCH_END : MATCH_LENGTH + 1, i] = match
            part[WAITING, i] += 1  # what is new has been entered
