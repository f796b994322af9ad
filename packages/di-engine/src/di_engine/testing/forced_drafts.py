"""Drafts that are right or wrong on purpose, and budgets thrown at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from di_engine.runner.drafting import DeviceDrafter, DraftInputs, Drafts

__all__ = ["ForcedDrafter", "RandomRows"]


class ForcedDrafter:
    """Drafts from known answers, wrong where it is told to.

    Confidences are arbitrary and differ from draft to draft, so that budgets are dealt out in many
    ways.

    Args:
        answers: Output tokens of each request, by its id.
        num_draft_tokens: Drafts of each proposal.
        vocab_size: Token ids are below it.
        is_right: Whether the draft of a request at a position is its answer; None leaves it to
            `inner`.
        inner: A drafter that is asked for every request.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[int]],
        num_draft_tokens: int,
        vocab_size: int,
        is_right: Callable[[str, int], bool | None],
        inner: DeviceDrafter | None = None,
    ) -> None:
        self._answers = answers
        self._num_draft_tokens = num_draft_tokens
        self._vocab_size = vocab_size
        self._is_right = is_right
        self._inner = inner

    def draft(self, inputs: DraftInputs) -> Drafts:
        """Drafts for every request; see `DeviceDrafter`."""
        inner = None if self._inner is None else self._inner.draft(inputs)
        rows, confidence = [], []
        positions = inputs.positions.tolist()
        for number, (running, position) in enumerate(zip(inputs.requests, positions, strict=True)):
            request_id = running.request.request_id
            answer = self._answers.get(request_id, ())
            prompt_len = len(running.request.prompt_ids)
            row: list[int] = []
            for place in range(position + 1, position + 1 + self._num_draft_tokens):
                index = place - prompt_len
                known = answer[index] if index < len(answer) else 0
                right = self._is_right(request_id, place)
                if right is None:
                    assert inner is not None, "somebody has to draft"
                    row.append(int(inner.token_ids[number, len(row)]))
                else:
                    row.append(known if right else (known + 1) % self._vocab_size)
            rows.append(row)
            confidence.append([((7 * position + 5 * k) % 11 - 5) / 2.0 for k in range(len(row))])
        device = inputs.positions.device
        shape = (len(rows), self._num_draft_tokens)
        return Drafts(
            torch.tensor(rows, dtype=torch.int64, device=device).view(shape),
            torch.tensor(confidence, dtype=torch.float64, device=device).view(shape),
        )


class RandomRows:
    """A `RowBudget` that gives random numbers of rows and has them dealt out anew.

    Args:
        seed: Seed of the numbers.
        splits_on_device: Whether the device deals the rows out by survival.
    """

    def __init__(self, seed: int, splits_on_device: bool = True) -> None:
        self.splits_on_device = splits_on_device
        self._random = random.Random(seed)  # noqa: S311  # a test's numbers

    def rows(
        self, slots: npt.NDArray[np.int64], max_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Rows of each request; see `di_scheduler.RowBudget`."""
        return np.array([self._random.randint(1, most) for most in max_rows.tolist()], np.int64)
