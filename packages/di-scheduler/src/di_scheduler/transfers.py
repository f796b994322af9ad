"""Requests whose blocks and state come from, or go to, somewhere else."""

from di_scheduler.core import Core
from di_scheduler.hit import ExternalHit
from di_scheduler.protocols import KVConnector, Transfer
from di_scheduler.request import ERROR, Record, Status


class Transfers:
    """Talks to the connector and moves requests on when their transfer has ended.

    Args:
        core: The scheduler's state.
        connector: Moves blocks and state.
    """

    def __init__(self, core: Core, connector: KVConnector) -> None:
        self._core = core
        self._connector = connector

    def lookup(self, record: Record) -> ExternalHit | None:
        """Asks once per request and admission what the store holds of its tokens."""
        if not record.is_looked_up:
            record.is_looked_up = True
            record.external = self._connector.lookup(
                record.request_id, record.token_ids, record.block_hashes
            )
        return record.external

    def start_load(self, record: Record, hit: ExternalHit, first_block: int) -> None:
        """Hands the blocks of an admitted request over to be filled."""
        record.status = Status.LOADING
        self._core.table.status[record.slot] = Status.LOADING
        self._connector.load(self._transfer(record, first_block, hit.num_tokens, hit.has_state))

    def start_send(self, record: Record) -> None:
        """Hands blocks and state of a finished prefill over to be read."""
        num_tokens = int(self._core.table.num_computed[record.slot])
        self._connector.send(self._transfer(record, 0, num_tokens, True))

    def poll(self) -> None:
        """Books the transfers that have ended."""
        report = self._connector.poll()
        waiting = {
            int(self._core.table.uid[slot]): slot
            for slot in (self._core.table.status == Status.LOADING).nonzero()[0].tolist()
        }
        for uid in report.loaded:
            self._end_load(uid, waiting, is_good=True)
        for uid in report.failed:
            self._end_load(uid, waiting, is_good=False)
        for uid in report.sent:
            self._release(uid)

    def _end_load(self, uid: int, waiting: dict[int, int], is_good: bool) -> None:
        slot = waiting.get(uid)
        if slot is None:  # aborted meanwhile: the slot was kept for this report
            self._release(uid)
            return
        record = self._core.table.record(slot)
        record.status = Status.RUNNING
        self._core.table.status[slot] = Status.RUNNING
        if is_good:
            self._enter_loaded(record)
        elif self._core.config.role == "decode":
            message = "the key-value transfer failed and a decode rank cannot compute prompts"
            self._core.end(record, ERROR, message)

    def _enter_loaded(self, record: Record) -> None:
        """Lets a request continue behind what was loaded."""
        table, config, slot = self._core.table, self._core.config, record.slot
        hit = record.external
        assert hit is not None, "a load without a hit"
        length = int(table.num_tokens[slot])
        if hit.has_state:
            start = min(hit.num_tokens, length - 1)
        else:
            first_needed = config.first_needed(length, hit.num_tokens)
            start = max(0, first_needed - config.replay_tokens)
        table.num_computed[slot] = start
        table.write_floor[slot] = hit.num_tokens
        table.window_start[slot] = 0 if hit.has_state else start
        record.num_cached_tokens = min(start, record.prompt_len)
        record.checkpoints.clear()
        if hit.has_state and start == length - 1 and length > record.prompt_len:
            table.prefill_end[slot] = start  # it decodes from its newest token on
        self._core.counters.external_hits += hit.num_tokens

    def _release(self, uid: int) -> None:
        table = self._core.table
        for slot in (table.status == Status.SENDING).nonzero()[0].tolist():
            if table.uid[slot] == uid:
                self._core.release(slot)

    def _transfer(
        self, record: Record, first_block: int, num_tokens: int, has_state: bool
    ) -> Transfer:
        table = self._core.table
        end = self._core.config.blocks_for(num_tokens)
        return Transfer(
            request_id=record.request_id,
            uid=record.uid,
            slot=record.slot,
            block_ids=table.blocks[record.slot, first_block:end].copy(),
            first_block=first_block,
            num_tokens=num_tokens,
            block_hashes=tuple(record.block_hashes),
            has_state=has_state,
        )
