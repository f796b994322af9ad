"""Commits what a step brought back: tokens, stops, cached blocks, and the slots of the dead."""

import numpy as np
import numpy.typing as npt

from di_scheduler.core import Core
from di_scheduler.hashing import extend_chain
from di_scheduler.outcome import RequestUpdate, StepOutcome, StepUpdate, update_without_rows
from di_scheduler.plan import StepPlan
from di_scheduler.request import (
    LENGTH,
    PREFILLED,
    RUNNING,
    STOP,
    BoolArray,
    Int64Array,
    Record,
    Status,
)
from di_scheduler.transfers import Transfers


class Accountant:
    """Books the outcome of steps.

    Args:
        core: The scheduler's state.
        transfers: Takes finished prompts away from a prefill rank.
    """

    def __init__(self, core: Core, transfers: Transfers | None) -> None:
        self._core = core
        self._transfers = transfers
        self._config = core.config

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> StepUpdate:
        """Books `outcome` and returns the news; `plan` is the oldest uncommitted plan."""
        core, table = self._core, self._core.table
        slots = plan.slots.astype(np.int64)
        num_tokens = np.asarray(outcome.num_tokens).astype(np.int64)
        token_ids = np.asarray(outcome.token_ids).astype(np.int64, copy=False)
        is_live = (table.uid[slots] == plan.uids) & (table.status[slots] == RUNNING)
        emitting = (is_live & plan.needs_sample).nonzero()[0]
        update, emitted = self._emit(plan, emitting, token_ids, num_tokens, outcome.query_lens)
        advance = plan.query_lens.astype(np.int64)
        advance[emitting] = np.where(plan.is_prompt[emitting], advance[emitting], emitted)
        live = slots[is_live]
        table.num_computed[live] += advance[is_live]
        self._close(plan, outcome, slots, is_live)
        core.committed_step = plan.step_id
        self._register_full_blocks(live)
        finished = update.finished.nonzero()[0].tolist()
        for index in finished:
            record = plan.records[int(update.rows[index])]
            self._leave(record, update.finish_reasons[index])
        if not is_live.all():
            self._take_late_tokens(plan, np.flatnonzero(~is_live), token_ids, num_tokens)
        core.retire_zombies()
        update.others.extend(core.terminal)
        core.terminal.clear()
        return update

    def drop(self, plan: StepPlan, reason: str, message: str) -> None:
        """Closes a failed step and ends every request in it."""
        core = self._core
        core.committed_step = plan.step_id
        for record in plan.records:
            if core.by_uid.get(record.uid) is record:
                core.end(record, reason, message)
        core.retire_zombies()

    def _leave(self, record: Record, reason: str) -> None:
        self._core.leave(record, reason)
        if reason == PREFILLED and self._transfers is not None:
            self._transfers.start_send(record)

    # --- tokens and stops -------------------------------------------------------------------

    def _emit(
        self,
        plan: StepPlan,
        rows: Int64Array,
        token_ids: Int64Array,
        num_tokens: Int64Array,
        query_lens: npt.NDArray[np.integer] | None,
    ) -> tuple[StepUpdate, Int64Array]:
        """Appends the tokens of `rows` to the table, cut at the first stop."""
        core, table = self._core, self._core.table
        if len(rows) == 0:
            return update_without_rows([]), np.empty(0, np.int64)
        records = plan.records
        slots, counts = plan.slots.astype(np.int64), num_tokens
        if len(rows) < plan.num_rows:
            slots, counts, token_ids = slots[rows], counts[rows], token_ids[rows]
            records = [records[row] for row in rows.tolist()]
        width = int(counts.max())
        token_ids = token_ids[:, :width]
        # numpy broadcasts along the long axis several times faster than along a handful of drafts.
        columns = np.ascontiguousarray(token_ids.T)
        emitted, reasons = self._cut(slots, columns, counts)
        if self._config.role == "prefill":
            reasons = {index: reasons.get(index, PREFILLED) for index in range(len(slots))}
        finished = np.zeros(len(slots), np.bool_)
        finished[list(reasons)] = True
        before = table.num_tokens[slots]
        # What lies behind the tokens that count is never read, and overwritten by the next step.
        ends = slots * table.token_ids.shape[1] + before
        table.token_ids.reshape(-1)[ends + np.arange(width)[:, None]] = columns
        after = before + emitted
        table.num_tokens[slots] = after
        prompt_lens = table.prompt_len[slots]
        drafts = self._verified_drafts(plan, query_lens)[rows]
        accepted = counts - 1
        core.counters.output_tokens += int(emitted.sum())
        core.counters.draft_tokens += int(drafts.sum())
        core.counters.accepted_tokens += int(accepted.sum())
        update = StepUpdate(
            rows=rows,
            token_ids=token_ids,
            num_new_tokens=emitted,
            finished=finished,
            finish_reasons=reasons,
            num_prompt_tokens=prompt_lens,
            num_output_tokens=after - prompt_lens,
            num_draft_tokens=drafts,
            num_accepted_tokens=accepted,
            records=records,
        )
        return update, emitted

    def _cut(
        self, slots: Int64Array, columns: Int64Array, counts: Int64Array
    ) -> tuple[Int64Array, dict[int, str]]:
        """Finds the first token that ends each request; later ones do not count.

        Args:
            slots: State slots, shape (U,), int64.
            columns: Token ids, one line per place in the step, shape (W, U), int64.
            counts: Emitted tokens, shape (U,), int64.

        Returns:
            Tokens that count, and why a request ends, by index.
        """
        table = self._core.table
        room = table.len_limit[slots] - table.num_tokens[slots]
        emitted = np.minimum(counts, room)
        reasons = dict.fromkeys((counts >= room).nonzero()[0].tolist(), LENGTH)
        stop_ids = table.stop_ids[slots]
        is_stop: BoolArray = columns == stop_ids[:, 0]
        for number in range(1, stop_ids.shape[1]):
            is_stop |= columns == stop_ids[:, number]
        # Few, and for each request in the order of its tokens.
        for place in is_stop.reshape(-1).nonzero()[0].tolist():
            column, index = divmod(place, len(slots))
            slot = slots[index]
            length = table.num_tokens[slot] + column + 1
            if column < emitted[index] and length > table.min_len[slot]:
                emitted[index] = column + 1
                reasons[index] = STOP
        return emitted, reasons

    def _verified_drafts(
        self, plan: StepPlan, query_lens: npt.NDArray[np.integer] | None
    ) -> Int64Array:
        """Returns the drafts that each row verified, by the device's split if it made one."""
        if query_lens is None:
            return plan.draft_lens.astype(np.int64)
        return np.where(plan.is_prompt, 0, np.asarray(query_lens) - 1).astype(np.int64)

    def _take_late_tokens(
        self, plan: StepPlan, rows: Int64Array, token_ids: Int64Array, num_tokens: Int64Array
    ) -> None:
        """Keeps the tokens of requests that were preempted while this step was in flight.

        They are as good as any: the step ran before the blocks were handed to somebody else.
        """
        for row in rows.tolist():
            record = self._core.by_uid.get(int(plan.uids[row]))
            if record is None or not plan.needs_sample[row]:
                continue
            assert record.status is Status.WAITING, "a row without a slot belongs to no queue"
            self._append_waiting(record, row, token_ids[row, : num_tokens[row]].tolist())

    def _append_waiting(self, record: Record, row: int, token_ids: list[int]) -> None:
        core = self._core
        kept: list[int] = []
        reason: str | None = None
        for token_id in token_ids:
            kept.append(token_id)
            length = len(record.token_ids) + len(kept)
            if token_id in record.stop_ids and (
                length > record.prompt_len + record.request.min_tokens
            ):
                reason = STOP
            elif length >= record.len_limit:
                reason = LENGTH
            if reason is not None:
                break
        record.token_ids = np.concatenate((record.token_ids, np.array(kept, np.int32)))
        core.waiting.grew(len(kept))
        core.counters.output_tokens += len(kept)
        core.terminal.append(
            RequestUpdate(
                request_id=record.request_id,
                row=row,
                token_ids=kept,
                finished=reason is not None,
                finish_reason=reason,
                message="",
                num_prompt_tokens=record.prompt_len,
                num_output_tokens=len(record.token_ids) - record.prompt_len,
                num_cached_tokens=record.num_cached_tokens,
            )
        )
        if reason is not None:
            core.leave(record, reason)

    # --- books ------------------------------------------------------------------------------

    def _close(
        self, plan: StepPlan, outcome: StepOutcome, slots: Int64Array, is_live: BoolArray
    ) -> None:
        """Ends the reservation of rows that no newer plan has taken over."""
        table = self._core.table
        is_newest = (table.last_step[slots] == plan.step_id) & (table.uid[slots] == plan.uids)
        closed = slots[is_newest]
        table.in_flight[closed] = 0
        table.in_flight_samples[closed] = False
        if outcome.num_drafts is not None:
            told = is_newest & is_live & plan.needs_sample
            most = self._config.num_draft_tokens
            drafts = np.asarray(outcome.num_drafts)[told].astype(np.int64)
            table.num_drafts[slots[told]] = np.clip(drafts, 0, most)

    def _register_full_blocks(self, slots: Int64Array) -> None:
        """Makes blocks findable whose every position is committed."""
        if not self._config.prefix_cache:
            return
        pool, table, size = self._core.pool, self._core.table, self._config.block_size
        num_full = table.num_computed[slots] // size
        due = num_full > table.num_registered[slots]
        if not due.any():
            return
        slots, num_full = slots[due], num_full[due]
        firsts = table.num_registered[slots].tolist()
        for slot, first, count in zip(slots.tolist(), firsts, num_full.tolist(), strict=True):
            record = table.record(slot)
            hashes = record.block_hashes
            extend_chain(hashes, record.chain_root, table.token_ids[slot, : count * size], size)
            block_ids = table.blocks[slot, first:count].tolist()
            for block_id, block_hash in zip(block_ids, hashes[first:count], strict=True):
                pool.register(block_id, block_hash)
        table.num_registered[slots] = num_full
