"""Drafts from the request's own text: the continuation of an earlier match of its end.

The longest suffix of `min_n` to `max_n` tokens that occurred before is found, and what followed it
there is proposed; see `di_spec.ngram_index` for which occurrence, and for the cost. Where a
continuation reaches the end of the text it goes on with what it has just copied, so that short
loops are drafted at full length.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec.drafting import DraftContext, Need, Proposal
from di_spec.ngram_index import NgramIndex

__all__ = ["NgramDrafter"]

_PRIOR = (3.0, 4.0)
"""Accepted and verified drafts that a new match length starts with."""


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
        self._index = NgramIndex(min_n, max_n)
        self._rows: dict[Hashable, int] = {}
        nothing = np.empty(0, np.int64)
        self._batch: tuple[list[Hashable], NDArray[np.int64]] = [], nothing
        self._last: tuple[Sequence[Hashable], NDArray[np.int64], NDArray[np.int64]]
        self._last = (), nothing, nothing
        self._accepted = np.full((max_n + 1, max_tokens), _PRIOR[0])
        self._verified = np.full((max_n + 1, max_tokens), _PRIOR[1])
        self._rates = self._accepted / self._verified

    def begin(self, request_id: Hashable, prompt_ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Starts a request with its prompt; see `Drafter.begin`."""
        self.end(request_id)
        self._rows[request_id] = self._index.add(prompt_ids)

    def end(self, request_id: Hashable) -> None:
        """Forgets a request; see `Drafter.end`."""
        self._batch = [], np.empty(0, np.int64)
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._index.remove(row)

    def rollback(self, request_id: Hashable, num_tokens: int) -> None:
        """Cuts a request's text to its first tokens; costs as much as `begin` with them.

        Raises:
            KeyError: If the request was never begun.
        """
        self._index.truncate(self._rows[request_id], num_tokens)

    def propose(self, context: DraftContext) -> Proposal:
        """Drafts for every request of `context`, in its order.

        Raises:
            KeyError: If a request was never begun; no request's text has changed then.
            ValueError: If a request is named twice, or the fields' lengths differ.
        """
        rows = self._rows_of(context.request_ids)
        token_ids, lengths, matched = self._index.propose(
            rows, context.new_token_ids, context.max_tokens, self.max_tokens
        )
        self._last = context.request_ids, matched, lengths
        return Proposal(token_ids, lengths, confidence=self._rates.take(matched, axis=0))

    def _rows_of(self, request_ids: Sequence[Hashable]) -> NDArray[np.int64]:
        """Rows of the index; those of the last step where the requests are the same."""
        ids = request_ids if isinstance(request_ids, list) else list(request_ids)
        if ids != self._batch[0]:
            rows = [self._rows[request_id] for request_id in ids]
            if len(set(rows)) < len(rows):
                raise ValueError(f"`request_ids` must differ: got {ids}")
            self._batch = ids.copy(), np.array(rows, np.int64)
        return self._batch[1]

    def observe(self, request_ids: Sequence[Hashable], num_accepted: Sequence[int]) -> None:
        """Learns how often drafts after a match of some length are accepted; see `Drafter`.

        Only drafts up to the first rejection count; drafts that were never verified are not known
        to this method, so give the number accepted of requests whose whole proposal was verified,
        and -1 for the others.
        """
        drafted, matched, lengths = self._last
        self._last = (), matched[:0], lengths[:0]
        places = {request_id: place for place, request_id in enumerate(drafted)}
        pairs = zip(request_ids, num_accepted, strict=True)
        known = [(places[r], n) for r, n in pairs if n >= 0 and r in places]
        if not known:
            return
        which, accepted = np.array(known, np.int64).T
        lengths, matched = lengths[which], matched[which]
        verified = np.minimum(accepted + 1, lengths)
        drafts = np.arange(self.max_tokens)
        np.add.at(self._accepted, matched, drafts < np.minimum(accepted, lengths)[:, None])
        np.add.at(self._verified, matched, drafts < verified[:, None])
        self._rates = self._accepted / self._verified
