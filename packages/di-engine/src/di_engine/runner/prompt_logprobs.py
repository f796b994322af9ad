"""Log-probabilities of prompt tokens, gathered chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from di_engine.runner.logprobs import LogprobTensors, raw_logprobs
from di_engine.runner.request import PositionLogprobs

__all__ = ["PromptLogprobs"]

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
        self._num_done = 0
        self._pieces: list[LogprobTensors] = []

    def add_chunk(
        self,
        hidden: torch.Tensor,
        first_position: int,
        project: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Takes the rows of one chunk and starts to bring their results to the host.

        Args:
            hidden: Hidden states after the final norm, shape (num_rows, hidden_size).
            first_position: Position of the first row.
            project: Hidden rows to logits, shape (rows, vocab_size).
        """
        end = min(first_position + hidden.shape[0], len(self._prompt_ids) - 1)
        for begin in range(max(self._num_done, first_position), end, _ROWS_PER_CALL):
            stop = min(begin + _ROWS_PER_CALL, end)
            rows = hidden[begin - first_position : stop - first_position]
            targets = torch.from_numpy(self._prompt_ids[begin + 1 : stop + 1].astype(np.int64))
            if hidden.device.type != "cpu":
                targets = targets.pin_memory().to(hidden.device, non_blocking=True)
            self._pieces.append(raw_logprobs(project(rows), targets, self._num_top).to_host())
            self._num_done = stop

    def take(self) -> list[PositionLogprobs]:
        """Returns one entry per prompt token after the first, once the last chunk is complete."""
        return [entry for piece in self._pieces for entry in piece.entries()]
