"""A device made of dictionaries that notices what a real one would silently get wrong.

Keys are stored per block and offset, window entries per ring slot, both with the position they
belong to. The model's prefix is read back through the block table, so that a wrong, stale or stolen
block changes the tokens. Window entries carry the number of layers up to which they are exact
(one layer is lost per missing neighbour, DeepSeek-V4.1 attention with `window - 1` earlier keys);
a key or a token computed from an inexact window is spoiled. With `keep_tokens` there is one more
ring for the decoder half, which outlives no request: a token is spoiled if a row that the decoder
half runs misses one of the neighbours it may see there.

Steps are queued by `launch` and executed by `collect`, one late if the engine overlaps: results
that are not yet there cannot be read.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from di_scheduler.config import SchedulerConfig
from di_scheduler.errors import SchedulerError
from di_scheduler.outcome import StepOutcome
from di_scheduler.plan import StepPlan
from di_scheduler.request import Int32Array
from di_scheduler.testing.model import FakeModel

SPOILED = 1 << 20


class FaultError(SchedulerError):
    """The fake device was told to do something that would corrupt memory."""


@dataclass(slots=True)
class _Launched:
    plan: StepPlan
    block_tables: Int32Array


@dataclass(slots=True)
class _Row:
    """One row on the device, with corrected lengths."""

    slot: int
    uid: int
    start: int
    token_ids: list[int]
    table: list[int]
    write_floor: int
    window_start: int
    late_start: int
    is_prompt: bool
    needs_sample: bool
    num_drafts: int


class FakeDevice:
    """Executes plans against memory of its own.

    Args:
        config: The scheduler's configuration.
        model: The function to compute.
        splits_rows: Whether the device redistributes rows among requests, as a device-side budget
            split does.
    """

    def __init__(
        self, config: SchedulerConfig, model: FakeModel, splits_rows: bool = False
    ) -> None:
        self.config = config
        self.model = model
        self.splits_rows = splits_rows
        self.ring_len = config.window_size + config.ring_slack
        self.keys: dict[tuple[int, int], tuple[int, int]] = {}
        self.rings: dict[int, dict[int, tuple[int, int]]] = {}
        self.late_rings: dict[int, dict[int, int]] = {}
        self.snapshots: dict[int, dict[int, tuple[int, int]]] = {}
        self._drafts: dict[int, list[int]] = {}
        self._committed = np.zeros(0, np.int64)  # by row of the step before
        self._newest: dict[int, int] = {}
        self._queue: deque[_Launched] = deque()
        self.num_rows_computed = 0
        self.max_position_end = 0

    def launch(self, plan: StepPlan) -> None:
        """Queues a step; block tables are read now, as an upload would."""
        self._queue.append(_Launched(plan, plan.block_tables().copy()))

    def collect(self) -> StepOutcome:
        """Executes the oldest queued step and returns its results."""
        step = self._queue.popleft()
        plan = step.plan
        for slot, _, snapshot_id in zip(
            plan.saves.slots, plan.saves.positions, plan.saves.snapshot_ids, strict=True
        ):
            self.snapshots[int(snapshot_id)] = dict(self.rings[int(slot)])
        if plan.is_placeholder:
            return StepOutcome(np.zeros((1, 1), np.int64), np.ones(1, np.int64))
        emitted, num_drafts, committed = [], [], []
        for row in self._rows(step):
            tokens = self._run(row)
            emitted.append(tokens)
            num_drafts.append(len(self._drafts.get(row.uid, [])))
            committed.append(len(row.token_ids) if row.is_prompt else len(tokens))
        self._committed = np.array(committed, np.int64)
        width = max([1, *map(len, emitted)])
        token_ids = np.full((plan.num_rows, width), -1, np.int64)
        for index, tokens in enumerate(emitted):
            token_ids[index, : len(tokens)] = tokens
        counts = np.array([len(tokens) for tokens in emitted], np.int64)
        return StepOutcome(token_ids, counts, np.array(num_drafts, np.int64))

    # --- repair -----------------------------------------------------------------------------

    def _rows(self, step: _Launched) -> list[_Row]:
        plan, rows = step.plan, []
        query_lens = self._split(plan)
        starts = plan.true_context_lens(self._committed, np.array(query_lens)) - query_lens
        offsets = np.cumsum(plan.query_lens) - plan.query_lens
        for index, slot in enumerate(plan.slots.tolist()):
            uid = int(plan.uids[index])
            reserved = int(plan.reserved_lens[index])
            start = int(starts[index])
            offset, length = int(offsets[index]), query_lens[index]
            known = plan.token_ids[offset : offset + int(plan.query_lens[index])].tolist()
            if plan.is_prompt[index]:
                tokens, num_drafts = known, 0
            else:
                first = known[0] if known[0] >= 0 else self._newest[uid]
                if known[0] >= 0 and reserved:
                    raise FaultError(f"uid {uid}: a token id is known too early")
                num_drafts = length - 1
                drafts = self._drafts.get(uid, [])
                if num_drafts > len(drafts):
                    raise FaultError(f"uid {uid}: {num_drafts} drafts wanted, {len(drafts)} there")
                tokens = [first, *drafts[:num_drafts]]
            if int(plan.restore_ids[index]) >= 0:
                self.rings[slot] = dict(self.snapshots[int(plan.restore_ids[index])])
                self.late_rings[slot] = {}
            elif plan.is_prompt[index] and not reserved and start in (0, plan.window_starts[index]):
                self.rings[slot], self.late_rings[slot] = {}, {}
            rows.append(
                _Row(
                    slot,
                    uid,
                    start,
                    tokens,
                    step.block_tables[index].tolist(),
                    int(plan.write_floors[index]),
                    int(plan.window_starts[index]),
                    int(plan.late_starts[index]),
                    bool(plan.is_prompt[index]),
                    bool(plan.needs_sample[index]),
                    num_drafts,
                )
            )
        return rows

    def _split(self, plan: StepPlan) -> list[int]:
        """Returns the rows of each request; the sum is the plan's whatever the split."""
        lengths: list[int] = plan.query_lens.tolist()
        if not self.splits_rows:
            return lengths
        decodes = np.flatnonzero(~plan.is_prompt).tolist()
        spare = sum(lengths[i] - 1 for i in decodes)
        # Deal the spare rows out again, starting somewhere else in every step.
        order = decodes[plan.step_id % max(1, len(decodes)) :] + decodes
        for index in decodes:
            lengths[index] = 1
        for index in dict.fromkeys(order):
            extra = min(spare, int(plan.max_query_lens[index]) - 1)
            lengths[index] += extra
            spare -= extra
        return lengths

    # --- forward ----------------------------------------------------------------------------

    def _run(self, row: _Row) -> list[int]:
        outputs: list[int] = []
        prefix = self._prefix(row)
        for index, token_id in enumerate(row.token_ids):
            position = row.start + index
            exact = self._write(row, position, token_id)
            exact &= self._run_decoder_half(row, position)
            prefix.append(token_id)
            self.num_rows_computed += 1
            self.max_position_end = max(self.max_position_end, position + 1)
            if row.needs_sample and index >= len(row.token_ids) - 1 - row.num_drafts:
                spoil = 0 if exact else 1
                token = self.model.next_token(np.array(prefix, np.int32)) + spoil
                outputs.append(token % self.model.vocab_size)
        if not row.needs_sample:
            return []
        accepted = 0
        drafts = row.token_ids[len(row.token_ids) - row.num_drafts :] if row.num_drafts else []
        while accepted < len(drafts) and drafts[accepted] == outputs[accepted]:
            accepted += 1
        emitted = outputs[: accepted + 1]
        self._newest[row.uid] = emitted[-1]
        base = prefix[: len(prefix) - len(drafts)] + emitted
        wanted = self.config.num_draft_tokens
        self._drafts[row.uid] = self.model.drafts(np.array(base, np.int32), wanted)
        return emitted

    def _prefix(self, row: _Row) -> list[int]:
        size, tokens = self.config.block_size, []
        for position in range(row.start):
            block = row.table[position // size] if position // size < len(row.table) else -1
            stored = self.keys.get((block, position % size))
            if block <= 0 or stored is None or stored[0] != position:
                raise FaultError(
                    f"uid {row.uid}: position {position} is not in block {block}: {stored}"
                )
            tokens.append(stored[1])
        return tokens

    def _write(self, row: _Row, position: int, token_id: int) -> bool:
        """Stores key and window entry of one position; returns whether the row is exact."""
        depth = self._exact_layers(row, position)
        layers = self.config.num_window_layers
        exact = depth >= layers
        size = self.config.block_size
        index = position // size
        block = row.table[index] if index < len(row.table) else -1
        if block <= 0:
            raise FaultError(f"uid {row.uid}: position {position} has no block")
        if position >= row.write_floor:
            self.keys[block, position % size] = (position, token_id if exact else SPOILED)
        elif self.keys.get((block, position % size)) != (position, token_id):
            raise FaultError(f"uid {row.uid}: shared position {position} holds something else")
        if layers:
            ring = self.rings.setdefault(row.slot, {})
            ring[position % self.ring_len] = (position, depth)
        return exact

    def _run_decoder_half(self, row: _Row, position: int) -> bool:
        """Stores the late window entry; returns whether the row saw all it should have."""
        if not self.config.keep_tokens or position < row.late_start:
            return True
        ring = self.late_rings.setdefault(row.slot, {})
        first = max(0, row.late_start, position - self.config.window_size + 1)
        is_whole = all(ring.get(p % self.ring_len) == p for p in range(first, position))
        ring[position % self.ring_len] = position
        return is_whole

    def _exact_layers(self, row: _Row, position: int) -> int:
        layers = self.config.num_window_layers
        ring = self.rings.get(row.slot, {})
        depth = layers
        for earlier in range(max(0, position - self.config.window_size + 1), position):
            stored = ring.get(earlier % self.ring_len)
            is_there = stored is not None and stored[0] == earlier and earlier >= row.window_start
            depth = min(depth, 1 + (stored[1] if is_there and stored is not None else -1))
        return depth
