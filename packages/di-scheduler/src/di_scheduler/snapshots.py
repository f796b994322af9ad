"""Saved window rings: opaque slot ids, found by the hash of the block that ends at their position.

A snapshot without its blocks is worthless, so the pool of blocks tells this pool when a block is
evicted. Every slot is used (to be restored by a planned step), cached, or free.
"""

from collections import OrderedDict


class SnapshotPool:
    """Slots for saved window rings with least-recently-used eviction.

    Args:
        num_slots: How many snapshots fit; ids are `0 .. num_slots - 1`.
    """

    def __init__(self, num_slots: int) -> None:
        self.total = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        # Insertion order is age: the front is evicted first.
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._pinned: set[bytes] = set()
        self._uses: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Slots that the plan under construction restores from or saves to."""
        return len(self._pinned)

    @property
    def num_cached(self) -> int:
        """Slots that hold a snapshot nobody is using right now."""
        return len(self._slot_of) - len(self._pinned)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._slot_of

    def pin(self, block_hash: bytes) -> int:
        """Returns the slot of a snapshot and keeps it until `unpin_all`."""
        self._pinned.add(block_hash)
        self._uses[block_hash] += 1
        self._slot_of.move_to_end(block_hash)
        return self._slot_of[block_hash]

    def unpin_all(self) -> None:
        """Ends the protection that `pin` and `take` gave for one plan."""
        self._pinned.clear()

    def take(self, block_hash: bytes, is_branch: bool = False) -> int | None:
        """Returns a slot for a new snapshot and pins it; None if every slot is pinned.

        Args:
            block_hash: Hash of the block that ends where the snapshot is valid.
            is_branch: Whether more than one request is known to have come this way.
        """
        if not self._free:
            victim = next((h for h in self._slot_of if h not in self._pinned), None)
            if victim is None:
                return None
            self.drop(victim)
        slot = self._free.pop()
        self._slot_of[block_hash] = slot
        self._uses[block_hash] = 2 if is_branch else 0
        self._pinned.add(block_hash)
        return slot

    def drop(self, block_hash: bytes) -> None:
        """Forgets the snapshot of this hash, if there is one."""
        slot = self._slot_of.pop(block_hash, None)
        if slot is not None:
            del self._uses[block_hash]
            self._pinned.discard(block_hash)
            self._free.append(slot)

    def drop_slots(self, slots: set[int]) -> None:
        """Forgets the snapshots in these slots: the steps that saved them failed."""
        for block_hash in [h for h, slot in self._slot_of.items() if slot in slots]:
            self.drop(block_hash)

    def supersede(self, block_hashes: list[bytes]) -> None:
        """Makes snapshots the next to be evicted: one further down their chain was saved.

        Those that served several requests stay where they are: others branch off there.
        """
        for block_hash in block_hashes:
            if self._uses.get(block_hash, 2) < 2:
                self._slot_of.move_to_end(block_hash, last=False)

    def problems(self) -> list[str]:
        """Returns every violated invariant, in words."""
        slots = sorted([*self._free, *self._slot_of.values()])
        found = []
        if slots != list(range(self.total)):
            found.append("snapshot slots are not each in exactly one place")
        if not self._pinned <= set(self._slot_of):
            found.append("a pinned snapshot does not exist")
        return found
