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

n-grams at the end of a text wait to be entered until its next look-up: until then nobody asks for
them.

A large batch is extended by numpy operations over all requests, whose number does not depend on the
batch; the few cases that they cannot decide (a full line, equal hashes) and small batches are left
to Python, request by request.
"""

from collections.abc import Sequence
from itertools import accumulate, islice
from operator import mul

import numpy as np
from numpy.typing import NDArray

from di_spec._new_tokens import NewTokens, check_lengths, columns, most_tokens, padded
from di_spec._ngram_store import (
    HASH_BITS,
    LENGTH_BITS,
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

_MANY = 24
"""Requests from which on numpy is faster than Python."""

_MAX_STEP = 32
"""Most new tokens of a request that are taken at once."""

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
        self._is_beyond = np.arange(max_n)[:, None] >= np.arange(max_n + 1)  # of each length
        self._waiting_places = np.arange(len(self._lengths) + 1)[:, None]

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
        check_lengths(len(rows), new_token_ids, limits)
        longest = most_tokens(new_token_ids)
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
        state = self._extend_many(rows, padded(new_token_ids, longest))
        return self._continue_many(state, limits, width)

    # One request

    def _propose_few(
        self,
        rows: NDArray[np.int64],
        new_token_ids: Sequence[Sequence[int]],
        limits: int | Sequence[int],
        width: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """`propose`, text by text, each with room for its tokens; a -1 ends them."""
        text, state, cells, max_n = self._texts.view, self._state, self._cells, self.max_n
        tokens: list[int] = []
        numbers: list[int] = []
        matched: list[int] = []
        if isinstance(limits, int):
            limits = [limits] * len(rows)
        for row, token_ids, limit in zip(rows.tolist(), new_token_ids, limits, strict=True):
            size, end, length, waiting, _, mask, start, _, table, _ = state[:, row].tolist()
            for token_id in token_ids:
                if token_id < 0:
                    break
                text[start + size] = token_id
                size += 1
                length += 1
                if text[start + end] == token_id:  # without a match this is the head
                    end += 1
                else:
                    slot, last_slot = table * LINE, mask * LINE + LINE - 1
                    if length - (size - waiting) < max_n:
                        self._enter_waiting(start, size, length, waiting, slot, last_slot)
                    end, length = self._look_up(start, size, slot, last_slot)
                    waiting = size
            cells[SIZE, row], cells[MATCH_END, row] = size, end
            cells[MATCH_LENGTH, row], cells[WAITING, row] = length, waiting
            number = max(0, min(limit, width)) if end else 0
            drafts = text[start + end : start + min(end + number, size)].tolist()
            while len(drafts) < number:
                drafts += drafts[: number - len(drafts)]
            tokens += drafts
            if number < width:
                tokens += [HEAD] * (width - number)
            numbers.append(number)
            matched.append(length if length < max_n else max_n)
        num_rows = len(rows)
        result = np.array(tokens + numbers + matched, np.int64)
        num_tokens = num_rows * width
        return (
            result[:num_tokens].reshape(num_rows, width),
            result[num_tokens : num_tokens + num_rows],
            result[num_tokens + num_rows :],
        )

    def _enter_waiting(
        self, start: int, size: int, length: int, waiting: int, table: int, mask: int
    ) -> None:
        """Enters the n-grams that end before a place and wait.

        Args:
            start: Where the text starts.
            size: The place.
            length: Tokens since the beginning of the match that was followed up to there.
            waiting: Where the n-grams that wait end.
            table: First slot of the table.
            mask: Number of its slots less one.
        """
        view, min_n, max_n = self._tables.view, self.min_n, self.max_n
        for place in range(waiting, size):
            known = max(length - (size - place), min_n - 1)
            if known >= max_n:
                return
            last = start + place
            window = self._texts.view[last - max_n : last].tolist()
            window.reverse()
            sums = accumulate(map(mul, window, _MULTIPLIERS))  # their last 64 bits are hashes
            length_and_place = (known << LENGTH_SHIFT) + place
            for value in islice(sums, known, None):
                length_and_place += 1 << LENGTH_SHIFT
                slot = table + (value * LINE & mask)
                while view[slot]:
                    slot = table + ((slot - table + 1) & mask)
                view[slot] = value & HASH_BITS | length_and_place

    def _look_up(self, start: int, size: int, table: int, mask: int) -> tuple[int, int]:
        """Place after the first occurrence of the longest n-gram before a place, and its length.

        An n-gram that occurred has a shorter one that did, so that the first miss ends the search.
        """
        text, view = self._texts.view, self._tables.view
        after = start + size
        value = found = length = 0
        for n in range(1, self.max_n + 1):
            value += text[after - n] * _MULTIPLIERS[n - 1]
            if n < self.min_n:
                continue
            slot = value * LINE & mask
            key = value & HASH_BITS | n << LENGTH_SHIFT
            while entry := view[table + slot]:
                end = entry ^ key
                if end <= PLACE_BITS:
                    at = start + end
                    if text[at - n : at] == text[after - n : after]:
                        found, length = end, n
                        break
                slot = (slot + 1) & mask
            else:
                break
        return found, length

    # Many requests

    def _extend_many(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Adds tokens to texts that have room for all columns.

        Args:
            rows: Texts, [rows].
            tokens: Tokens with `HEAD` from the end of each row, [rows, most + 1].

        Returns:
            State of the texts, [10, rows].
        """
        all_rows = rows
        counts = (tokens < 0).argmax(1)
        places = _PLACES[: tokens.shape[1]]
        state, text = self._state.take(rows, axis=1), self._texts.data
        tails, matches = state[: MATCH_END + 1] + state[TEXT]
        text[tails[:, None] + places] = tokens
        while True:
            # Where a match never ends it does at the token after the new ones, which is no token.
            followed = (text.take(matches[:, None] + places) != tokens).argmax(1)
            moved = np.minimum(followed + 1, counts)
            state[: MATCH_LENGTH + 1] += moved
            broken = (followed < counts).nonzero()[0]
            if len(broken):
                self._look_up_many(state, broken)
            self._state[: WAITING + 1, rows] = state[: WAITING + 1]
            left = (moved != counts).nonzero()[0]
            if not len(left):
                return state if rows is all_rows else self._state.take(all_rows, axis=1)
            rows, counts, state = rows.take(left), (counts - moved).take(left), state.take(left, 1)
            tails, matches = state[: MATCH_END + 1] + state[TEXT]
            places = _PLACES[: int(counts.max()) + 1]
            tokens = text.take(tails[:, None] + places)

    def _continue_many(
        self, state: NDArray[np.int64], limits: int | Sequence[int], width: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """What followed the matches of texts; see `propose`."""
        end, places = state[MATCH_END], np.arange(width)
        at = (state[TEXT] + end)[:, None]
        period = (state[SIZE] - end)[:, None]
        is_short = period < width  # where a text ends its own copy goes on
        tokens = self._texts.data.take(
            at + (places % period if np.count_nonzero(is_short) else places)
        )
        # Places of matches count the head, so that they are 0 or more than `MAX_N`.
        numbers = np.minimum(end, width) if width <= MAX_N else (end > 0) * width
        if not isinstance(limits, int) or limits < width or width > MAX_N:
            numbers = np.minimum(numbers, np.maximum(limits, 0))
            tokens[places >= numbers[:, None]] = HEAD  # otherwise they are those of the head
        return tokens, numbers, np.minimum(state[MATCH_LENGTH], self.max_n)

    def _look_up_many(self, state: NDArray[np.int64], broken: NDArray[np.int64]) -> None:
        """`_enter_waiting` and `_look_up` for some texts of a state."""
        part = state.take(broken, axis=1)
        size = part[SIZE]
        places = part[WAITING] + self._waiting_places
        places[-1] = size
        windows = self._texts.data.take((part[TEXT] + places)[:, None] + self._back)
        hashes = np.add.accumulate(windows * self._multipliers, axis=1)
        hashes = hashes[:, self.min_n - 1 :]  # [places, lengths, texts]
        lines = hashes & part[MASK]
        lines += part[TABLE]
        keys = hashes & HASH_BITS
        keys |= self._length_bits

        waiting = places[:-1]
        known = waiting + (part[MATCH_LENGTH] - size)
        is_new = self._lengths[:, None] > known[:, None]
        is_new &= (waiting < size)[:, None]
        new = is_new.reshape(-1).nonzero()[0]
        entries = (keys[:-1] | waiting[:, None]).reshape(-1).take(new)
        left = self._put(lines[:-1].reshape(-1).take(new), entries)
        if len(left):
            self._put_each(part, hashes[:-1][is_new], entries, is_new.nonzero()[2], left)

        ends, lengths = self._find(part, lines[-1, ::-1].T, keys[-1, ::-1].T, windows[-1])
        state[MATCH_END, broken] = ends
        state[MATCH_LENGTH, broken] = lengths
        state[WAITING, broken] = size

    def _put_each(
        self,
        part: NDArray[np.int64],
        hashes: NDArray[np.int64],
        entries: NDArray[np.int64],
        texts: NDArray[np.int64],
        which: NDArray[np.int64],
    ) -> None:
        """Enters some of many n-grams, one by one; `texts` are columns of `part`."""
        view = self._tables.view
        for i in which.tolist():
            table, num_lines = part[TABLE : NUM_LINES + 1, texts[i]].tolist()
            slot, mask = int(hashes[i]) * LINE, num_lines * LINE - 1
            while view[table * LINE + (slot & mask)]:
                slot += 1
            view[table * LINE + (slot & mask)] = int(entries[i])

    def _find(
        self,
        part: NDArray[np.int64],
        lines: NDArray[np.int64],
        keys: NDArray[np.int64],
        windows: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`_look_up` for several texts.

        Args:
            part: Their state, [10, texts].
            lines: Line of each n-gram at their ends, [texts, lengths], longest first.
            keys: Hash and length of each as in an entry, [texts, lengths].
            windows: Their last tokens, the last one first, [max_n, texts].

        Returns:
            Places after the first occurrences and lengths; 0 and 0 without.
        """
        entries = self._tables.units.take(lines, axis=0)
        is_hit = (entries >> LENGTH_SHIFT) == (keys >> LENGTH_SHIFT)[:, :, None]
        hits = is_hit.reshape(len(lines), -1).argmax(1)
        hits += np.arange(0, is_hit.size, len(self._lengths) * LINE)
        found = entries.reshape(-1).take(hits) * is_hit.reshape(-1).take(hits)
        ends, lengths = found & PLACE_BITS, (found >> LENGTH_SHIFT) & LENGTH_BITS
        is_same = self._texts.data.take((part[TEXT] + ends) + self._back) == windows
        is_same |= self._is_beyond.take(lengths, axis=1)
        full = entries[:, :, -1]
        if np.count_nonzero(is_same) == is_same.size and not np.count_nonzero(full):
            return ends, lengths
        doubtful = ~is_same.all(0) | full.any(1)
        for i in doubtful.nonzero()[0].tolist():
            size, _, _, _, _, _, start, _, table, num_lines = part[:, i].tolist()
            mask = num_lines * LINE - 1
            ends[i], lengths[i] = self._look_up(start, size, table * LINE, mask)
        return ends, lengths
