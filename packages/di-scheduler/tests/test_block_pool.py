import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from di_scheduler import BlockPool, CapacityError, IntegrityError


def name(number):
    return number.to_bytes(16, "little")


def test_fresh_pool_hands_out_low_ids_and_never_block_zero():
    pool = BlockPool(5)
    assert pool.allocate(4).tolist() == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_cached, pool.num_used, pool.total) == (0, 0, 4, 4)


def test_too_large_an_allocation_takes_nothing_and_says_the_numbers():
    pool = BlockPool(5)
    pool.allocate(3)
    with pytest.raises(CapacityError, match="2 blocks wanted, 1 available of 4") as caught:
        pool.allocate(2)
    assert (caught.value.needed, caught.value.available) == (2, 1)
    assert pool.num_used == 3


def test_reused_block_forgets_its_old_hash():
    evicted = []
    pool = BlockPool(3, on_evict=evicted.append)
    blocks = pool.allocate(2)
    pool.register(int(blocks[0]), name(7))
    pool.release(blocks)
    assert pool.find(name(7)) == blocks[0]
    assert (pool.num_free, pool.num_cached) == (1, 1)
    pool.allocate(2)
    assert pool.find(name(7)) is None
    assert evicted == [name(7)]


def test_pool_full_of_cached_blocks_serves_an_allocation_at_once():  # sgl-project/sglang#30532
    pool = BlockPool(101)
    blocks = pool.allocate(100)
    for block in blocks.tolist():
        pool.register(block, name(block))
    pool.release(blocks)
    assert (pool.num_free, pool.num_cached) == (0, 100)
    assert len(pool.allocate(100)) == 100
    pool.check([np.arange(1, 101, dtype=np.int32)])


def test_shared_block_counts_once():  # sgl-project/sglang#35270
    pool = BlockPool(11)
    blocks = pool.allocate(5)
    pool.acquire(blocks.tolist())
    assert (pool.num_used, pool.num_available) == (5, 5)
    pool.release(blocks)
    assert (pool.num_used, pool.num_available) == (5, 5)
    pool.release(blocks)
    assert (pool.num_used, pool.num_available) == (0, 10)


def test_end_of_a_chain_is_evicted_before_its_beginning():
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    for index, block in enumerate(blocks.tolist()):
        pool.register(block, name(index))
    pool.release(blocks)
    pool.allocate(2)
    assert pool.find_prefix([name(i) for i in range(4)]) == blocks[:2].tolist()


def test_least_recently_used_chain_goes_first():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks.tolist()):
        pool.register(block, name(index))
        pool.release(np.array([block], np.int32))
    pool.acquire([int(blocks[0])])
    pool.release(blocks[:1])
    pool.allocate(1)
    assert pool.find(name(1)) is None
    assert pool.find(name(0)) == blocks[0]


def test_second_block_of_equal_content_stays_private():
    pool = BlockPool(4)
    blocks = pool.allocate(2).tolist()
    assert pool.register(blocks[0], name(1))
    assert not pool.register(blocks[1], name(1))
    assert pool.find(name(1)) == blocks[0]


def test_forget_cached_frees_everything_unreferenced():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.register(int(blocks[0]), name(1))
    pool.release(blocks)
    assert pool.forget_cached() == 1
    assert (pool.num_free, pool.num_cached) == (3, 0)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda pool: pool._refs.__setitem__(2, 5), "wrong reference count"),
        (lambda pool: pool._free.__setitem__(0, 1), "not in exactly one state"),
        (lambda pool: pool._hash_of.pop(1), "maps disagree"),
        (lambda pool: setattr(pool, "_num_free", 1), "free \\+ cached \\+ used"),
    ],
)
def test_integrity_check_finds_a_broken_book(break_it, words):
    pool = BlockPool(6)
    held = pool.allocate(2)
    pool.register(1, name(1))
    pool.check([held])
    break_it(pool)
    with pytest.raises(IntegrityError, match=words):
        pool.check([held])


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against a model that is a dictionary of owners."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(17)
        self.tables = []
        self.content = {}  # block -> hash, for registered blocks that nobody overwrote
        self.counter = 0

    @rule(count=st.integers(0, 20))
    def allocate(self, count):
        if count > self.pool.num_available:
            with pytest.raises(CapacityError):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        held = {b for table in self.tables for b in table}
        assert not held & set(blocks.tolist())
        for block in blocks.tolist():
            self.content.pop(block, None)
        self.tables.append(blocks.tolist())

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def register(self, data):
        table = data.draw(st.sampled_from(self.tables))
        for block in table:
            if block not in self.content:
                self.counter += 1
                assert self.pool.register(block, name(self.counter))
                self.content[block] = name(self.counter)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def share(self, data):
        known = sorted(self.content)
        blocks = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=4))
        assert [self.pool.find(self.content[b]) for b in blocks] == blocks
        self.pool.acquire(blocks)
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(np.array(table, np.int32))

    @invariant()
    def books_balance(self):
        self.pool.check([np.array(table, np.int32) for table in self.tables])
        used = len({b for table in self.tables for b in table})
        assert self.pool.num_used == used
        assert self.pool.num_free + self.pool.num_cached + used == self.pool.total

    @invariant()
    def what_is_known_is_found(self):
        for block, block_hash in self.content.items():
            assert self.pool.find(block_hash) == block


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
