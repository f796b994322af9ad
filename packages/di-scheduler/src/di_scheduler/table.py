"""The request table: one row of every array per state slot.

A request keeps its row from admission until its slot is released, so that device state, host state
and everything an engine keeps can be keyed by one small integer. Row 0 belongs to placeholder
rows. All arrays are on the host.
"""

import numpy as np

from di_scheduler.config import SchedulerConfig
from di_scheduler.request import Record, Status

NO_STOP_ID = -2  # not -1: outcomes are often padded with that


class RequestTable:
    """Struct of arrays over state slots.

    Attributes:
        status: `Status` of the slot's request, int8.
        uid: Unique number of the slot's request, 0 if free, int64.
        num_tokens: `L`: prompt plus committed output tokens, int64.
        num_computed: `C`: positions whose KV is committed, int64.
        in_flight: `r`: rows that the newest uncommitted plan reserved for the request, int64.
        in_flight_samples: Whether that plan samples a token for the request, bool.
        last_step: Number of the newest plan that contains the request, int64.
        prefill_end: `L` at admission: the request decodes once `C + r` reaches it, int64.
        prompt_len: Prompt tokens, int64.
        len_limit: Tokens at which the request ends with reason `length`, int64.
        min_len: A stop id ends the request only if `L` then exceeds this, int64.
        num_blocks: Blocks in the block table, int64.
        num_registered: Leading blocks that are known to the prefix cache, int64.
        num_drafts: Draft tokens that are there for the next step, int64.
        write_floor: Positions below are shared and must not be written, int32.
        window_start: First position with a valid ring entry, int32.
        late_start: First prompt position that the decoder half runs, int32.
        saved_boundary: Block boundary up to which no window snapshot is wanted any more, int64.
        stop_ids: Stop ids, padded with `NO_STOP_ID`, int64, shape (slots, width).
        blocks: Block table, padded with -1, int32, shape (slots, blocks per request).
        token_ids: Token ids, int32, shape (slots, max_model_len + K + 1); what lies behind
            `num_tokens` is garbage. The operating system backs only the parts that were written.
        records: Record of the slot's request.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        size = config.state_slots
        self.status = np.zeros(size, np.int8)
        self.uid = np.zeros(size, np.int64)
        self.num_tokens = np.zeros(size, np.int64)
        self.num_computed = np.zeros(size, np.int64)
        self.in_flight = np.zeros(size, np.int64)
        self.in_flight_samples = np.zeros(size, np.bool_)
        self.last_step = np.zeros(size, np.int64)
        self.prefill_end = np.zeros(size, np.int64)
        self.prompt_len = np.zeros(size, np.int64)
        self.len_limit = np.zeros(size, np.int64)
        self.min_len = np.zeros(size, np.int64)
        self.num_blocks = np.zeros(size, np.int64)
        self.num_registered = np.zeros(size, np.int64)
        self.num_drafts = np.zeros(size, np.int64)
        self.write_floor = np.zeros(size, np.int32)
        self.window_start = np.zeros(size, np.int32)
        self.late_start = np.zeros(size, np.int32)
        self.saved_boundary = np.zeros(size, np.int64)
        self.stop_ids = np.full((size, 1), NO_STOP_ID, np.int64)
        self.blocks = np.full((size, config.blocks_for(config.position_limit)), -1, np.int32)
        width = config.max_model_len + config.num_draft_tokens + 1
        self.token_ids = np.zeros((size, width), np.int32)
        self.records: list[Record | None] = [None] * size
        # A stack with the lowest slot on top; slot 0 is never handed out.
        self._free = list(range(size - 1, 0, -1))

    @property
    def num_free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def record(self, slot: int) -> Record:
        """Returns the record of the request that holds `slot`."""
        record = self.records[slot]
        assert record is not None, f"slot {slot} holds no request"
        return record

    def occupy(self, record: Record) -> int:
        """Gives `record` a slot and fills the row from it; the block table starts empty."""
        slot = self._free.pop()
        record.slot = slot
        length = len(record.token_ids)
        self.records[slot] = record
        self.status[slot] = record.status
        self.uid[slot] = record.uid
        self.num_tokens[slot] = self.prefill_end[slot] = length
        self.num_computed[slot] = 0
        self.in_flight[slot] = 0
        self.in_flight_samples[slot] = False
        self.last_step[slot] = 0
        self.prompt_len[slot] = record.prompt_len
        self.len_limit[slot] = record.len_limit
        self.min_len[slot] = record.prompt_len + record.request.min_tokens
        self.num_blocks[slot] = self.num_registered[slot] = 0
        self.num_drafts[slot] = 0
        self.write_floor[slot] = self.window_start[slot] = self.saved_boundary[slot] = 0
        self.late_start[slot] = 0
        self._set_stop_ids(slot, record.stop_ids)
        self.token_ids[slot, :length] = record.token_ids
        return slot

    def vacate(self, slot: int) -> None:
        """Takes the slot from its request, whose blocks were released before."""
        record = self.record(slot)
        record.slot = -1
        self.records[slot] = None
        self.status[slot] = Status.FREE
        self.uid[slot] = 0
        self.blocks[slot, : self.num_blocks[slot]] = -1
        self.num_blocks[slot] = 0
        self.in_flight[slot] = 0
        self.in_flight_samples[slot] = False
        self._free.append(slot)

    def free_slots(self) -> list[int]:
        """Returns the ids of all free slots."""
        return list(self._free)

    def _set_stop_ids(self, slot: int, stop_ids: tuple[int, ...]) -> None:
        missing = len(stop_ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(
                self.stop_ids, ((0, 0), (0, missing)), constant_values=NO_STOP_ID
            )
        self.stop_ids[slot] = NO_STOP_ID
        self.stop_ids[slot, : len(stop_ids)] = stop_ids
