"""The pool of KV blocks: who holds which block, and which blocks remember a prefix.

Every block other than block 0 is in exactly one of three states, and `check` proves it:

* used: referenced by at least one request (a shared block counts once),
* cached: not referenced, but its content is known by hash and may be taken up again,
* free: not referenced and forgotten.

Allocation takes free blocks first, then the least recently used cached ones, which forget their
hash in the same moment.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from di_scheduler.errors import CapacityError, IntegrityError

Int32Array = npt.NDArray[np.int32]


class BlockPool:
    """Reference-counted blocks with a prefix cache.

    Args:
        num_blocks: Blocks including block 0, which is never handed out.
        on_evict: Called with the hash of each cached block that is reused for something else.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[bytes], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._refs = np.zeros(num_blocks, np.int32)
        # A stack: the lowest ids are on top, so that a fresh pool hands out 1, 2, 3, ...
        self._free = np.arange(num_blocks - 1, 0, -1, dtype=np.int32)
        self._num_free = num_blocks - 1
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._lru: OrderedDict[int, None] = OrderedDict()
        self.num_evictions = 0

    @property
    def total(self) -> int:
        """Blocks that can be handed out."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody references and nobody could find by hash."""
        return self._num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody references but whose content can be found by hash."""
        return len(self._lru)

    @property
    def num_used(self) -> int:
        """Blocks that at least one request references; a shared block counts once."""
        return self.total - self._num_free - len(self._lru)

    def count_referenced(self) -> int:
        """Returns `num_used`, counted block by block."""
        return int((self._refs[1:] > 0).sum())

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached ones."""
        return self._num_free + len(self._lru)

    @property
    def usage(self) -> float:
        """Share of the blocks that is referenced."""
        return self.num_used / self.total

    def allocate(self, count: int) -> Int32Array:
        """Takes `count` blocks with one reference each.

        Returns:
            Block ids, shape (count,), int32.

        Raises:
            CapacityError: Fewer blocks are available; nothing was taken.
        """
        if count > self.num_available:
            raise CapacityError(
                f"{count} blocks wanted, {self.num_available} available of {self.total}; wait for "
                f"a request to finish or preempt one",
                needed=count,
                available=self.num_available,
            )
        if count > self._num_free:
            self._evict(count - self._num_free)
        first = self._num_free - count
        block_ids = self._free[first : self._num_free][::-1].copy()
        self._num_free = first
        self._refs[block_ids] = 1
        return block_ids

    def acquire(self, block_ids: Sequence[int]) -> None:
        """Adds one reference to each block, all of which are used or cached."""
        for block_id in block_ids:
            if self._refs[block_id] == 0:
                del self._lru[block_id]
            self._refs[block_id] += 1

    def release(self, block_ids: Int32Array) -> None:
        """Drops one reference from each block of one request, given in table order.

        Blocks without a reference become cached if they have a hash, else free. The last block of
        a chain is evicted before the blocks it depends on.
        """
        self._refs[block_ids] -= 1
        ended = block_ids[self._refs[block_ids] == 0]
        forgotten = []
        for block_id in ended[::-1].tolist():
            if block_id in self._hash_of:
                self._lru[block_id] = None
            else:
                forgotten.append(block_id)
        count = len(forgotten)
        self._free[self._num_free : self._num_free + count] = forgotten
        self._num_free += count

    def find(self, block_hash: bytes) -> int | None:
        """Returns the block that holds this content, or None."""
        return self._block_of.get(block_hash)

    def find_prefix(self, hashes: Sequence[bytes]) -> list[int]:
        """Returns the blocks of the longest known prefix of a chain of hashes."""
        blocks = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            blocks.append(block_id)
        return blocks

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """Returns how many of the blocks are cached, hence would leave `num_available`."""
        return int((self._refs[list(block_ids)] == 0).sum()) if block_ids else 0

    def register(self, block_id: int, block_hash: bytes) -> bool:
        """Makes a full, referenced block findable.

        Returns:
            False if other blocks already hold this content; then nothing changes, and the
            request keeps its own copy (two tables never swap blocks under a running request).
        """
        if block_hash in self._block_of:
            return False
        self._block_of[block_hash] = block_id
        self._hash_of[block_id] = block_hash
        return True

    def forget_cached(self) -> int:
        """Makes every unreferenced cached block free; returns how many there were."""
        count = len(self._lru)
        self._evict(count)
        return count

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block_id, _ = self._lru.popitem(last=False)
            block_hash = self._hash_of.pop(block_id)
            del self._block_of[block_hash]
            self._free[self._num_free] = block_id
            self._num_free += 1
            if self._on_evict is not None:
                self._on_evict(block_hash)
        self.num_evictions += count

    def check(self, holders: Sequence[Int32Array]) -> None:
        """Proves that the books balance.

        Args:
            holders: The block ids of every table that holds references, each id once per table.

        Raises:
            IntegrityError: With every violated invariant.
        """
        problems = []
        expected = np.zeros(self.num_blocks, np.int64)
        for block_ids in holders:
            np.add.at(expected, block_ids, 1)
        if wrong := np.flatnonzero(expected != self._refs).tolist():
            first = wrong[0]
            problems.append(
                f"{len(wrong)} blocks have a wrong reference count, first block {first}: counted "
                f"{self._refs[first]}, held {expected[first]} times"
            )
        if expected[0]:
            problems.append("the reserved block 0 is held by a request")
        state = np.zeros(self.num_blocks, np.int64)
        state[self._free[: self._num_free]] += 1
        state[list(self._lru)] += 1
        state[self._refs > 0] += 1
        if wrong := np.flatnonzero(state[1:] != 1).tolist():
            problems.append(f"blocks not in exactly one state: {[i + 1 for i in wrong[:8]]}")
        if self._num_free + len(self._lru) + int((self._refs[1:] > 0).sum()) != self.total:
            problems.append("free + cached + used differs from the total")
        if {v: k for k, v in self._hash_of.items()} != self._block_of:
            problems.append("hash-to-block and block-to-hash maps disagree")
        if not set(self._lru) <= set(self._hash_of):
            problems.append("a cached block has no hash")
        if set(self._hash_of) & set(self._free[: self._num_free].tolist()):
            problems.append("a free block still has a hash")
        if problems:
            raise IntegrityError(problems)
