"""The tokens of one request, with the counts that penalties need (O(1) per appended token)."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenHistory"]


class TokenHistory:
    """Prompt and output token ids of one request.

    Counts are built when a penalty first asks for them and follow each appended token from then on.

    Attributes:
        output_ids: Generated token ids. Append through `append`, never directly.
    """

    __slots__ = ("_counts", "_index", "_prompt_ids", "_token_ids", "output_ids")

    def __init__(self, prompt_ids: Sequence[int] | NDArray[np.integer]) -> None:
        self._prompt_ids = np.asarray(prompt_ids, np.int64)
        self.output_ids: list[int] = []
        self._index: dict[int, int] | None = None
        self._token_ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and output: the position of the next token."""
        return len(self._prompt_ids) + len(self.output_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.output_ids)

    def append(self, token_id: int) -> None:
        """Adds one generated token."""
        self.output_ids.append(token_id)
        if self._index is not None:
            self._count(token_id)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Adds generated tokens."""
        for token_id in token_ids:
            self.append(token_id)

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct token ids of prompt and output, and how often each is in the output.

        Returns:
            Two int64 arrays of equal length; views that the next `append` may change.
        """
        if self._index is None:
            self._token_ids = np.unique(self._prompt_ids)
            self._counts = np.zeros(len(self._token_ids), np.int64)
            self._index = {token_id: i for i, token_id in enumerate(self._token_ids.tolist())}
            for token_id in self.output_ids:
                self._count(token_id)
        size = len(self._index)
        return self._token_ids[:size], self._counts[:size]

    def _count(self, token_id: int) -> None:
        index = self._index
        assert index is not None, "counts are built before they are updated"
        place = index.setdefault(token_id, len(index))
        if place >= len(self._token_ids):
            room = max(64, len(self._token_ids))
            self._token_ids = np.concatenate([self._token_ids, np.empty(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.int64)])
        self._token_ids[place] = token_id
        self._counts[place] += 1
