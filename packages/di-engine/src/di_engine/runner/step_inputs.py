"""From a step plan to the tensors of one forward pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from di_engine.model.batch import StepBatch
from di_scheduler import StepPlan

__all__ = ["make_step_batch", "row_positions", "sampled_rows"]


def make_step_batch(plan: StepPlan, *, history_len: int, device: torch.device) -> StepBatch:
    """Builds the model's input.

    Args:
        plan: What to run; its rows are contiguous per request.
        history_len: Tokens before the first row that the n-gram lookup may need.
        device: Where the tensors go.

    Returns:
        Tensors on `device`. `logits_rows` are the rows that a token is sampled from.
    """

    def put(values: npt.NDArray[np.integer], dtype: npt.DTypeLike = np.int64) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(device)

    return StepBatch(
        token_ids=put(plan.token_ids),
        positions=put(row_positions(plan)),
        query_lens=put(plan.query_lens),
        context_lens=put(plan.context_lens),
        block_tables=put(plan.block_tables(), np.int32),
        state_slots=put(plan.slots),
        ngram_history=put(plan.history(history_len)),
        logits_rows=put(sampled_rows(plan)),
        window_starts=put(plan.window_starts),
        write_floors=put(plan.write_floors),
        max_query_len=int(plan.query_lens.max()),
        max_context_len=int(plan.context_lens.max()),
    )


def row_positions(plan: StepPlan) -> npt.NDArray[np.int64]:
    """Absolute position of every row, shape (num_tokens,)."""
    query_lens = plan.query_lens.astype(np.int64)
    starts = np.cumsum(query_lens) - query_lens
    first = plan.context_lens - query_lens - starts
    positions = np.repeat(first, query_lens)
    positions += np.arange(plan.num_tokens, dtype=np.int64)
    return positions


def sampled_rows(plan: StepPlan) -> npt.NDArray[np.int64]:
    """Rows of the step that end a request's part and get a token, shape (num_sampled,)."""
    last = np.cumsum(plan.query_lens, dtype=np.int64) - 1
    return last[plan.needs_sample]
