"""What one step computes: a struct of arrays, one row per request."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from di_scheduler.request import BoolArray, Int32Array, Int64Array, Record
from di_scheduler.table import RequestTable

StepKind = Literal["mixed", "prompt", "decode"]


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotSaves:
    """Window rings to copy before the forward of a step, before any restore.

    Attributes:
        slots: State slot to copy from, shape (S,), int32.
        positions: Block boundary at which the snapshot is valid, shape (S,), int32.
        snapshot_ids: Snapshot slot to copy to, shape (S,), int32.
    """

    slots: Int32Array
    positions: Int32Array
    snapshot_ids: Int32Array

    def __len__(self) -> int:
        return len(self.slots)


NO_SAVES = SnapshotSaves(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One step of one rank. `R` rows are requests, `T` is the sum of their query lengths.

    The tokens of a request are contiguous, in row order; decode rows come before prompt chunks.
    All arrays are on the host and must not be modified.

    Attributes:
        step_id: Consecutive number of the step.
        kind: `mixed`, or the kind that the ranks agreed on.
        is_placeholder: The rank has nothing to run and takes part with one dummy row (slot 0,
            block 0, token 0). Its outcome is ignored.
        slots: State slot of each row, shape (R,), int32.
        uids: Unique number of each row's request, shape (R,), int64.
        query_lens: `q`: tokens of the row, shape (R,), int32.
        context_lens: `k`: length after the step if every reserved row of the earlier step is
            committed, shape (R,), int32. The row's positions are `k - q .. k - 1`.
        reserved_lens: `r`: rows that the uncommitted earlier plan reserved for the request, shape
            (R,), int32; 0 in the synchronous loop. With `e` tokens committed by that step the
            true length is `k - q + q' - (r - e)` (DeepInfer 0.1.0 `compute_seqlens_k_zos.py`
            states it for `r = K + 1`); a prompt chunk commits `e = r`.
        prev_rows: Row of the same request in that earlier plan, or -1, shape (R,), int32.
        max_query_lens: Rows reserved by this plan, at least `q`, shape (R,), int32.
        draft_lens: Draft tokens among the row's tokens, shape (R,), int32.
        is_prompt: Whether the row is a prompt chunk, shape (R,), bool.
        needs_sample: Whether the row yields tokens (decode rows, final chunks), shape (R,), bool.
        token_ids: Token ids as far as the host knows them, else -1, shape (T,), int32.
        write_floors: Positions below are shared and must not be written to the global cache,
            shape (R,), int32.
        window_starts: First position with a valid ring entry, shape (R,), int32.
        late_starts: First position that the decoder half of the model runs, shape (R,), int32.
            Earlier rows end in the global cache, and later ones see no window key before it. 0 for
            decode rows and where `SchedulerConfig.keep_tokens` is 0.
        restore_ids: Snapshot to copy into the slot's rings before the forward, or -1, shape (R,),
            int32.
        saves: Rings to copy before the forward and before any restore.
        new_block_slots: State slots whose block tables grew, shape (N,), int32.
        new_block_indices: Where in the table, shape (N,), int32.
        new_block_ids: Which block, shape (N,), int32.
        records: Internal: the scheduler's record of each row.
        table: Internal: the request table.
    """

    step_id: int
    kind: StepKind
    is_placeholder: bool
    slots: Int32Array
    uids: Int64Array
    query_lens: Int32Array
    context_lens: Int32Array
    reserved_lens: Int32Array
    prev_rows: Int32Array
    max_query_lens: Int32Array
    draft_lens: Int32Array
    is_prompt: BoolArray
    needs_sample: BoolArray
    token_ids: Int32Array
    write_floors: Int32Array
    window_starts: Int32Array
    late_starts: Int32Array
    restore_ids: Int32Array
    saves: SnapshotSaves
    new_block_slots: Int32Array
    new_block_indices: Int32Array
    new_block_ids: Int32Array
    records: list[Record] = field(repr=False)
    table: RequestTable = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Requests in the step, `R`."""
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        """Tokens in the step, `T`."""
        return len(self.token_ids)

    @property
    def request_ids(self) -> list[str]:
        """The caller's name of each row's request; empty for a placeholder."""
        return [record.request_id for record in self.records]

    def block_tables(self, width: int | None = None) -> Int32Array:
        """Returns the block table of each row, shape (R, width), int32, padded with -1.

        Args:
            width: Columns; by default as many as the longest table has. Read it before the next
                plan is made.
        """
        if self.is_placeholder:
            tables = np.full((1, 1 if width is None else width), -1, np.int32)
            tables[0, 0] = 0
            return tables
        longest = int(self.table.num_blocks[self.slots].max())
        width = longest if width is None else width
        stored = self.table.blocks[self.slots, : min(width, self.table.blocks.shape[1])]
        if stored.shape[1] < width:
            stored = np.pad(stored, ((0, 0), (0, width - stored.shape[1])), constant_values=-1)
        return stored

    def true_context_lens(
        self, committed: npt.NDArray[np.integer], query_lens: npt.NDArray[np.integer] | None = None
    ) -> Int32Array:
        """Returns each row's context length once the outcome of the earlier step is known.

        This is the repair a device makes before its forward, `k - q + q' - (r - e)`, in numpy: the
        reference for kernels.

        Args:
            committed: Tokens committed by each row of the uncommitted earlier plan, shape
                (rows of that plan,), integers: accepted drafts plus one for decode rows, all
                tokens of a prompt chunk. Not read for rows without a predecessor.
            query_lens: `q'`: rows of each request as the device split them, shape (R,); None
                means as planned.
        """
        starts = self.context_lens - self.query_lens
        has_earlier = self.prev_rows >= 0
        earlier = np.zeros(self.num_rows, np.int32)
        earlier[has_earlier] = np.asarray(committed)[self.prev_rows[has_earlier]]
        starts = starts - np.where(has_earlier, self.reserved_lens - earlier, 0)
        lengths: Int32Array = starts + (self.query_lens if query_lens is None else query_lens)
        return lengths.astype(np.int32)

    def history(self, length: int) -> Int32Array:
        """Returns the token ids before each row's first token, oldest first.

        Args:
            length: How many, for example the n-gram order minus one.

        Returns:
            Shape (R, length), int32; -1 before the start of a prompt and for tokens of the
            uncommitted earlier step.
        """
        starts = (self.context_lens - self.query_lens).astype(np.int64)
        positions = starts[:, None] + np.arange(-length, 0)
        if self.is_placeholder:
            return np.full(positions.shape, -1, np.int32)
        known = (positions >= 0) & (positions < self.table.num_tokens[self.slots][:, None])
        safe = np.where(known, positions, 0)
        return np.where(known, self.table.token_ids[self.slots[:, None], safe], np.int32(-1))
