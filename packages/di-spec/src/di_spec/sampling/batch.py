"""A batch of rows to sample: one struct of arrays, built from requests each step.

A request with `n` drafts has `n + 1` rows. Row `j` draws the token after the prefix and the first
`j` drafts, and everything that looks at the past (position, penalty counts, `min_tokens`, bad
words) is computed for that prefix. Taking it from the committed tokens only would make the output
depend on how many drafts were verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from di_spec.sampling.history import TokenHistory
from di_spec.sampling.params import SamplingParams

__all__ = ["SampleRequest", "SamplerBatch", "SparseEdits"]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request of a step.

    Attributes:
        params: Its sampling parameters.
        history: Its committed tokens; only read.
        draft_token_ids: Drafts to verify in this step, in order.
    """

    params: SamplingParams
    history: TokenHistory
    draft_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SparseEdits:
    """Entries of a sparse [rows, vocabulary] matrix.

    Attributes:
        row: Row of each entry, int64 [entries], ascending.
        token_id: Column of each entry, int64 [entries]; a row names no column twice.
        value: Value of each entry, float64 [entries].
    """

    row: NDArray[np.int64]
    token_id: NDArray[np.int64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.row)

    def of_rows(self, rows: NDArray[np.int64], num_rows: int) -> "SparseEdits":
        """The entries of some rows, renumbered to their place in `rows` (ascending)."""
        place = np.full(num_rows, -1, np.int64)
        place[rows] = np.arange(len(rows))
        moved = place[self.row]
        chosen = moved >= 0
        return SparseEdits(moved[chosen], self.token_id[chosen], self.value[chosen])


@dataclass(frozen=True, slots=True)
class SamplerBatch:
    """Sampling parameters of the rows of one step, on the host.

    Attributes:
        vocab_size: Width of the logits.
        row_offsets: First row of each request and the number of rows, int64 [requests + 1].
        draft_token_ids: Draft that follows each row, int64 [rows]; -1 on the last row of a request.
        temperature, top_p, min_p: float64 [rows].
        top_k: int64 [rows]; `vocab_size` where all tokens are kept.
        repetition_penalty, frequency_penalty, presence_penalty: float64 [rows].
        seed, position: Keys of the noise, uint64 [rows].
        has_edits: Whether anything but temperature and filters touches the row, bool [rows].
        is_restricted: Whether the row has a list of allowed tokens, bool [rows].
        allowed: Allowed tokens of restricted rows.
        banned: Banned tokens.
        bias: Numbers to add.
        counts: Tokens of the past under penalties; value = occurrences in the output.
        bad: Tokens that would complete a bad word.
    """

    vocab_size: int
    row_offsets: NDArray[np.int64]
    draft_token_ids: NDArray[np.int64]
    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    repetition_penalty: NDArray[np.float64]
    frequency_penalty: NDArray[np.float64]
    presence_penalty: NDArray[np.float64]
    seed: NDArray[np.uint64]
    position: NDArray[np.uint64]
    has_edits: NDArray[np.bool_]
    is_restricted: NDArray[np.bool_]
    allowed: SparseEdits
    banned: SparseEdits
    bias: SparseEdits
    counts: SparseEdits
    bad: SparseEdits

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.temperature)

    @property
    def is_greedy(self) -> NDArray[np.bool_]:
        """Rows of temperature 0, bool [rows]."""
        return np.equal(self.temperature, 0)

    @classmethod
    def build(cls, requests: Sequence[SampleRequest], vocab_size: int) -> "SamplerBatch":
        """Lays out the rows of `requests`, each request's rows together, in order.

        Args:
            requests: The requests of the step.
            vocab_size: Width of the logits.

        Raises:
            InvalidSamplingError: If parameters name a token outside the vocabulary.
        """
        edits = _EditLists(vocab_size)
        num_rows = [1 + len(request.draft_token_ids) for request in requests]
        row_offsets = np.concatenate([[0], np.cumsum(num_rows, dtype=np.int64)]).astype(np.int64)
        position = np.empty(row_offsets[-1], np.uint64)
        drafts = np.full(row_offsets[-1], -1, np.int64)
        for i, request in enumerate(requests):
            first, end = int(row_offsets[i]), int(row_offsets[i + 1])
            start = request.history.num_tokens
            position[first:end] = np.arange(start, start + end - first)
            drafts[first : end - 1] = request.draft_token_ids
            if request.params.has_edits:
                request.params.check_vocabulary(vocab_size)
                for row in range(first, end):
                    edits.add_row(row, request, row - first)

        def per_row(values: list[float], dtype: type = np.float64) -> NDArray[np.float64]:
            return np.repeat(np.array(values, dtype), num_rows)

        params = [request.params for request in requests]
        top_k = np.repeat(np.array([p.top_k for p in params], np.int64), num_rows)
        return cls(
            vocab_size=vocab_size,
            row_offsets=row_offsets,
            draft_token_ids=drafts,
            temperature=per_row([p.temperature for p in params]),
            top_k=np.where((top_k < 1) | (top_k > vocab_size), vocab_size, top_k),
            top_p=per_row([p.top_p for p in params]),
            min_p=per_row([p.min_p for p in params]),
            repetition_penalty=per_row([p.repetition_penalty for p in params]),
            frequency_penalty=per_row([p.frequency_penalty for p in params]),
            presence_penalty=per_row([p.presence_penalty for p in params]),
            seed=np.repeat(np.array([p.seed for p in params], np.uint64), num_rows),
            position=position,
            has_edits=np.repeat(np.array([p.has_edits for p in params], np.bool_), num_rows),
            is_restricted=np.repeat(
                np.array([p.allowed_token_ids is not None for p in params], np.bool_), num_rows
            ),
            allowed=edits.allowed.build(),
            banned=edits.banned.build(),
            bias=edits.bias.build(),
            counts=edits.counts.build(),
            bad=edits.bad.build(),
        )

    def of_rows(self, rows: NDArray[np.int64]) -> "SamplerBatch":
        """The batch of some rows (ascending), each as a request of one row without drafts."""
        n = self.num_rows
        return SamplerBatch(
            vocab_size=self.vocab_size,
            row_offsets=np.arange(len(rows) + 1, dtype=np.int64),
            draft_token_ids=np.full(len(rows), -1, np.int64),
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            repetition_penalty=self.repetition_penalty[rows],
            frequency_penalty=self.frequency_penalty[rows],
            presence_penalty=self.presence_penalty[rows],
            seed=self.seed[rows],
            position=self.position[rows],
            has_edits=self.has_edits[rows],
            is_restricted=self.is_restricted[rows],
            allowed=self.allowed.of_rows(rows, n),
            banned=self.banned.of_rows(rows, n),
            bias=self.bias.of_rows(rows, n),
            counts=self.counts.of_rows(rows, n),
            bad=self.bad.of_rows(rows, n),
        )


class _EntryList:
    """Grows a `SparseEdits` row by row."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.token_ids: list[NDArray[np.int64]] = []
        self.values: list[NDArray[np.float64]] = []

    def add(self, row: int, token_ids: Sequence[int] | NDArray[np.int64], values: object) -> None:
        if len(token_ids):
            self.rows.append(row)
            self.token_ids.append(np.asarray(token_ids, np.int64))
            self.values.append(
                np.broadcast_to(np.asarray(values, np.float64), self.token_ids[-1].shape)
            )

    def build(self) -> SparseEdits:
        if not self.rows:
            return _NO_EDITS
        lengths = [len(token_ids) for token_ids in self.token_ids]
        return SparseEdits(
            np.repeat(np.array(self.rows, np.int64), lengths),
            np.concatenate(self.token_ids),
            np.concatenate(self.values),
        )


class _EditLists:
    """The five kinds of edits of the rows of a step."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.allowed, self.banned, self.bias = _EntryList(), _EntryList(), _EntryList()
        self.counts, self.bad = _EntryList(), _EntryList()

    def add_row(self, row: int, request: SampleRequest, num_drafts: int) -> None:
        """Adds the row that follows the first `num_drafts` drafts of `request`."""
        params, history = request.params, request.history
        drafts = list(request.draft_token_ids[:num_drafts])
        self.allowed.add(row, sorted(set(params.allowed_token_ids or ())), 0.0)
        banned = set(params.banned_token_ids)
        if history.num_output_tokens + num_drafts < params.min_tokens:
            banned.update(params.stop_token_ids)
        self.banned.add(row, sorted(banned), 0.0)
        self.bias.add(row, list(params.logit_bias), list(params.logit_bias.values()))
        if params.has_penalties:
            known = [draft for draft in drafts if 0 <= draft < self.vocab_size]
            self.counts.add(row, *_counts_after(history, known))
        if params.bad_words:
            self.bad.add(row, _completions(params.bad_words, history.output_ids, drafts), 0.0)


def _counts_after(
    history: TokenHistory, drafts: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts of the history followed by `drafts`; copies, so that later appends do not show."""
    token_ids, counts = (array.copy() for array in history.counts())
    for draft in drafts:
        place = np.flatnonzero(token_ids == draft)
        if len(place):
            counts[place] += 1
        else:
            token_ids, counts = np.append(token_ids, draft), np.append(counts, 1)
    return token_ids, counts


def _completions(
    bad_words: Sequence[Sequence[int]], output_ids: list[int], drafts: list[int]
) -> list[int]:
    """Token ids that would complete a bad word after `output_ids` and `drafts`."""
    longest = max(len(word) for word in bad_words)
    tail = (output_ids[-longest:] + drafts)[-longest:]
    found = set()
    for word in bad_words:
        before = list(word[:-1])
        if not before or tail[-len(before) :] == before:
            found.add(word[-1])
    return sorted(found)


_NO_EDITS = SparseEdits(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))
