"""Which window rings are saved, and when."""

import numpy as np

from di_scheduler.core import Core
from di_scheduler.plan import NO_SAVES, SnapshotSaves
from di_scheduler.request import Int64Array, Record


class SnapshotPolicy:
    """Chooses the rings to save before a step's forward.

    A chunk that starts at a checkpoint saves there. A decoding request saves at the last boundary
    it crossed while the ring still holds the window that ends there. A conversation continues from
    its end: once a deeper snapshot exists, the ones before it on the same chain are evicted first,
    unless others have used them.

    Args:
        core: The scheduler's state.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def saves(self, slots: Int64Array, starts: Int64Array, num_decodes: int) -> SnapshotSaves:
        """Takes snapshot slots for a step and ends the protection of those it restores.

        Args:
            slots: State slots of the step's rows, decode rows first, shape (R,), int64.
            starts: First position of each row at most, shape (R,), int64.
            num_decodes: How many of the rows decode.
        """
        core = self._core
        if core.config.num_snapshot_slots == 0:
            return NO_SAVES
        found: list[tuple[int, int, int]] = []
        self._after_chunks(slots[num_decodes:], starts[num_decodes:], found)
        self._while_decoding(slots[:num_decodes], starts[:num_decodes], found)
        core.snapshots.unpin_all()
        if not found:
            return NO_SAVES
        core.counters.snapshot_saves += len(found)
        return SnapshotSaves(*np.array(found, np.int32).T)

    def _after_chunks(
        self, slots: Int64Array, starts: Int64Array, found: list[tuple[int, int, int]]
    ) -> None:
        for slot, start in zip(slots.tolist(), starts.tolist(), strict=True):
            record = self._core.table.record(slot)
            if record.checkpoints and record.checkpoints[0] == start:
                record.checkpoints.pop(0)
                # The chunk before may be in flight; its block is findable once it is committed.
                self._save(record, start, found, is_branch=start == record.branch_point)

    def _while_decoding(
        self, slots: Int64Array, starts: Int64Array, found: list[tuple[int, int, int]]
    ) -> None:
        core, table, config = self._core, self._core.table, self._core.config
        boundaries = table.num_computed[slots] // config.block_size * config.block_size
        due = (boundaries > table.saved_boundary[slots]) & (
            starts - boundaries <= config.ring_slack
        )
        due &= np.minimum(boundaries, config.replay_tokens) >= config.snapshot_min_gain
        for slot, boundary in zip(slots[due].tolist(), boundaries[due].tolist(), strict=True):
            record = table.record(slot)
            block_hash = record.block_hashes[boundary // config.block_size - 1]
            if core.pool.find(block_hash) is not None:
                self._save(record, boundary, found)

    def _save(
        self,
        record: Record,
        boundary: int,
        found: list[tuple[int, int, int]],
        is_branch: bool = False,
    ) -> None:
        core = self._core
        core.table.saved_boundary[record.slot] = boundary
        block_hash = record.block_hashes[boundary // core.config.block_size - 1]
        if block_hash in core.snapshots:
            return
        core.snapshots.supersede(record.snapshots)
        snapshot_id = core.snapshots.take(block_hash, is_branch)
        if snapshot_id is not None:
            record.snapshots.append(block_hash)
            found.append((record.slot, boundary, snapshot_id))
