"""Drafts from the request's own text: the continuation of an earlier match of its end.

The longest suffix of `min_n` to `max_n` tokens that occurred before is found, and what followed it
there is proposed. A match is followed for as long as the text goes on as it did, also beyond
`max_n` tokens, since a longer match beats a shorter one. Where a continuation reaches the end of
the text it goes on with what it has just copied, so that short loops are drafted at full length.

One hash table per request, in one flat array, holds for each n-gram of each length the position
after it. A token costs one comparison while a match is followed. Otherwise it costs a look-up for
each length, longest first, down to the first hit; the lengths that miss are new n-grams and are
entered at the place where the look-up ended, and the lengths below a hit are known already. So a
token costs O(1), text that repeats costs almost nothing, and no text is searched twice, unlike a
scan of the whole text at every step.

Which of several occurrences a look-up returns: the last one of the prompt, or the one that a
look-up hit last. An entry holds 31 bits of its n-gram's hash beside the position: two n-grams of
one length that agree in these and in their place would cost a bad draft and nothing else.
"""

from array import array
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec.drafting import NO_DRAFT, DraftContext, Need, Proposal

__all__ = ["NgramDrafter", "NgramIndex"]

_KEY_BITS = 40
_KEY_MASK = 2**_KEY_BITS - 1
_TAG_MASK = 2**31 - 1
_POSITION_BITS = 24
_POSITION_MASK = 2**_POSITION_BITS - 1
_MIN_SLOTS = 256
_SPARE_SLOTS = 512

_END = 32
"""Tokens at each end by which a text is recognised."""

_PRIOR = (3.0, 4.0)
"""Accepted and verified drafts that a new match length starts with."""


class NgramIndex:
    """The text of one request with an index of its n-grams.

    Args:
        token_ids: The text so far, ids below 2**31; at most 2**24 tokens in all.
        min_n: Shortest suffix to match, at least 1.
        max_n: Longest suffix to match, at most 16.

    Attributes:
        match_end: Position after the earlier match of the text's end; 0 without a match.
        match_length: Number of tokens that match, at least `min_n`, not limited by `max_n`; 0
            without a match.
    """

    __slots__ = (
        "_max_entries",
        "_num_entries",
        "_shift",
        "_table",
        "_token_ids",
        "match_end",
        "match_length",
        "max_n",
        "min_n",
    )

    def __init__(
        self, token_ids: Sequence[int] | NDArray[np.integer], min_n: int, max_n: int
    ) -> None:
        self.min_n, self.max_n = min_n, max_n
        self.match_end = self.match_length = 0
        text = np.ascontiguousarray(token_ids, np.int32)
        self._token_ids = array("i", text[:-1].tobytes())
        self._index_all()
        self.extend(text[-1:].tolist())

    def extend(self, new_token_ids: Sequence[int]) -> None:
        """Adds tokens to the text and finds the match of its new end."""
        token_ids, max_n = self._token_ids, self.max_n
        end, length = self.match_end, self.match_length
        for token_id in new_token_ids:
            if end and token_ids[end] == token_id:
                token_ids.append(token_id)
                end += 1
                length += 1
                if length < max_n:
                    self._enter(length)
            else:
                token_ids.append(token_id)
                end, length = self._enter(0)
        self.match_end, self.match_length = end, length

    def continuation(self, length: int) -> "array[int]":
        """`length` tokens that followed the match; its own copy where the text ends; or none."""
        start = self.match_end
        if not start or length < 1:
            return array("i")
        drafts = self._token_ids[start : start + length]
        while len(drafts) < length:
            drafts += drafts[: length - len(drafts)]
        return drafts

    def is_beginning_of(self, token_ids: NDArray[np.integer]) -> bool:
        """Whether `token_ids` goes on from this text, judged by its length and both ends.

        A wrong yes costs bad drafts and nothing else, so the middle is not compared.
        """
        size = len(self._token_ids)
        if size > len(token_ids):
            return False
        text = self._token_ids
        head: list[int] = token_ids[: min(size, _END)].tolist()
        tail: list[int] = token_ids[max(0, size - _END) : size].tolist()
        return head == text[:_END].tolist() and tail == text[-_END:].tolist()

    def __len__(self) -> int:
        return len(self._token_ids)

    def _enter(self, known: int) -> tuple[int, int]:
        """Enters the n-grams at the end of the text, longest first, down to one that is known.

        Args:
            known: Length up to which n-grams are known to occur before.

        Returns:
            Position after an earlier occurrence and its length; (0, 0) if all were new.
        """
        table, shift = self._table, self._shift
        size = len(self._token_ids)
        ngram = tuple(self._token_ids[-self.max_n :])
        shortest = self.min_n if known < self.min_n else known + 1
        longest = len(ngram)
        end, matched = 0, 0
        for n in range(longest, shortest - 1, -1):
            key = hash(ngram) & _KEY_MASK  # the hash of a tuple depends on its length too
            slot, tag = key >> shift, key & _TAG_MASK
            entry = table[slot]
            while entry and entry >> 32 != tag:
                slot += 1
                entry = table[slot]
            table[slot] = tag << 32 | size
            if entry:
                end, matched = entry & _POSITION_MASK, n
                break
            ngram = ngram[1:]
        if longest >= shortest:
            self._num_entries += longest - (matched or shortest - 1)
        if self._num_entries > self._max_entries:
            self._index_all()
        return end, matched

    def _index_all(self) -> None:
        """Builds the table of the whole text: the last position of every n-gram of each length.

        Entries lie at the slot of their key's high bits or after it, in the order of their keys, so
        that sorted keys are placed at once: each as early as its slot and its forerunner allow.
        """
        text = self._token_ids.tolist()
        packed = [np.empty(0, np.int64)]
        for n in range(self.min_n, min(self.max_n, len(text)) + 1):
            ngrams = zip(*(text[start:] for start in range(n)), strict=False)
            key = np.fromiter(map(hash, ngrams), np.int64, len(text) - n + 1) & _KEY_MASK
            packed.append((key << _POSITION_BITS) | np.arange(n, len(text) + 1))
        ordered = np.sort(np.concatenate(packed).view(np.uint64))
        keys = (ordered >> np.uint64(_POSITION_BITS)).astype(np.int64)
        is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        keys = keys[is_last]
        ends = ordered[is_last].astype(np.int64) & _POSITION_MASK
        self._num_entries = len(keys)
        slot_bits = (2 * len(keys) + _MIN_SLOTS).bit_length()
        self._shift = _KEY_BITS - slot_bits
        self._max_entries = 5 << (slot_bits - 3)
        rank = np.arange(len(keys))
        slots = np.maximum.accumulate((keys >> self._shift) - rank) + rank
        num_slots = max(1 << slot_bits, int(slots.max(initial=0))) + _SPARE_SLOTS
        table = np.zeros(num_slots, np.int64)
        table[slots] = ((keys & _TAG_MASK) << 32) | ends
        self._table = array("q", table.tobytes())


class NgramDrafter:
    """Prompt look-up decoding for a batch of requests, on the CPU, without a model.

    Confidences come from experience: the share of drafts accepted at each place after matches of
    each length. They look at past steps only, so that budgets built on them are safe.

    Args:
        max_tokens: Most drafts per request and step.
        min_n: Shortest suffix to match.
        max_n: Longest suffix to match.

    Raises:
        ValueError: If `max_tokens` is not at least 1, or not 1 <= `min_n` <= `max_n` <= 16.
    """

    needs: frozenset[Need] = frozenset({"token_history"})

    def __init__(self, max_tokens: int = 5, min_n: int = 2, max_n: int = 5) -> None:
        if max_tokens < 1 or not 1 <= min_n <= max_n <= 16:
            raise ValueError(
                "`max_tokens` must be at least 1, and `min_n` and `max_n` ascend from 1 to 16: got "
                f"{max_tokens}, {min_n} and {max_n}"
            )
        self.max_tokens = max_tokens
        self.min_n, self.max_n = min_n, max_n
        self._padding = array("i", [NO_DRAFT] * max_tokens)
        self._indices: dict[Hashable, NgramIndex] = {}
        self._last: tuple[Sequence[Hashable], list[int], list[int]] = ((), [], [])
        self._accepted = np.full((max_n + 1, max_tokens), _PRIOR[0])
        self._verified = np.full((max_n + 1, max_tokens), _PRIOR[1])
        self._rates = self._rate_rows()

    def begin(self, request_id: Hashable, prompt_ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Starts a request with its prompt; see `Drafter.begin`."""
        self._indices[request_id] = NgramIndex(prompt_ids, self.min_n, self.max_n)

    def end(self, request_id: Hashable) -> None:
        """Forgets a request; see `Drafter.end`."""
        self._indices.pop(request_id, None)

    def propose(self, context: DraftContext) -> Proposal:
        """Drafts for every request of `context`, in its order.

        Raises:
            KeyError: If a request was never begun.
        """
        width, max_n = self.max_tokens, self.max_n
        rows, lengths, matched = [], [], []
        limits = context.max_tokens
        if isinstance(limits, int):
            limits = [limits] * len(context.request_ids)
        requests = zip(context.request_ids, context.new_token_ids, limits, strict=True)
        for request_id, new_token_ids, limit in requests:
            index = self._indices[request_id]
            index.extend(new_token_ids)
            drafts = index.continuation(limit if limit < width else width)
            lengths.append(len(drafts))
            if len(drafts) < width:
                drafts += self._padding[len(drafts) :]
            rows.append(drafts)
            matched.append(index.match_length if index.match_length < max_n else max_n)
        self._last = context.request_ids, matched, lengths
        shape = len(rows), width
        token_ids = np.frombuffer(b"".join(rows), np.int32).reshape(shape)
        confidence = np.frombuffer(b"".join([self._rates[n] for n in matched])).reshape(shape)
        return Proposal(
            token_ids.astype(np.int64), np.array(lengths, np.int64), confidence=confidence
        )

    def observe(self, request_ids: Sequence[Hashable], num_accepted: Sequence[int]) -> None:
        """Learns how often drafts after a match of some length are accepted; see `Drafter`.

        Only drafts up to the first rejection count; drafts that were never verified are not known
        to this method, so give the number accepted of requests whose whole proposal was verified,
        and -1 for the others.
        """
        drafted, matched, lengths = self._last
        self._last = (), [], []
        matches = dict(zip(drafted, zip(matched, lengths, strict=True), strict=True))
        for request_id, accepted in zip(request_ids, num_accepted, strict=True):
            n, length = matches.pop(request_id, (0, 0))
            if length and accepted >= 0:
                self._accepted[n, :accepted] += 1
                self._verified[n, : min(accepted + 1, length)] += 1
        self._rates = self._rate_rows()

    def _rate_rows(self) -> list[bytes]:
        """Confidences for each match length, as float64 bytes."""
        return [row.tobytes() for row in self._accepted / self._verified]
