"""An n-gram corpus with the interface of SGLang's, made of one index per request.

SGLang's n-gram worker asks its corpus for a tree of `draft_token_num` nodes per request: node 0 is
the last token of the text, and a mask says which nodes are ancestors of which (0.5.23
`speculative/cpp_ngram/ngram_corpus.py`, `ngram_worker.py`). A chain is such a tree.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec.ngram_index import NgramIndex

__all__ = ["RequestCorpus"]


class RequestCorpus:
    """Drafts from each request's own text.

    Args:
        draft_token_num: Nodes of a tree: the last token and the drafts.
        min_n: Shortest suffix to match.
        max_n: Longest suffix to match.
    """

    def __init__(self, draft_token_num: int, min_n: int = 2, max_n: int = 5) -> None:
        self.draft_token_num = draft_token_num
        self._index = NgramIndex(min_n, max_n)
        self._rows: dict[str, int] = {}
        self._chain = np.tril(np.ones((draft_token_num, draft_token_num), np.bool_)).ravel()

    def begin(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Starts a request with its text so far, unless it is known."""
        if request_id not in self._rows:
            self._rows[request_id] = self._index.add(token_ids)

    def batch_get(
        self,
        req_ids: Sequence[str],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Trees of a batch.

        Args:
            req_ids: Requests.
            batch_tokens: Last tokens of each text; at least the new ones.
            total_lens: Lengths of the texts.

        Returns:
            Tokens, int64 [requests * draft_token_num], and ancestor masks, bool [requests *
            draft_token_num ** 2], both flat. Where nothing is found the last token is repeated: a
            guess like any other.
        """
        new_token_ids = []
        for request_id, tail, size in zip(req_ids, batch_tokens, total_lens, strict=True):
            row = self._rows.get(request_id)
            num_new = -1 if row is None else size - self._index.num_tokens(row)
            if not 0 <= num_new <= len(tail):
                self.erase_match_state([request_id])
                self.begin(request_id, tail)
                num_new = 0
            new_token_ids.append(tail[len(tail) - num_new :])
        rows = np.array([self._rows[request_id] for request_id in req_ids], np.int64)
        width = self.draft_token_num - 1
        drafts, _, _ = self._index.propose(rows, new_token_ids, width, width)
        last = np.array([tail[-1] for tail in batch_tokens], np.int64)[:, None]
        tokens = np.hstack([last, np.where(drafts >= 0, drafts, last)])
        return tokens.ravel(), np.tile(self._chain, len(req_ids))

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Nothing: `batch_get` has seen these tokens or will."""

    def synchronize(self) -> None:
        """Nothing: there is no background thread."""

    def reset(self) -> None:
        """Forgets every request."""
        self.erase_match_state(list(self._rows))

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        """Forgets requests."""
        for request_id in req_ids:
            row = self._rows.pop(request_id, None)
            if row is not None:
                self._index.remove(row)
