"""Letting a waiting request in: prefix look-up, where to start computing, blocks and a slot."""

from dataclasses import dataclass

from di_scheduler.core import Core
from di_scheduler.hashing import extend_chain
from di_scheduler.hit import ExternalHit
from di_scheduler.request import ERROR, RUNNING, Record, Status
from di_scheduler.transfers import Transfers


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the prefix cache offers for one prompt.

    Attributes:
        block_ids: Blocks to share, in order.
        hit_len: Tokens they hold, `H`. Positions below it are never written again.
        start: First position to compute. Tokens from here to `H` are replayed: their window
            entries are written, their global records are not.
        snapshot: Hash under which the window rings valid at or before `start` are kept, or None.
    """

    block_ids: list[int]
    hit_len: int
    start: int
    snapshot: bytes | None


NO_MATCH = PrefixMatch([], 0, 0, None)


class Admission:
    """Admits requests from the head of the waiting queue.

    Args:
        core: The scheduler's state.
        transfers: Where blocks may come from besides this rank, if anywhere.
    """

    def __init__(self, core: Core, transfers: Transfers | None) -> None:
        self._core = core
        self._transfers = transfers
        self._config = core.config

    def may_admit(self) -> bool:
        """Returns whether slots and pool usage leave room for one more request."""
        core = self._core
        running = core.num_running
        if running >= self._config.max_running or core.table.num_free_slots == 0:
            return False
        return running == 0 or core.pool.usage <= self._config.prefill_usage_limit

    def try_admit(self) -> tuple[Record, int] | None:
        """Admits the head of the queue if it fits.

        Blocks for the whole prompt are taken at once, so that a half-computed prompt never waits
        for blocks.

        Returns:
            The record and the snapshot slot to restore (-1 for none); None if nothing can be
            admitted now.
        """
        core, transfers = self._core, self._transfers
        record = self._admissible_head()
        if record is None:
            return None
        match = self.find_prefix(record)
        if self._is_being_saved(record, match):
            return None
        external = self._external_hit(record, match)
        if external is not None:
            # Should the load fail, the prompt is computed from the blocks that are here.
            first_needed = self._config.first_needed(len(record.token_ids), match.hit_len)
            start = max(0, first_needed - self._config.replay_tokens)
            match = PrefixMatch(match.block_ids, match.hit_len, start, None)
        num_new = self._config.blocks_for(len(record.token_ids)) - len(match.block_ids)
        revived = core.pool.num_unreferenced(match.block_ids)
        if num_new > core.pool.num_available - revived:
            return None
        core.waiting.pop()
        record.status = Status.RUNNING
        self._fill_slot(record, match, num_new)
        self._count(record, match)
        if external is not None and transfers is not None:
            transfers.start_load(record, external, len(match.block_ids))
        if match.snapshot is None:
            return record, -1
        core.counters.snapshot_restores += 1
        record.snapshots.append(match.snapshot)
        return record, core.snapshots.pin(match.snapshot)

    def _admissible_head(self) -> Record | None:
        """Returns the next request if slots and usage allow one more.

        A decode rank drops the requests that it could never run on the way.
        """
        core = self._core
        while (record := core.waiting.head()) is not None and self.may_admit():
            if self._config.role != "decode" or self._external_hit(record, NO_MATCH) is not None:
                return record
            message = (
                f"no store holds the state after {len(record.token_ids) - 1} tokens, and a decode "
                f"rank cannot compute prompts"
            )
            core.end(record, ERROR, message)
        return None

    def find_prefix(self, record: Record) -> PrefixMatch:
        """Returns the longest usable prefix and the cheapest exact way to enter it."""
        config, core = self._config, self._core
        if not config.prefix_cache:
            return NO_MATCH
        extend_chain(record.block_hashes, record.chain_root, record.token_ids, config.block_size)
        if self._computes_all(record):
            return NO_MATCH
        blocks = core.pool.find_prefix(record.block_hashes)
        hit_len = len(blocks) * config.block_size
        first_needed = config.first_needed(len(record.token_ids), hit_len)
        # A ring saved at the end of this hit may be restored for a prompt that ends there, which
        # then computes the token before the boundary once more: that one must be exact too.
        margin = 1 if config.num_snapshot_slots and first_needed == hit_len else 0
        start = max(0, first_needed - config.replay_tokens - margin)
        if config.num_window_layers == 0:
            return PrefixMatch(blocks, hit_len, first_needed, None)
        for index in range(len(blocks) - 1, -1, -1):
            boundary = (index + 1) * config.block_size
            if boundary <= start:
                break
            if boundary > first_needed + 1:
                continue  # the ring no longer holds the window before `first_needed`
            if record.block_hashes[index] in core.snapshots:
                restored = min(boundary, first_needed)
                return PrefixMatch(blocks, hit_len, restored, record.block_hashes[index])
        return PrefixMatch(blocks, hit_len, start, None)

    def _is_being_saved(self, record: Record, match: PrefixMatch) -> bool:
        """Returns whether a running request is about to save rings that would spare a replay.

        Siblings that arrive together would otherwise all replay the same tokens. The one that came
        first is already computing; its snapshot is a few steps away.
        """
        config, table = self._config, self._core.table
        if match.snapshot is not None or config.num_snapshot_slots == 0:
            return False
        first_needed = config.first_needed(len(record.token_ids), match.hit_len)
        least = match.start + config.snapshot_min_gain
        for slot in (table.status == RUNNING).nonzero()[0].tolist():
            other = table.record(slot)
            for boundary in other.checkpoints:
                index = boundary // config.block_size - 1
                if (
                    least <= boundary <= min(match.hit_len, first_needed + 1)
                    and other.block_hashes[index] == record.block_hashes[index]
                ):
                    return True
        return False

    def _computes_all(self, record: Record) -> bool:
        request = record.request
        is_whole = request.needs_all_rows and self._config.keep_tokens > 0
        return request.skip_reading_prefix_cache or is_whole

    def _external_hit(self, record: Record, match: PrefixMatch) -> ExternalHit | None:
        """Returns what the store adds to the local match, if it spares any computation."""
        if self._transfers is None or self._config.role == "prefill":
            return None
        if self._config.role != "decode" and self._computes_all(record):
            return None
        hit = self._transfers.lookup(record)
        if hit is None:
            return None
        last = len(record.token_ids) - 1
        if self._config.role == "decode":
            return hit if hit.has_state and hit.num_tokens >= last else None
        first_needed = self._config.first_needed(last + 1, hit.num_tokens)
        if first_needed < min(hit.num_tokens, last):
            # The state of the hit's end does not serve a start before it.
            hit = record.external = ExternalHit(hit.num_tokens, has_state=False)
        replay = 0 if hit.has_state else self._config.replay_tokens
        return hit if first_needed - replay > match.start else None

    def _fill_slot(self, record: Record, match: PrefixMatch, num_new: int) -> None:
        core, table = self._core, self._core.table
        slot = table.occupy(record)
        shared = len(match.block_ids)
        core.pool.acquire(match.block_ids)
        table.blocks[slot, :shared] = match.block_ids
        table.blocks[slot, shared : shared + num_new] = core.pool.allocate(num_new)
        table.num_blocks[slot] = shared + num_new
        table.num_registered[slot] = shared
        table.num_computed[slot] = match.start
        table.write_floor[slot] = match.hit_len
        has_window_gap = match.snapshot is None and self._config.num_window_layers > 0
        table.window_start[slot] = match.start if has_window_gap else 0
        if self._config.keep_tokens and not record.request.needs_all_rows:
            late_start = len(record.token_ids) - self._config.keep_tokens
            table.late_start[slot] = max(0, late_start)
        record.num_cached_tokens = min(match.start, record.prompt_len)
        record.checkpoints = self._checkpoints(record, match)
        record.branch_point = match.hit_len

    def _checkpoints(self, record: Record, match: PrefixMatch) -> list[int]:
        """Returns the positions where a chunk must end so that the rings can be saved there.

        Two boundaries are worth it: the end of a hit that had no snapshot (somebody else came
        this way, so others will), and the last boundary of the prompt.
        """
        config, known = self._config, self._core.snapshots
        if config.num_snapshot_slots == 0 or not config.chunked_prefill:
            return []
        length = len(record.token_ids)
        last = length // config.block_size * config.block_size
        wanted = set()
        for end in (match.hit_len, last):
            is_inside = match.start < end < length
            gain = min(end, config.replay_tokens)
            if not is_inside or gain < config.snapshot_min_gain:
                continue
            if record.block_hashes[end // config.block_size - 1] not in known:
                wanted.add(end)
        return sorted(wanted)

    def _count(self, record: Record, match: PrefixMatch) -> None:
        if not self._config.prefix_cache:
            return
        counters = self._core.counters
        counters.cache_queries += len(record.token_ids)
        counters.cache_hits += match.hit_len
        counters.replayed_tokens += max(0, match.hit_len - match.start)
