"""What comes back from a step, and what it means for each request."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from di_scheduler.errors import OutcomeError
from di_scheduler.plan import StepPlan
from di_scheduler.request import BoolArray, Int64Array, Record


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """The arrays that a step brought back, aligned with the rows of its plan.

    Attributes:
        token_ids: Emitted tokens in order, padded with anything, integers, shape (R, W).
        num_tokens: Tokens that each row emitted, shape (R,): accepted drafts plus one for rows
            with `needs_sample`; ignored for the others.
        num_drafts: Draft tokens that the engine now holds for each request, shape (R,); None
            means `num_draft_tokens` for decode rows (and for final chunks with
            `drafts_after_prefill`).
        query_lens: Rows of each request as the device split them, shape (R,); None means as
            planned. Only statistics depend on it.
    """

    token_ids: npt.NDArray[np.integer]
    num_tokens: npt.NDArray[np.integer]
    num_drafts: npt.NDArray[np.integer] | None = None
    query_lens: npt.NDArray[np.integer] | None = None

    def check(self, plan: StepPlan) -> None:
        """Raises `OutcomeError` if shapes or values do not fit `plan`."""
        rows = plan.num_rows
        tokens, counts = np.asarray(self.token_ids), np.asarray(self.num_tokens)
        if tokens.ndim != 2 or tokens.shape[0] != rows or tokens.dtype.kind not in "iu":
            raise OutcomeError(
                f"step {plan.step_id}: `token_ids` must be integers of shape ({rows}, W), got "
                f"{tokens.dtype} of shape {tokens.shape}"
            )
        if counts.shape != (rows,) or counts.dtype.kind not in "iu":
            raise OutcomeError(
                f"step {plan.step_id}: `num_tokens` must be integers of shape ({rows},), got "
                f"{counts.dtype} of shape {counts.shape}"
            )
        most = np.minimum(plan.max_query_lens, tokens.shape[1])
        most[plan.is_prompt] = 1
        wrong = plan.needs_sample & ((counts < 1) | (counts > most))
        if wrong.any():
            row = int(wrong.argmax())
            raise OutcomeError(
                f"step {plan.step_id}: row {row} ({plan.request_ids[row]!r}) reports "
                f"{int(counts[row])} tokens, allowed are 1 .. {int(most[row])}"
            )
        for name in ("num_drafts", "query_lens"):
            value = getattr(self, name)
            if value is not None and np.shape(value) != (rows,):
                raise OutcomeError(
                    f"step {plan.step_id}: `{name}` must have shape ({rows},), got "
                    f"{np.shape(value)}"
                )


class RequestUpdate(NamedTuple):
    """News about one request.

    Attributes:
        request_id: The caller's name for it.
        row: Row in the committed plan (log-probabilities are there), -1 if the news does not
            come from its outcome.
        token_ids: New output tokens.
        finished: Whether this is the request's last update.
        finish_reason: Why it ended, else None.
        message: What happened, if the reason alone does not say it.
        num_prompt_tokens: Prompt tokens.
        num_output_tokens: Output tokens so far, including the new ones.
        num_cached_tokens: Prompt tokens that were not computed because the cache had them.
        num_draft_tokens: Drafts verified for this update.
        num_accepted_tokens: Drafts accepted, before a stop cut the update.
    """

    request_id: str
    row: int
    token_ids: list[int]
    finished: bool
    finish_reason: str | None
    message: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StepUpdate:
    """News from one commit as a struct of arrays; iterating yields a view per request.

    Attributes:
        rows: Row in the committed plan of each request with new tokens, shape (U,), int64.
        token_ids: New tokens, valid up to `num_new_tokens`, shape (U, W).
        num_new_tokens: Tokens after a stop are already cut, shape (U,), int64.
        finished: Shape (U,), bool.
        finish_reasons: By index into the U rows, for finished ones.
        num_prompt_tokens: Shape (U,), int64.
        num_output_tokens: Shape (U,), int64.
        num_draft_tokens: Shape (U,), int64.
        num_accepted_tokens: Shape (U,), int64.
        records: Internal: the scheduler's record of each of the U rows.
        others: News that does not come from the outcome: aborts, failures, late tokens of
            preempted requests. They are yielded last.
    """

    rows: Int64Array
    token_ids: Int64Array
    num_new_tokens: Int64Array
    finished: BoolArray
    finish_reasons: dict[int, str]
    num_prompt_tokens: Int64Array
    num_output_tokens: Int64Array
    num_draft_tokens: Int64Array
    num_accepted_tokens: Int64Array
    records: list[Record] = field(repr=False)
    others: list[RequestUpdate] = field(default_factory=list)

    @property
    def request_ids(self) -> list[str]:
        """The caller's name of each of the U requests."""
        return [record.request_id for record in self.records]

    def __len__(self) -> int:
        return len(self.records) + len(self.others)

    def __iter__(self) -> Iterator[RequestUpdate]:
        counts = self.num_new_tokens.tolist()
        reasons = self.finish_reasons
        columns = zip(
            self.request_ids,
            self.rows.tolist(),
            [ids[:count] for ids, count in zip(self.token_ids.tolist(), counts, strict=True)],
            self.finished.tolist(),
            [reasons.get(index) for index in range(len(counts))] if reasons else repeat(None),
            repeat(""),
            self.num_prompt_tokens.tolist(),
            self.num_output_tokens.tolist(),
            [record.num_cached_tokens for record in self.records],
            self.num_draft_tokens.tolist(),
            self.num_accepted_tokens.tolist(),
            strict=False,  # `repeat` never ends
        )
        # What `RequestUpdate._make` does, without a Python frame per request.
        views = map(partial(tuple.__new__, RequestUpdate), columns)
        return chain(cast("Iterator[RequestUpdate]", views), self.others)


def update_without_rows(others: list[RequestUpdate]) -> StepUpdate:
    """Returns an update that carries only news from outside a step."""
    none = np.empty(0, np.int64)
    return StepUpdate(
        rows=none,
        token_ids=np.empty((0, 0), np.int64),
        num_new_tokens=none,
        finished=np.empty(0, np.bool_),
        finish_reasons={},
        num_prompt_tokens=none,
        num_output_tokens=none,
        num_draft_tokens=none,
        num_accepted_tokens=none,
        records=[],
        others=others,
    )
