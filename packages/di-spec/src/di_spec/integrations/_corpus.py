"""An n-gram corpus with the interface of SGLang's, made of one index per request.

SGLang's n-gram worker asks its corpus for a tree of `draft_token_num` nodes per request: node 0 is
the last token of the text, and a mask says which nodes are ancestors of which (0.5.23
`speculative/cpp_ngram/ngram_corpus.py`, `ngram_worker.py`). A chain is such a tree.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec.ngram import NgramIndex

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
        self.min_n, self.max_n = min_n, max_n
        self._indices: dict[str, NgramIndex] = {}
        self._chain = np.tril(np.ones((draft_token_num, draft_token_num), np.bool_)).ravel()

    def begin(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Starts a request with its text so far, unless it is known."""
        if request_id not in self._indices:
            self._indices[request_id] = NgramIndex(token_ids, self.min_n, self.max_n)

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
        tokens = np.empty((len(req_ids), self.draft_token_num), np.int64)
        for row, (request_id, tail, size) in enumerate(
            zip(req_ids, batch_tokens, total_lens, strict=True)
        ):
            index = self._indices.get(request_id)
            if index is None or not 0 <= size - len(index) <= len(tail):
                index = self._indices[request_id] = NgramIndex(tail, self.min_n, self.max_n)
            else:
                index.extend(tail[len(tail) - (size - len(index)) :])
            drafts = index.continuation(self.draft_token_num - 1)
            tokens[row] = tail[-1]
            tokens[row, 1 : 1 + len(drafts)] = drafts
        return tokens.ravel(), np.tile(self._chain, len(req_ids))

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Nothing: `batch_get` has seen these tokens or will."""

    def synchronize(self) -> None:
        """Nothing: there is no background thread."""

    def reset(self) -> None:
        """Forgets every request."""
        self._indices.clear()

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        """Forgets requests."""
        for request_id in req_ids:
            self._indices.pop(request_id, None)
