"""What one step asks of the model: rows of several requests, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from di_engine.cache import BLOCK_TOKENS
from di_engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from di_engine.model.truncation import Truncation


def upload(
    values: NDArray[np.generic], device: torch.device, dtype: DTypeLike = np.int64
) -> Tensor:
    """Copies host numbers to the device without making the host wait for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of one request in one step, as plain Python values.

    A prompt chunk, a decode row and the rows of a speculative step differ only in how many token
    ids there are.

    Attributes:
        token_ids: Token ids of the rows, at least one.
        num_computed: Tokens of the request that are already in the caches. Passing a smaller number
            than after the last step takes the tokens behind it back.
        block_table: Block ids in logical order, enough for all tokens up to the last row.
        state_slot: Row of the per-request state (window rings, compressor state).
        history: Token ids before ``token_ids[0]``; only the last ``engram_max_ngram_size - 1`` are
            read, fewer only at the start of the request.
        logits: Which rows need logits.
        window_start: First position whose window key may be read. Above 0 when a prefix came from a
            cache without its window keys; at most `num_computed`.
        write_floor: Entries of the global cache completed below this position are not written: they
            are shared with other requests.
    """

    token_ids: Sequence[int]
    num_computed: int
    block_table: Sequence[int]
    state_slot: int
    history: Sequence[int] = ()
    logits: Literal["last", "all", "none"] = "last"
    window_start: int = 0
    write_floor: int = 0


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Rows of one step. Rows of one request are contiguous, requests in order.

    All tensors are int64 on the model's device unless stated. T rows, R requests.

    Attributes:
        token_ids: Shape [T].
        positions: Absolute 0-based position of each row, shape [T].
        query_lens: Rows of each request, all at least 1, shape [R].
        context_lens: Tokens of each request after the step, shape [R].
        block_tables: Block ids in logical order, -1 padded, int32, shape [R, B].
        state_slots: State slot of each request, distinct, shape [R].
        ngram_history: Token ids before each request's first row in reading order (the last column
            is the token just before it), -1 before the start, shape [R, max_ngram_size - 1].
        logits_rows: Rows that need logits, shape [L].
        window_starts: First position whose window key may be read, shape [R].
        write_floors: Global entries completed below this position are not written, shape [R].
        max_query_len: Largest entry of `query_lens`.
        max_context_len: Largest entry of `context_lens`.
        truncation: Which rows the decoder half runs and sees; None for all.
        host_positions: `positions` on the host; None where only the device knows them, because the
            step before is unread and took drafts back.
    """

    token_ids: Tensor
    positions: Tensor
    query_lens: Tensor
    context_lens: Tensor
    block_tables: Tensor
    state_slots: Tensor
    ngram_history: Tensor
    logits_rows: Tensor
    window_starts: Tensor
    write_floors: Tensor
    max_query_len: int
    max_context_len: int
    truncation: Truncation | None = None
    host_positions: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        """T."""
        return self.token_ids.shape[0]

    @property
    def num_requests(self) -> int:
        """R."""
        return self.query_lens.shape[0]

    @staticmethod
    def build(
        requests: Sequence[RequestRows],
        *,
        ngram_size: int = 0,
        device: torch.device | str = "cpu",
    ) -> StepBatch:
        """Lays out the rows of `requests`.

        Args:
            requests: At least one.
            ngram_size: ``engram_max_ngram_size`` of the model; 0 when it has no Engram layer.
            device: Where the model runs.

        Raises:
            InvalidRequestError: A request has no rows, too few blocks, too little history or a
                window start behind its first row, or two requests share a state slot.
        """
        if not requests:
            raise InvalidRequestError("a step needs at least one request: got none")
        if len({r.state_slot for r in requests}) != len(requests):
            raise InvalidRequestError("requests of one step must have distinct `state_slot` values")
        look_back = max(ngram_size - 1, 0)
        token_ids: list[int] = []
        positions: list[int] = []
        logits_rows: list[int] = []
        history: list[list[int]] = []
        for request in requests:
            _check_rows(request, look_back)
            start, length = len(token_ids), len(request.token_ids)
            token_ids.extend(request.token_ids)
            positions.extend(range(request.num_computed, request.num_computed + length))
            if request.logits == "all":
                logits_rows.extend(range(start, start + length))
            elif request.logits == "last":
                logits_rows.append(start + length - 1)
            known = list(request.history[-look_back:]) if look_back else []
            history.append([-1] * (look_back - len(known)) + known)

        query_lens = [len(r.token_ids) for r in requests]
        context_lens = [r.num_computed + len(r.token_ids) for r in requests]
        width = max(len(r.block_table) for r in requests)
        tables = [[*r.block_table, *([-1] * (width - len(r.block_table)))] for r in requests]

        def index(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return StepBatch(
            token_ids=index(token_ids),
            positions=index(positions),
            query_lens=index(query_lens),
            context_lens=index(context_lens),
            block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
            state_slots=index([r.state_slot for r in requests]),
            ngram_history=torch.tensor(history, dtype=torch.int64, device=device),
            logits_rows=index(logits_rows),
            window_starts=index([r.window_start for r in requests]),
            write_floors=index([r.write_floor for r in requests]),
            max_query_len=max(query_lens),
            max_context_len=max(context_lens),
            host_positions=np.array(positions, np.int64),
        )


def _check_rows(request: RequestRows, look_back: int) -> None:
    num_rows = len(request.token_ids)
    if num_rows == 0:
        raise InvalidRequestError("a request in a step needs at least one token id: got none")
    context_len = request.num_computed + num_rows
    num_blocks = -(-context_len // BLOCK_TOKENS)
    if len(request.block_table) < num_blocks:
        raise InvalidRequestError(
            f"{context_len} tokens need {num_blocks} blocks of {BLOCK_TOKENS}: "
            f"got {len(request.block_table)}"
        )
    needed = min(look_back, request.num_computed)
    if len(request.history) < needed:
        raise InvalidRequestError(
            f"`history` must hold the {needed} tokens before position {request.num_computed}: "
            f"got {len(request.history)}"
        )
    if not 0 <= request.window_start <= request.num_computed:
        raise InvalidRequestError(
            f"`window_start` must lie in 0..{request.num_computed} (`num_computed`): "
            f"{request.window_start}"
        )
