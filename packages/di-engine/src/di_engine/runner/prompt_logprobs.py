"""Log-probabilities of prompt tokens, gathered chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from di_engine.runner.request import PositionLogprobs
from di_spec import torch as spec_torch

__all__ = ["PromptLogprobs", "position_logprobs"]

_ROWS_PER_CALL = 512
"""Rows projected to the vocabulary at once: 512 rows of 129,280 float32 logits are 265 MB."""


class PromptLogprobs:
    """Collects one request's prompt log-probabilities over its chunks.

    A row at position `p` tells the log-probability of the token at `p + 1`. A request that is
    computed again after preemption passes the same positions again; they are kept once.
    """

    def __init__(self, prompt_ids: npt.NDArray[np.int32], num_top: int) -> None:
        """Prepares for a prompt of `prompt_ids`, with `num_top` alternatives per position."""
        self._prompt_ids = prompt_ids
        self._num_top = num_top
        self._entries: list[PositionLogprobs] = []

    def add_chunk(
        self,
        hidden: torch.Tensor,
        first_position: int,
        project: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Takes the rows of one chunk.

        Args:
            hidden: Hidden states after the final norm, shape (num_rows, hidden_size).
            first_position: Position of the first row.
            project: Hidden rows to logits, shape (rows, vocab_size).
        """
        done = len(self._entries)
        end = min(first_position + hidden.shape[0], len(self._prompt_ids) - 1)
        for begin in range(max(done, first_position), end, _ROWS_PER_CALL):
            stop = min(begin + _ROWS_PER_CALL, end)
            rows = hidden[begin - first_position : stop - first_position]
            targets = self._prompt_ids[begin + 1 : stop + 1]
            self._entries += position_logprobs(project(rows), targets.tolist(), self._num_top)

    def take(self) -> list[PositionLogprobs]:
        """Returns one entry per prompt token after the first."""
        return self._entries


def position_logprobs(
    logits: torch.Tensor, token_ids: list[int], num_top: int
) -> list[PositionLogprobs]:
    """Raw log-probabilities of given tokens and of the most likely ones.

    Args:
        logits: Shape (rows, vocab_size), float32 or float64.
        token_ids: One token per row.
        num_top: Alternatives per row.
    """
    targets = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    chosen = spec_torch.token_logprobs(logits, targets).tolist()
    if num_top == 0:
        return [PositionLogprobs(t, c, [], []) for t, c in zip(token_ids, chosen, strict=True)]
    top_ids, top_logprobs = spec_torch.top_logprobs(logits, min(num_top, logits.shape[1]))
    return [
        PositionLogprobs(*entry)
        for entry in zip(token_ids, chosen, top_ids.tolist(), top_logprobs.tolist(), strict=True)
    ]
