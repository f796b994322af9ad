"""The state that planning, admission and accounting share, and how a request leaves it."""

from collections import deque
from dataclasses import asdict, dataclass

import numpy as np

from di_scheduler.block_pool import BlockPool
from di_scheduler.config import SchedulerConfig
from di_scheduler.errors import IntegrityError
from di_scheduler.outcome import RequestUpdate
from di_scheduler.plan import StepPlan
from di_scheduler.protocols import KVConnector
from di_scheduler.request import FINAL_STATUSES, PREFILLED, Record, Status
from di_scheduler.snapshots import SnapshotPool
from di_scheduler.table import RequestTable
from di_scheduler.waiting import WaitingQueue


@dataclass(slots=True)
class Counters:
    """Monotonic figures since the scheduler was made.

    Attributes:
        accepted: Requests accepted by `add`.
        finished: Requests that ended, whatever the reason.
        aborted: Of those, the ones that ended with `abort`.
        preempted: Times a request lost its blocks and was queued again.
        steps: Steps planned, placeholders included.
        placeholder_steps: Steps in which this rank had nothing to run.
        prompt_tokens: Prompt rows planned, including recomputed ones.
        output_tokens: Tokens emitted.
        cache_queries: Tokens of admitted prompts that were looked up in the prefix cache.
        cache_hits: Of those, tokens whose blocks were found.
        external_hits: Tokens whose KV was loaded through the connector.
        replayed_tokens: Tokens computed again only to make the windows exact.
        snapshot_saves: Window rings saved.
        snapshot_restores: Window rings restored.
        draft_tokens: Drafts verified.
        accepted_tokens: Drafts accepted.
    """

    accepted: int = 0
    finished: int = 0
    aborted: int = 0
    preempted: int = 0
    steps: int = 0
    placeholder_steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    external_hits: int = 0
    replayed_tokens: int = 0
    snapshot_saves: int = 0
    snapshot_restores: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def as_dict(self) -> dict[str, int]:
        """Returns all figures by name."""
        return asdict(self)


class Core:
    """Tables, pools, queues and books of one scheduler.

    Attributes:
        by_id: Unfinished requests by the caller's name.
        by_uid: Unfinished requests by unique number.
        uncommitted: Plans that were handed out and not yet committed, oldest first; at most two.
        committed_step: Number of the newest committed step; steps are numbered from 1.
        row_of_slot: Row of each slot's request in the newest plan that contains it.
        terminal: Terminal views that no update has delivered yet.
    """

    def __init__(self, config: SchedulerConfig, connector: KVConnector | None) -> None:
        self.config = config
        self.connector = connector
        self.table = RequestTable(config)
        self.snapshots = SnapshotPool(config.num_snapshot_slots)
        self.pool = BlockPool(config.num_blocks, on_evict=self.snapshots.drop)
        self.waiting = WaitingQueue()
        self.by_id: dict[str, Record] = {}
        self.by_uid: dict[int, Record] = {}
        self.uncommitted: deque[StepPlan] = deque()
        self.committed_step = 0
        self.next_step = 1
        self.row_of_slot = np.full(config.state_slots, -1, np.int64)
        self.zombies: list[int] = []
        self.terminal: list[RequestUpdate] = []
        self.counters = Counters()

    @property
    def num_running(self) -> int:
        """Requests that count against `max_running`."""
        status = self.table.status
        return int(((status == Status.RUNNING) | (status == Status.LOADING)).sum())

    def is_in_flight(self, slot: int) -> bool:
        """Returns whether an uncommitted plan contains the slot's request."""
        return bool(self.table.last_step[slot] > self.committed_step)

    def output_len(self, record: Record) -> int:
        """Returns how many output tokens the request has."""
        if record.slot >= 0:
            return int(self.table.num_tokens[record.slot]) - record.prompt_len
        return len(record.token_ids) - record.prompt_len

    def release(self, slot: int) -> None:
        """Frees blocks and slot at once."""
        table = self.table
        for block_hash in table.record(slot).snapshots:
            # Saved while the block before it was in flight, and that step never counted.
            if self.pool.find(block_hash) is None:
                self.snapshots.drop(block_hash)
        self.pool.release(table.blocks[slot, : table.num_blocks[slot]])
        table.vacate(slot)

    def preempt(self, record: Record) -> None:
        """Takes blocks and slot from a running request and queues it again.

        The blocks may be handed out at once although a step in flight still writes to them:
        whatever the new owner writes is behind that step on the device's stream.
        """
        slot = record.slot
        length = int(self.table.num_tokens[slot])
        record.token_ids = self.table.token_ids[slot, :length].copy()
        record.status = Status.WAITING
        record.checkpoints.clear()
        record.is_looked_up, record.external = False, None
        record.num_preemptions += 1
        self.counters.preempted += 1
        self.release(slot)
        self.waiting.push(record)

    def end(self, record: Record, reason: str, message: str = "") -> None:
        """Ends a request outside the accounting of its own row and queues its terminal view."""
        self.terminal.append(
            RequestUpdate(
                request_id=record.request_id,
                row=-1,
                token_ids=[],
                finished=True,
                finish_reason=reason,
                message=message,
                num_prompt_tokens=record.prompt_len,
                num_output_tokens=self.output_len(record),
                num_cached_tokens=record.num_cached_tokens,
            )
        )
        self.leave(record, reason)

    def leave(self, record: Record, reason: str) -> None:
        """Takes a request whose terminal view is (being) delivered out of the books."""
        assert record.status not in FINAL_STATUSES, f"{record.request_id!r} ended twice"
        del self.by_id[record.request_id]
        del self.by_uid[record.uid]
        self.counters.finished += 1
        self.counters.aborted += reason == "abort"
        was, record.status = record.status, Status.FINISHED
        if was is Status.WAITING:
            self.waiting.removed(record)
        elif was is Status.LOADING:
            assert self.connector is not None, "a request loads without a connector"
            self.connector.cancel(record.uid)
            self.table.status[record.slot] = Status.SENDING
        elif reason == PREFILLED:
            self.table.status[record.slot] = Status.SENDING
        elif self.is_in_flight(record.slot):
            self.table.status[record.slot] = Status.ZOMBIE
            self.zombies.append(record.slot)
        else:
            self.release(record.slot)

    def retire_zombies(self) -> None:
        """Frees what finished requests held once no step in flight can touch it."""
        remaining = []
        for slot in self.zombies:
            if self.is_in_flight(slot):
                remaining.append(slot)
            else:
                self.release(slot)
        self.zombies = remaining

    def check(self) -> None:
        """Proves that slots, blocks, snapshots and queues agree.

        Raises:
            IntegrityError: With every violated invariant.
        """
        table = self.table
        held = np.flatnonzero(table.status != Status.FREE)
        self.pool.check([table.blocks[slot, : table.num_blocks[slot]] for slot in held])
        problems = self.snapshots.problems()
        if sorted([*held.tolist(), *table.free_slots()]) != list(range(1, len(table.status))):
            problems.append("state slots are not each in exactly one place")
        for slot in held.tolist():
            record = table.record(slot)
            if record.slot != slot or record.uid != table.uid[slot]:
                problems.append(f"slot {slot} and its record disagree")
            covered = int(table.num_blocks[slot]) * self.config.block_size
            if covered < table.num_computed[slot] + table.in_flight[slot]:
                problems.append(f"slot {slot}: blocks cover {covered} positions, too few")
            if table.num_computed[slot] > table.num_tokens[slot]:
                problems.append(f"slot {slot}: more positions computed than tokens known")
        zombies = np.flatnonzero(table.status == Status.ZOMBIE).tolist()
        if sorted(self.zombies) != zombies:
            problems.append(f"zombies {self.zombies} are not the slots marked so: {zombies}")
        lengths = [len(record.token_ids) for record in self.waiting]
        if (len(self.waiting), self.waiting.num_tokens) != (len(lengths), sum(lengths)):
            problems.append("the length of the waiting queue is wrong")
        if {r.uid for r in self.by_id.values()} != set(self.by_uid):
            problems.append("the indices by id and by number disagree")
        if problems:
            raise IntegrityError(problems)
