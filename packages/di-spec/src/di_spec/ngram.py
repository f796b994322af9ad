"""Drafts from the request's own text: the continuation of an earlier match of its end.

The longest suffix of `min_n` to `max_n` tokens that occurred before is found, and what followed it
there is proposed. A match is followed for as long as the text goes on as it did, also beyond
`max_n` tokens, since a longer match beats a shorter one. Where a continuation reaches the end of
the text it goes on with what it has just copied, so that short loops are drafted at full length.

Each n-gram length has a dictionary from the hash of an n-gram to the position after it. A token
costs one comparison while a match is followed. Otherwise it costs a look-up for each length,
longest first, down to the first hit; the lengths that miss are new n-grams and are entered by the
same operation, and the lengths below a hit are known already. So a token costs O(1), text that
repeats costs almost nothing, and no text is searched twice, unlike a scan of the whole text at
every step.

Which of several occurrences a look-up returns: the last one of the prompt, or the one that a
look-up hit last. Hashes are polynomials modulo 2**60; a collision (never seen) would cost one bad
draft.
"""

from array import array
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec.drafting import NO_DRAFT, DraftContext, Need, Proposal

__all__ = ["NgramDrafter", "NgramIndex"]

_END = 32
"""Tokens at each end by which a text is recognised."""

_PRIOR = (3.0, 4.0)
"""Accepted and verified drafts that a new match length starts with."""


class NgramIndex:
    """The text of one request with an index of its n-grams.

    Args:
        token_ids: The text so far, ids below 2**31.
        min_n: Shortest suffix to match, at least 1.
        max_n: Longest suffix to match.

    Attributes:
        match_end: Position after the earlier match of the text's end; 0 without a match.
        match_length: Number of tokens that match, at least `min_n`, not limited by `max_n`; 0
            without a match.
    """

    __slots__ = ("_by_length", "_token_ids", "match_end", "match_length", "max_n")

    def __init__(
        self, token_ids: Sequence[int] | NDArray[np.integer], min_n: int, max_n: int
    ) -> None:
        self.max_n = max_n
        self.match_end = self.match_length = 0
        text = np.ascontiguousarray(token_ids, np.int32)
        self._token_ids = array("i", text[:-1].tobytes())
        self._by_length = self._index_all(min_n)
        self.extend(text[-1:].tolist())

    def extend(self, new_token_ids: Sequence[int]) -> None:
        """Adds tokens to the text and finds the match of its new end."""
        token_ids, max_n = self._token_ids, self.max_n
        end, length = self.match_end, self.match_length
        for token_id in new_token_ids:
            is_followed = end and token_ids[end] == token_id
            token_ids.append(token_id)
            if is_followed:
                end += 1
                length += 1
                if length < max_n:
                    self._enter(length)
            else:
                end, length = self._enter(0)
        self.match_end, self.match_length = end, length

    def continuation(self, length: int) -> list[int]:
        """`length` tokens that followed the match; its own copy where the text ends; [] if none."""
        start = self.match_end
        if not start or length < 1:
            return []
        drafts: list[int] = self._token_ids[start : start + length].tolist()
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
        tail = tuple(self._token_ids[-self.max_n :])
        size = len(self._token_ids)
        for n, positions in self._by_length:
            if n <= known:
                break
            if n <= size:
                key = hash(tail[-n:])
                end = positions.setdefault(key, size)
                if end != size:
                    positions[key] = size
                    return end, n
        return 0, 0

    def _index_all(self, min_n: int) -> list[tuple[int, dict[int, int]]]:
        """Positions after the last occurrence of every n-gram of the text, longest n first."""
        token_ids = self._token_ids.tolist()
        places = list(range(len(token_ids) + 1))
        by_length = []
        for n in range(self.max_n, min_n - 1, -1):
            ngrams = zip(*(token_ids[start:] for start in range(n)), strict=False)
            by_length.append((n, dict(zip(map(hash, ngrams), places[n:], strict=False))))
        return by_length


class NgramDrafter:
    """Prompt look-up decoding for a batch of requests, on the CPU, without a model.

    Confidences come from experience: the share of drafts accepted at each place after matches of
    each length. They look at past steps only, so that budgets built on them are safe.

    Args:
        max_tokens: Most drafts per request and step.
        min_n: Shortest suffix to match.
        max_n: Longest suffix to match.

    Raises:
        ValueError: If a size is not at least 1, or `min_n` exceeds `max_n`.
    """

    needs: frozenset[Need] = frozenset({"token_history"})

    def __init__(self, max_tokens: int = 5, min_n: int = 2, max_n: int = 5) -> None:
        if max_tokens < 1 or min_n < 1 or max_n < min_n:
            raise ValueError(
                "`max_tokens` and `min_n` must be at least 1 and `max_n` at least `min_n`: got "
                f"{max_tokens}, {min_n} and {max_n}"
            )
        self.max_tokens = max_tokens
        self.min_n, self.max_n = min_n, max_n
        self._indices: dict[Hashable, NgramIndex] = {}
        self._last_matches: dict[Hashable, tuple[int, int]] = {}
        self._accepted = np.full((max_n + 1, max_tokens), _PRIOR[0])
        self._verified = np.full((max_n + 1, max_tokens), _PRIOR[1])
        self._rates = self._accepted / self._verified

    def begin(self, request_id: Hashable, prompt_ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Starts a request with its prompt; see `Drafter.begin`."""
        self._indices[request_id] = NgramIndex(prompt_ids, self.min_n, self.max_n)
        self._last_matches.pop(request_id, None)

    def end(self, request_id: Hashable) -> None:
        """Forgets a request; see `Drafter.end`."""
        self._indices.pop(request_id, None)
        self._last_matches.pop(request_id, None)

    def propose(self, context: DraftContext) -> Proposal:
        """Drafts for every request of `context`, in its order.

        Raises:
            KeyError: If a request was never begun.
        """
        rows, lengths, matched = [], [], []
        width, max_n = self.max_tokens, self.max_n
        limits = context.max_tokens
        if isinstance(limits, int):
            limits = [limits] * len(context.request_ids)
        requests = zip(context.request_ids, context.new_token_ids, limits, strict=True)
        for request_id, new_token_ids, limit in requests:
            index = self._indices[request_id]
            index.extend(new_token_ids)
            drafts = index.continuation(limit if limit < width else width)
            length = len(drafts)
            lengths.append(length)
            matched.append(index.match_length if index.match_length < max_n else max_n)
            rows.append(drafts if length == width else drafts + [NO_DRAFT] * (width - length))
        self._last_matches = dict(
            zip(context.request_ids, zip(matched, lengths, strict=True), strict=True)
        )
        return Proposal(
            np.array(rows, np.int64).reshape(len(rows), width),
            np.array(lengths, np.int64),
            confidence=self._rates[matched],
        )

    def observe(self, request_ids: Sequence[Hashable], num_accepted: Sequence[int]) -> None:
        """Learns how often drafts after a match of some length are accepted; see `Drafter`.

        Only drafts up to the first rejection count; drafts that were never verified are not known
        to this method, so give the number accepted of requests whose whole proposal was verified,
        and -1 for the others.
        """
        for request_id, accepted in zip(request_ids, num_accepted, strict=True):
            n, length = self._last_matches.pop(request_id, (0, 0))
            if length and accepted >= 0:
                self._accepted[n, :accepted] += 1
                self._verified[n, : min(accepted + 1, length)] += 1
        self._rates = self._accepted / self._verified
