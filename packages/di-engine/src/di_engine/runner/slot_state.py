"""What each step leaves on the device for the next one to repair its inputs from.

A step that is planned while the one before it is unread does not know which tokens that one made,
nor, with drafts, how many. Both are on the device by the time the planned step runs: rows of the
tables below, one per state slot, written by sampling and read by the following launch. Only tensor
operations are used, no value travels to the host (the rules are those of DeepInfer 0.1.0
`compute_seqlens_k_zos.py`, `gather_input_ids_zos.py` and `gather_engram_tokens_zos.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from di_engine.model.batch import StepBatch
from di_spec import torch as spec_torch

__all__ = ["EarlierStep", "SlotState"]


@dataclass(frozen=True, slots=True)
class EarlierStep:
    """What a plan says about the unread step before it. All int64 on the device.

    Attributes:
        reserved_lens: Rows that the earlier step holds for each request, 0 for requests that are
            not in it, shape [R].
        history: Token ids before each request's first row at most, -1 where the host does not know
            them, shape [R, n + K] for a look-back of `n` and `K` drafts.
    """

    reserved_lens: Tensor
    history: Tensor


class SlotState:
    """Newest tokens of the request in each state slot.

    Args:
        num_slots: State slots, the reserved slot 0 included.
        num_draft_tokens: Most drafts of one request, `K`.
        device: Where the model runs.

    Attributes:
        emitted: Tokens that the slot's last step emitted, in order, shape [S, K + 1].
        num_emitted: How many of them, shape [S].
        num_committed: Positions that this step made part of the request: all rows of a prompt
            chunk, accepted drafts plus one for a decode row, shape [S].
        drafts: Drafts to verify next, shape [S, K].
        survival: Probability that each of them is reached and accepted, float64, shape [S, K].
    """

    def __init__(self, num_slots: int, num_draft_tokens: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.num_draft_tokens = num_draft_tokens
        self.emitted = zeros(num_slots, num_draft_tokens + 1)
        self.num_emitted = zeros(num_slots)
        self.num_committed = zeros(num_slots)
        self.drafts = zeros(num_slots, num_draft_tokens)
        self.survival = zeros(num_slots, num_draft_tokens).double()

    def record_newest(self, slots: Tensor, token_ids: Tensor) -> None:
        """Notes the one token that each slot's request emitted; enough where `K` is 0.

        Args:
            slots: State slots of the rows that were sampled, distinct, int64 [R].
            token_ids: int64 [R].
        """
        self.emitted[slots, 0] = token_ids

    def record(
        self,
        slots: Tensor,
        emitted: Tensor,
        num_emitted: Tensor,
        num_committed: Tensor,
        drafts: Tensor,
        survival: Tensor | None = None,
    ) -> None:
        """Notes the results of a step; modifies the tables.

        Args:
            slots: State slots of the step's rows, distinct, int64 [R].
            emitted: Tokens in order, padded with anything, int64 [R, at most K + 1].
            num_emitted: int64 [R]; 0 for a chunk that does not end its prompt.
            num_committed: int64 [R].
            drafts: int64 [R, K].
            survival: float64 [R, K]; needed where budgets are split on the device.
        """
        self.emitted[slots, : emitted.shape[1]] = emitted
        self.num_emitted[slots] = num_emitted
        self.num_committed[slots] = num_committed
        self.drafts[slots] = drafts
        if survival is not None:
            self.survival[slots] = survival

    def split(self, batch: StepBatch, limits: Tensor, num_rows: int) -> StepBatch:
        """Gives the rows of a step to the requests whose drafts are most likely accepted.

        Args:
            batch: Inputs as planned, not repaired; decoding requests come first.
            limits: Most drafts of each decoding request, int64 [D].
            num_rows: Rows of all decoding requests together, at least D.

        Returns:
            The step with the same number of rows, dealt out anew. Rows that were drafts have an
            unknown token.
        """
        num_decodes = limits.shape[0]
        starts = batch.query_lens.cumsum(0) - batch.query_lens
        anchors = batch.token_ids[starts[:num_decodes]]
        first_positions = batch.context_lens - batch.query_lens
        places = torch.arange(self.num_draft_tokens, device=limits.device)
        survival = self.survival[batch.state_slots[:num_decodes]]
        # Drafts that must not be verified come behind those that cannot be accepted.
        survival = torch.where(places < limits[:, None], survival, -1.0)
        decode_lens = spec_torch.split_budget(survival, num_rows)
        query_lens = torch.cat([decode_lens, batch.query_lens[num_decodes:]])
        row_request = torch.repeat_interleave(
            torch.arange(num_decodes, device=limits.device), decode_lens, output_size=num_rows
        )
        new_starts = decode_lens.cumsum(0) - decode_lens
        offset = torch.arange(num_rows, device=limits.device) - new_starts[row_request]
        token_ids = torch.where(offset == 0, anchors[row_request], -1)
        positions = first_positions[:num_decodes][row_request] + offset
        return replace(
            batch,
            token_ids=torch.cat([token_ids, batch.token_ids[num_rows:]]),
            positions=torch.cat([positions, batch.positions[num_rows:]]),
            query_lens=query_lens,
            context_lens=first_positions + query_lens,
        )

    def repair(self, batch: StepBatch, earlier: EarlierStep | None) -> StepBatch:
        """Returns the step with the tokens and lengths that the one before it has brought about.

        Args:
            batch: Inputs as planned: tokens that the host does not know are -1, and lengths assume
                that every reserved row is committed.
            earlier: The reservation; None when `K` is 0, where all of it is committed.
        """
        if earlier is None:
            return self._put_newest(batch)
        starts = batch.query_lens.cumsum(0) - batch.query_lens
        requests = torch.arange(batch.num_requests, device=starts.device)
        row_request = torch.repeat_interleave(
            requests, batch.query_lens, output_size=batch.num_rows
        )
        batch = self._repair_tokens(batch, starts, row_request)
        return self._repair_lengths(batch, earlier, row_request)

    def _put_newest(self, batch: StepBatch) -> StepBatch:
        """The one unknown token of a request is its only row."""
        newest = self.emitted[batch.state_slots, 0]
        if batch.num_rows > batch.num_requests:
            newest = torch.repeat_interleave(newest, batch.query_lens, output_size=batch.num_rows)
        return replace(batch, token_ids=torch.where(batch.token_ids < 0, newest, batch.token_ids))

    def _repair_tokens(self, batch: StepBatch, starts: Tensor, row_request: Tensor) -> StepBatch:
        """Row 0 takes the newest token of its slot, row `j` its draft `j - 1`."""
        slots = batch.state_slots
        newest = (self.num_emitted[slots] - 1).clamp(min=0)
        tokens = torch.cat((self.emitted[slots, newest][:, None], self.drafts[slots]), dim=1)
        offset = torch.arange(batch.num_rows, device=starts.device) - starts[row_request]
        found = tokens[row_request, offset.clamp(max=self.num_draft_tokens)]
        return replace(batch, token_ids=torch.where(batch.token_ids < 0, found, batch.token_ids))

    def _repair_lengths(
        self, batch: StepBatch, earlier: EarlierStep, row_request: Tensor
    ) -> StepBatch:
        """Takes back what was reserved and not committed: `k - (r - e)`; same for the history."""
        slots, reserved = batch.state_slots, earlier.reserved_lens
        has_earlier = reserved > 0
        surplus = torch.where(has_earlier, reserved - self.num_committed[slots], 0)

        look_back = batch.ngram_history.shape[1]
        index = torch.arange(look_back, device=slots.device)
        column = self.num_draft_tokens + index - surplus[:, None]
        known = earlier.history.gather(1, column)
        # The request's tokens end, for the host, where the earlier step began to emit.
        emitted_index = index - look_back - surplus[:, None] + reserved[:, None] - 1
        is_emitted = (known < 0) & has_earlier[:, None] & (emitted_index >= 0)
        emitted = self.emitted[slots].gather(1, emitted_index.clamp(0, self.num_draft_tokens))
        return replace(
            batch,
            positions=batch.positions - surplus[row_request],
            host_positions=None,
            context_lens=batch.context_lens - surplus,
            ngram_history=torch.where(is_emitted, emitted, known),
        )
