"""What a drafter hands over, and what it promises.

For speculation to leave the output law alone, the distribution that a proposal carries must be the
one its tokens were drawn from: `q` of draft k is conditional on the drafts before it and on all
that the drafter looked at. A proposal may be cut short only by a rule that does not look at the
tokens it cuts (see `di_spec.budget`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from di_spec.errors import InvalidProposalError

__all__ = [
    "NO_DRAFT",
    "OUTSIDE_TARGET",
    "DraftContext",
    "Drafter",
    "HiddenStates",
    "Need",
    "Proposal",
    "QKind",
]

NO_DRAFT = -1
"""Nothing was drawn here or after: verification ends and the token comes from the target."""

OUTSIDE_TARGET = -2
"""A token was drawn from `q` that the target does not have: rejected, then drawn from the residual.
Saying `NO_DRAFT` here instead would bias the output whenever `q` is not one-hot."""

Need = Literal["token_history", "target_hidden", "aux_hidden", "sampling_params"]


class QKind(Enum):
    """How a proposal states the distribution of its tokens."""

    ONE_HOT = "one_hot"
    DENSE = "dense"
    TOP_K = "top_k"


class Proposal(NamedTuple):
    """Drafts of a batch of requests, padded to a common length.

    Attributes:
        token_ids: Drafts, int64 [requests, length]; `NO_DRAFT` from the end of a request's drafts.
        lengths: Number of drafts, int64 [requests].
        q_kind: `ONE_HOT` if tokens are certain, `DENSE` or `TOP_K` if they were drawn.
        q_logprobs: Log-probabilities that the tokens were drawn from, [requests, length, width];
            the width is the vocabulary for `DENSE`, the number of kept tokens for `TOP_K`.
        q_token_ids: Tokens of the columns for `TOP_K`, int64 [requests, length, width]; all other
            tokens have probability zero.
        confidence: Estimated probability that a draft is accepted given that those before it are,
            float [requests, length]. Entry k may depend on drafts before k, never on draft k.
    """

    token_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    q_kind: QKind = QKind.ONE_HOT
    q_logprobs: NDArray[np.floating[Any]] | None = None
    q_token_ids: NDArray[np.int64] | None = None
    confidence: NDArray[np.floating[Any]] | None = None

    def check(self) -> None:
        """Checks shapes and lengths; `verify` does so before it reads a proposal.

        Raises:
            InvalidProposalError: If arrays contradict each other; lists every contradiction.
        """
        problems = self._problems()
        if problems:
            raise InvalidProposalError("; ".join(problems))

    def cut(self, lengths: NDArray[np.int64]) -> "Proposal":
        """The proposal with at most `lengths` drafts per request, int64 [requests]."""
        lengths = np.minimum(self.lengths, lengths)
        is_kept = np.arange(self.token_ids.shape[1]) < lengths[:, None]
        return Proposal(
            np.where(is_kept, self.token_ids, NO_DRAFT),
            lengths,
            self.q_kind,
            self.q_logprobs,
            self.q_token_ids,
            self.confidence,
        )

    def survival(self) -> NDArray[np.float64]:
        """Probability that each draft is reached and accepted, float64 [requests, length].

        The running product of `confidence`, 1 without confidences; 0 past the last draft.
        """
        places = np.arange(self.token_ids.shape[1])
        has_draft = places < self.lengths[:, None]
        if self.confidence is None:
            return has_draft.astype(np.float64)
        return np.cumprod(np.where(has_draft, self.confidence, 0.0), axis=1, dtype=np.float64)

    def drafts_of(self, request: int) -> list[int]:
        """Draft token ids of one request."""
        drafts: list[int] = self.token_ids[request, : self.lengths[request]].tolist()
        return drafts

    def q_row(self, request: int, place: int, vocab_size: int) -> NDArray[np.float64]:
        """Probabilities that a draft was drawn from, float64 [vocab_size]."""
        q = np.zeros(vocab_size)
        token_id = int(self.token_ids[request, place])
        if self.q_kind is QKind.ONE_HOT:
            if 0 <= token_id < vocab_size:
                q[token_id] = 1.0
            return q
        assert self.q_logprobs is not None, "see `check`"
        weights = np.exp(self.q_logprobs[request, place].astype(np.float64))
        if self.q_kind is QKind.DENSE:
            width = min(vocab_size, len(weights))
            q[:width] = weights[:width]
            return q
        assert self.q_token_ids is not None, "see `check`"
        columns = self.q_token_ids[request, place]
        is_known = (columns >= 0) & (columns < vocab_size)
        q[columns[is_known]] = weights[is_known]
        return q

    def _problems(self) -> list[str]:
        if self.token_ids.ndim != 2:
            return [f"`token_ids` must be [requests, length]: got shape {self.token_ids.shape}"]
        shape = self.token_ids.shape
        problems = []
        if self.lengths.shape != shape[:1]:
            problems.append(f"`lengths` must have shape {shape[:1]}: got {self.lengths.shape}")
        elif ((self.lengths < 0) | (self.lengths > shape[1])).any():
            problems.append(f"`lengths` must be from 0 to {shape[1]}: got {self.lengths.tolist()}")
        else:
            is_draft = np.arange(shape[1]) < self.lengths[:, None]
            if (is_draft & (self.token_ids == NO_DRAFT)).any():
                problems.append("`token_ids` must not be NO_DRAFT before the end of `lengths`")
        if self.confidence is not None and self.confidence.shape != shape:
            problems.append(f"`confidence` must have shape {shape}: got {self.confidence.shape}")
        needs_q, needs_ids = self.q_kind is not QKind.ONE_HOT, self.q_kind is QKind.TOP_K
        for name, array, is_needed in (
            ("q_logprobs", self.q_logprobs, needs_q),
            ("q_token_ids", self.q_token_ids, needs_ids),
        ):
            if (array is not None) != is_needed:
                verb = "needs" if is_needed else "must not have"
                problems.append(f"a {self.q_kind.value} proposal {verb} `{name}`")
            elif array is not None and array.shape[:2] != shape:
                problems.append(f"`{name}` must be [{shape[0]}, {shape[1]}, width]: {array.shape}")
        return problems


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """What EAGLE-style drafters read: states of the rows that were accepted in the last step.

    Row i of a request pairs the state of token t with token t + 1, the shift such heads are trained
    with. Arrays are of the engine's own kind (numpy or torch) and device.

    Attributes:
        hidden: States after the last target layer, [rows, hidden size].
        aux_hidden: States of further layers (EAGLE-3, DSpark), each [rows, hidden size].
        token_ids: Token after each row, [rows].
        positions: Position of each row, [rows].
        row_offsets: First row of each request and the number of rows, int64 [requests + 1].
    """

    hidden: Any
    token_ids: Any
    positions: Any
    row_offsets: NDArray[np.int64]
    aux_hidden: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter may read in one step; fields beyond the first three follow its `needs`.

    Attributes:
        request_ids: Requests to draft for, each begun before.
        new_token_ids: Per request, the tokens committed since the drafter last saw it: a list for
            each, or int64 [requests, most] with `NO_DRAFT` from the end of each row.
        max_tokens: Most drafts per request (the room left by length limits), or one number for all.
        hidden_states: For `target_hidden` and `aux_hidden`.
        sampling_params: Per request, for `sampling_params`; a `di_spec.sampling.SamplingParams`.
    """

    request_ids: Sequence[Hashable]
    new_token_ids: Sequence[Sequence[int]] | NDArray[np.int64]
    max_tokens: Sequence[int] | int
    hidden_states: HiddenStates | None = None
    sampling_params: Sequence[Any] | None = None


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens. Owns what it keeps per request between `begin` and `end`."""

    @property
    def needs(self) -> frozenset[Need]:
        """What `propose` reads besides the request ids."""

    @property
    def max_tokens(self) -> int:
        """Most drafts per request and step; a trained block is never exceeded."""

    def begin(self, request_id: Hashable, prompt_ids: Sequence[int]) -> None:
        """Starts a request. Beginning a known id again replaces it (recomputation)."""

    def end(self, request_id: Hashable) -> None:
        """Forgets a request; unknown ids are ignored, so that aborts need no bookkeeping."""

    def propose(self, context: DraftContext) -> Proposal:
        """Drafts for every request of `context`, in its order."""

    def observe(self, request_ids: Sequence[Hashable], num_accepted: Sequence[int]) -> None:
        """Tells how many drafts of the last proposal were accepted; -1 if none was verified."""
