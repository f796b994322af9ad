"""Builds one step: decode rows, prompt chunks, the blocks they need."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from di_scheduler.admission import Admission
from di_scheduler.core import Core
from di_scheduler.plan import StepKind, StepPlan
from di_scheduler.protocols import RowBudget, as_row_counts
from di_scheduler.request import NO_RESOURCES, RUNNING, BoolArray, Int64Array, Record, Status
from di_scheduler.snapshot_policy import SnapshotPolicy
from di_scheduler.table import RequestTable
from di_scheduler.transfers import Transfers


@dataclass(slots=True)
class Rows:
    """Rows of a step under construction, all arrays int64 and of equal length."""

    slots: Int64Array
    starts: Int64Array
    query_lens: Int64Array
    max_query_lens: Int64Array

    def keep(self, mask: np.ndarray) -> "Rows":
        """Returns the rows selected by a boolean mask."""
        return Rows(
            self.slots[mask], self.starts[mask], self.query_lens[mask], self.max_query_lens[mask]
        )


_NONE = np.empty(0, np.int64)
NO_ROWS = Rows(_NONE, _NONE, _NONE, _NONE)


@dataclass(slots=True)
class Growth:
    """Block-table entries that a step added."""

    slots: Int64Array
    indices: Int64Array
    block_ids: Int64Array


class Planner:
    """Chooses rows and reserves their blocks.

    Args:
        core: The scheduler's state.
        row_budget: Chooses rows per decoding request.
        transfers: Where blocks may come from besides this rank.
    """

    def __init__(self, core: Core, row_budget: RowBudget, transfers: Transfers | None) -> None:
        self._core = core
        self._config = core.config
        self._budget = row_budget
        self.admission = Admission(core, transfers)
        self._snapshots = SnapshotPolicy(core)
        self._growth: list[Growth] = []
        self._restores: dict[int, int] = {}
        self._has_preempted = False

    def outlook(self) -> tuple[bool, bool, bool]:
        """Returns what this rank could do now; changes nothing.

        Returns:
            Whether it would run prompt rows, whether some request decodes, and whether a prompt
            is half computed.
        """
        _, _, is_prefilling = self._running()
        has_partial = bool(is_prefilling.any())
        has_decodes = not is_prefilling.all()
        may_start = self._core.waiting.head() is not None and self.admission.may_admit()
        return has_partial or may_start, has_decodes, has_partial

    def build(self, kind: StepKind) -> StepPlan | None:
        """Builds a step of one kind; None if there are no rows for it."""
        self._restores, self._has_preempted = {}, False
        if self._config.role == "decode":
            self._admit_loads()
        slots, starts, is_prefilling = self._running()
        decodes = chunks = NO_ROWS
        if kind != "prompt":
            decodes = self._decode_rows(slots, starts, ~is_prefilling)
        if kind != "decode":
            chunks = self._chunk_rows(slots[is_prefilling], decodes)
        if len(decodes.slots) + len(chunks.slots) == 0:
            return None
        return self._assemble(kind, decodes, chunks)

    # --- which requests ---------------------------------------------------------------------

    def _running(self) -> tuple[Int64Array, Int64Array, BoolArray]:
        """Returns slot, first position at most (`C + r`) and phase of each running request."""
        table = self._core.table
        slots = (table.status == RUNNING).nonzero()[0]
        starts = table.num_computed[slots] + table.in_flight[slots]
        return slots, starts, starts < table.prefill_end[slots]

    # --- decode -----------------------------------------------------------------------------

    def _decode_rows(self, slots: Int64Array, starts: Int64Array, decodes: BoolArray) -> Rows:
        table = self._core.table
        # A step in flight adds at least one token, so a request that has room for one token only
        # certainly ends there (DeepInfer 0.1.0 verifies K drafts for it in vain).
        room = table.len_limit[slots] - table.num_tokens[slots] - table.in_flight_samples[slots]
        selected = decodes & (room > 0)
        if not selected.all():
            slots, starts, room = slots[selected], starts[selected], room[selected]
        if len(slots) == 0:
            return NO_ROWS
        max_rows = np.minimum(1 + table.num_drafts[slots], room)
        counts = as_row_counts(self._budget.rows(slots, max_rows), max_rows)
        reserved = max_rows if self._budget.splits_on_device else counts
        rows = Rows(slots, starts, counts, reserved)
        missing = self._missing_blocks(rows)
        num_missing = int(missing.sum())
        if num_missing > self._core.pool.num_available:
            rows = self._make_room(rows)
            missing = self._missing_blocks(rows)
            num_missing = int(missing.sum())
        if num_missing:
            self._grow(rows.slots, missing, num_missing)
        return rows

    def _missing_blocks(self, rows: Rows) -> Int64Array:
        size = self._config.block_size
        ends = rows.starts + rows.max_query_lens
        missing = -(-ends // size) - self._core.table.num_blocks[rows.slots]
        missing[missing < 0] = 0
        return missing

    def _grow(self, slots: Int64Array, missing: Int64Array, total: int) -> None:
        table = self._core.table
        growing = missing.nonzero()[0]
        slots, missing = slots[growing], missing[growing]
        block_ids = self._core.pool.allocate(total)
        owners, indices = slots, table.num_blocks[slots]
        if total > len(slots):
            # Position of each new block within its own request's share.
            within = np.arange(total) - np.repeat(np.cumsum(missing) - missing, missing)
            owners = np.repeat(slots, missing)
            indices = np.repeat(indices, missing) + within
        table.blocks[owners, indices] = block_ids
        table.num_blocks[slots] += missing
        self._growth.append(Growth(owners, indices, block_ids.astype(np.int64)))

    def _make_room(self, rows: Rows) -> Rows:
        """Gives up drafts, then requests, until the remaining rows have their blocks.

        The youngest request of the lowest priority goes first; the oldest one therefore always
        advances and no two requests can keep preempting each other.
        """
        core = self._core
        ones = np.ones_like(rows.query_lens)
        rows = Rows(rows.slots, rows.starts, ones, ones)
        records = [core.table.record(slot) for slot in self._running()[0].tolist()]
        records.sort(key=lambda record: record.sort_key)
        while len(rows.slots) and self._missing_blocks(rows).sum() > core.pool.num_available:
            victim = records[-1]
            slot = victim.slot
            may_wait = bool(core.uncommitted) or self._others_hold_blocks()
            if self._config.preemption == "abort" or len(records) == 1:
                if not may_wait:
                    core.end(victim, NO_RESOURCES, self._exhausted_message(slot))
            else:
                core.preempt(victim)
                self._has_preempted = True
            records.pop()
            rows = rows.keep(rows.slots != slot)
        return rows

    def _others_hold_blocks(self) -> bool:
        status = self._core.table.status
        return bool(((status == Status.LOADING) | (status == Status.SENDING)).any())

    def _exhausted_message(self, slot: int) -> str:
        pool, table = self._core.pool, self._core.table
        return (
            f"{int(table.num_tokens[slot])} tokens in {int(table.num_blocks[slot])} blocks cannot "
            f"grow: {pool.num_available} of {pool.total} blocks are available; enlarge the pool, "
            f"lower `max_tokens` or run fewer requests at a time"
        )

    # --- prompts ----------------------------------------------------------------------------

    def _chunk_rows(self, prefilling: Int64Array, decodes: Rows) -> Rows:
        table = self._core.table
        if len(prefilling) == 0 and len(self._core.waiting) == 0:
            return NO_ROWS
        budget = self._config.max_tokens_per_step - int(decodes.max_query_lens.sum())
        chosen: list[tuple[int, int, int]] = []
        # Making room for decode rows may have taken the slot of a half-computed prompt.
        kept = prefilling[table.status[prefilling] == RUNNING]
        records = [table.record(slot) for slot in kept.tolist()]
        for record in sorted(records, key=lambda record: record.sort_key):
            budget -= self._add_chunk(record, budget, chosen)
        # What was just preempted must not take its blocks back in the same step.
        while budget > 0 and not self._has_preempted:
            head = self._core.waiting.head()
            if head is None or not self._may_start(head, budget):
                break
            admitted = self._admit()
            if admitted is None:
                break
            if admitted.status is Status.RUNNING:
                budget -= self._add_chunk(admitted, budget, chosen)
        if not chosen:
            return NO_ROWS
        slots, starts, counts = np.array(chosen, np.int64).T
        self._core.counters.prompt_tokens += int(counts.sum())
        return Rows(slots, starts, counts, counts)

    def _admit_loads(self) -> None:
        """Starts the transfers of requests that a decode rank has room for."""
        while self._admit() is not None:
            pass

    def _admit(self) -> Record | None:
        """Admits the next request and notes its blocks and the snapshot it starts from."""
        admitted = self.admission.try_admit()
        if admitted is None:
            return None
        table = self._core.table
        record, snapshot_id = admitted
        if snapshot_id >= 0:
            self._restores[record.slot] = snapshot_id
        count = int(table.num_blocks[record.slot])
        block_ids = table.blocks[record.slot, :count].astype(np.int64)
        self._growth.append(Growth(np.full(count, record.slot), np.arange(count), block_ids))
        return record

    def _may_start(self, record: Record, budget: int) -> bool:
        return self._config.chunked_prefill or len(record.token_ids) <= budget

    def _add_chunk(self, record: Record, budget: int, chosen: list[tuple[int, int, int]]) -> int:
        """Appends the next chunk of a prompt and returns its length, 0 if there is no room."""
        table, slot = self._core.table, record.slot
        start = int(table.num_computed[slot] + table.in_flight[slot])
        left = int(table.prefill_end[slot]) - start
        length = min(left, budget)
        if length <= 0 or (length < left and not self._config.chunked_prefill):
            return 0
        for boundary in record.checkpoints:
            if start < boundary < start + length:
                length = boundary - start
                break
        chosen.append((slot, start, length))
        return length

    # --- the plan ---------------------------------------------------------------------------

    def _assemble(self, kind: StepKind, decodes: Rows, chunks: Rows) -> StepPlan:
        core, table = self._core, self._core.table
        num_decodes = len(decodes.slots)
        if len(chunks.slots):
            slots = np.concatenate((decodes.slots, chunks.slots))
            starts = np.concatenate((decodes.starts, chunks.starts))
            query_lens = np.concatenate((decodes.query_lens, chunks.query_lens))
            reserved = np.concatenate((decodes.max_query_lens, chunks.max_query_lens))
        else:
            slots, starts = decodes.slots, decodes.starts
            query_lens, reserved = decodes.query_lens, decodes.max_query_lens
        ends = starts + query_lens
        is_prompt = np.arange(len(slots)) >= num_decodes
        in_flight = table.in_flight[slots]
        # Loads that started in a turn without rows report their blocks with the next plan.
        growth, self._growth = self._growth, []
        plan = StepPlan(
            step_id=core.next_step,
            kind=kind,
            is_placeholder=False,
            slots=slots.astype(np.int32),
            uids=table.uid[slots],
            query_lens=query_lens.astype(np.int32),
            context_lens=ends.astype(np.int32),
            reserved_lens=in_flight.astype(np.int32),
            prev_rows=np.where(in_flight > 0, core.row_of_slot[slots], -1).astype(np.int32),
            max_query_lens=reserved.astype(np.int32),
            draft_lens=np.where(is_prompt, 0, query_lens - 1).astype(np.int32),
            is_prompt=is_prompt,
            needs_sample=~is_prompt | (ends >= table.prefill_end[slots]),
            token_ids=known_token_ids(table, slots, starts, query_lens, num_decodes),
            write_floors=table.write_floor[slots],
            window_starts=table.window_start[slots],
            late_starts=np.where(is_prompt, table.late_start[slots], np.int32(0)),
            restore_ids=self._restore_ids(slots),
            saves=self._snapshots.saves(slots, starts, num_decodes),
            new_block_slots=_joined([g.slots for g in growth]),
            new_block_indices=_joined([g.indices for g in growth]),
            new_block_ids=_joined([g.block_ids for g in growth]),
            records=cast("list[Record]", list(map(table.records.__getitem__, slots.tolist()))),
            table=table,
        )
        self._mark_in_flight(plan, slots, reserved)
        return plan

    def _mark_in_flight(self, plan: StepPlan, slots: Int64Array, reserved: Int64Array) -> None:
        core, table, config = self._core, self._core.table, self._config
        table.in_flight[slots] = reserved
        table.in_flight_samples[slots] = plan.needs_sample
        table.last_step[slots] = plan.step_id
        core.row_of_slot[slots] = np.arange(len(slots))
        after_prompt = config.num_draft_tokens if config.drafts_after_prefill else 0
        table.num_drafts[slots] = np.where(plan.is_prompt, after_prompt, config.num_draft_tokens)

    def _restore_ids(self, slots: Int64Array) -> np.ndarray:
        restore_ids = np.full(len(slots), -1, np.int32)
        for slot, snapshot_id in self._restores.items():
            restore_ids[slots == slot] = snapshot_id
        return restore_ids


def known_token_ids(
    table: RequestTable,
    slots: Int64Array,
    starts: Int64Array,
    query_lens: Int64Array,
    num_decodes: int,
) -> np.ndarray:
    """Returns the token ids of a step as far as the host knows them, else -1, int32."""
    ends = query_lens.cumsum()
    offsets = ends - query_lens
    token_ids = np.full(ends[-1], -1, np.int32)
    known = (starts[:num_decodes] < table.num_tokens[slots[:num_decodes]]).nonzero()[0]
    token_ids[offsets[known]] = table.token_ids[slots[known], starts[known]]
    for row in range(num_decodes, len(slots)):
        offset, start, length = int(offsets[row]), int(starts[row]), int(query_lens[row])
        source = table.token_ids[slots[row], start : start + length]
        token_ids[offset : offset + length] = source
    return token_ids


def _joined(parts: list[Int64Array]) -> np.ndarray:
    if not parts:
        return np.empty(0, np.int32)
    if len(parts) == 1:
        return parts[0].astype(np.int32)
    return np.concatenate(parts).astype(np.int32)
