"""Prompt rows that the decoder half of the model does not need.

The layers from the last KV source on write nothing that outlives a prompt but their window rings,
and of a prompt only the last rows matter to what follows. A truncated prefill runs them on the last
`keep` tokens alone; the global cache is the same either way (technical report 3.2.2; the rules are
those of DeepInfer 0.1.0 `YOCO_PREFILL_TRUNCATION_MODE`). The first kept rows see fewer window keys
than in a whole prefill, so what the decoder half computes is approximate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_engine.model.batch import StepBatch

__all__ = ["KeptRows", "Truncation"]


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows that remain when the others are dropped. All int64 on the model's device.

    Attributes:
        rows: Remaining rows of the step, ascending, shape [T'].
        requests: Requests with at least one of them, ascending, shape [R'].
        num_dropped: Rows that each request loses, always its first ones, shape [R].
    """

    rows: Tensor
    requests: Tensor
    num_dropped: Tensor


@dataclass(frozen=True, slots=True)
class Truncation:
    """How the decoder half sees a step.

    Attributes:
        window_starts: First position whose window key it may read, int64, shape [R].
        kept: Rows that it runs; None for all.
    """

    window_starts: Tensor
    kept: KeptRows | None = None

    @staticmethod
    def build(
        starts: NDArray[np.integer],
        first_positions: NDArray[np.integer],
        query_lens: NDArray[np.integer],
        *,
        drops_rows: bool,
        upload: Callable[[NDArray[np.integer]], Tensor],
    ) -> Truncation | None:
        """Lays out a truncation from host arrays of shape [R].

        Args:
            starts: First position that the decoder half runs, 0 for requests that keep all rows.
            first_positions: Position of each request's first row; read for the others alone.
            query_lens: Rows of each request.
            drops_rows: Whether earlier rows are dropped; their window keys are hidden in any case.
            upload: Copies an array to the model's device, as int64.

        Returns:
            None if the decoder half runs and sees everything.
        """
        if not starts.any():
            return None
        window_starts = upload(starts)
        num_dropped = np.clip(starts - first_positions, 0, query_lens)
        num_dropped[starts == 0] = 0
        if not (drops_rows and num_dropped.any()):
            return Truncation(window_starts)
        offset = np.arange(query_lens.sum())
        offset -= np.repeat(np.cumsum(query_lens) - query_lens, query_lens)
        kept = KeptRows(
            rows=upload(np.flatnonzero(offset >= np.repeat(num_dropped, query_lens))),
            requests=upload(np.flatnonzero(num_dropped < query_lens)),
            num_dropped=upload(num_dropped),
        )
        return Truncation(window_starts, kept)

    def apply(self, batch: StepBatch) -> StepBatch:
        """The step of the decoder half.

        `logits_rows` and `ngram_history` still speak of the whole step: the decoder half reads
        neither.
        """
        window_starts = torch.maximum(batch.window_starts, self.window_starts)
        if self.kept is None:
            return replace(batch, window_starts=window_starts, truncation=None)
        rows, requests = self.kept.rows, self.kept.requests
        return replace(
            batch,
            token_ids=batch.token_ids[rows],
            positions=batch.positions[rows],
            query_lens=(batch.query_lens - self.kept.num_dropped)[requests],
            context_lens=batch.context_lens[requests],
            block_tables=batch.block_tables[requests],
            state_slots=batch.state_slots[requests],
            window_starts=window_starts[requests],
            write_floors=batch.write_floors[requests],
            truncation=None,
            host_positions=None,
        )
