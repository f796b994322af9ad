"""From a step plan to the tensors of one forward pass."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from di_engine.model.batch import StepBatch, upload
from di_engine.model.truncation import Truncation
from di_engine.runner.slot_state import EarlierStep
from di_scheduler import StepPlan

__all__ = ["TruncationMode", "depends_on_device", "make_earlier_step", "make_step_batch", "upload"]


TruncationMode = Literal["off", "mask", "compact"]


def make_step_batch(
    plan: StepPlan,
    *,
    history_len: int,
    device: torch.device,
    truncation: TruncationMode = "off",
) -> StepBatch:
    """Builds the model's input as far as the host knows it.

    Args:
        plan: What to run; its rows are contiguous per request.
        history_len: Tokens before the first row that the n-gram lookup may need.
        device: Where the tensors go.
        truncation: What becomes of the rows before the plan's `late_starts`.

    Returns:
        Tensors on `device`. `logits_rows` are the rows that tokens are sampled from: the last of a
        prompt, every row of a decoding request.
    """

    def put(values: npt.NDArray[np.integer], dtype: npt.DTypeLike = np.int64) -> torch.Tensor:
        return upload(values, device, dtype)

    positions = _row_positions(plan)
    return StepBatch(
        token_ids=put(plan.token_ids),
        positions=put(positions),
        query_lens=put(plan.query_lens),
        context_lens=put(plan.context_lens),
        block_tables=put(plan.block_tables(), np.int32),
        state_slots=put(plan.slots),
        ngram_history=put(plan.history(history_len)),
        logits_rows=put(_sampled_rows(plan)),
        window_starts=put(plan.window_starts),
        write_floors=put(plan.write_floors),
        # A device may deal the rows out anew, up to what is reserved for each request.
        max_query_len=int(plan.max_query_lens.max()),
        max_context_len=int((plan.context_lens - plan.query_lens + plan.max_query_lens).max()),
        host_positions=positions,
        truncation=(
            None
            if truncation == "off"
            else Truncation.build(
                plan.late_starts,
                plan.context_lens - plan.query_lens,
                plan.query_lens,
                drops_rows=truncation == "compact",
                upload=put,
            )
        ),
    )


def depends_on_device(plan: StepPlan) -> bool:
    """Whether a step needs numbers that only the device has."""
    return bool((plan.token_ids < 0).any() or (plan.prev_rows >= 0).any())


def make_earlier_step(
    plan: StepPlan, *, history_len: int, num_draft_tokens: int, device: torch.device
) -> EarlierStep:
    """Builds what the repair of a step needs; arguments as in `make_step_batch`.

    Args:
        plan: What to run.
        history_len: Tokens before the first row that the n-gram lookup may need.
        num_draft_tokens: Most drafts of one request.
        device: Where the tensors go.
    """
    return EarlierStep(
        reserved_lens=upload(np.where(plan.prev_rows >= 0, plan.reserved_lens, 0), device),
        history=upload(plan.history(history_len + num_draft_tokens), device),
    )


def _row_positions(plan: StepPlan) -> npt.NDArray[np.int64]:
    """Absolute position of every row, shape (num_tokens,)."""
    query_lens = plan.query_lens.astype(np.int64)
    starts = np.cumsum(query_lens) - query_lens
    first = plan.context_lens - query_lens - starts
    positions = np.repeat(first, query_lens)
    positions += np.arange(plan.num_tokens, dtype=np.int64)
    return positions


def _sampled_rows(plan: StepPlan) -> npt.NDArray[np.int64]:
    """Rows of the step that a token is sampled from, shape (num_sampled,)."""
    ends = np.cumsum(plan.query_lens, dtype=np.int64)
    counts = np.where(plan.is_prompt, 1, plan.query_lens)[plan.needs_sample].astype(np.int64)
    last = ends[plan.needs_sample] - 1
    if len(counts) == counts.sum():
        return last
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows: npt.NDArray[np.int64] = np.repeat(last - counts + 1, counts) + within
    return rows
