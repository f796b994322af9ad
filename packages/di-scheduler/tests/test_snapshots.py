import pytest

from di_scheduler.snapshots import SnapshotPool


def taken(pool, *names, **fields):
    slots = [pool.take(name, **fields) for name in names]
    pool.unpin_all()
    return slots


def test_slots_are_handed_out_once_and_the_oldest_goes_first():
    pool = SnapshotPool(2)
    assert taken(pool, b"a", b"b") == [0, 1]
    assert taken(pool, b"c") == [0]
    assert (b"a" in pool, b"b" in pool, b"c" in pool) == (False, True, True)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (0, 2, 0)
    assert pool.problems() == []


def test_restored_snapshot_is_young_again_and_safe_within_its_plan():
    pool = SnapshotPool(2)
    taken(pool, b"a", b"b")
    assert pool.pin(b"a") == 0
    assert pool.take(b"c") == 1
    assert pool.take(b"d") is None  # both slots belong to the plan under construction
    assert pool.num_used == 2
    pool.unpin_all()
    assert pool.take(b"d") == 0


def test_superseded_snapshot_goes_before_older_ones():
    pool = SnapshotPool(3)
    taken(pool, b"old", b"turn1", b"turn2")
    pool.supersede([b"turn1", b"gone"])
    taken(pool, b"new")
    assert b"turn1" not in pool
    assert b"old" in pool


@pytest.mark.parametrize("way", ["branch", "two restores"])
def test_branch_point_is_not_superseded(way):
    pool = SnapshotPool(2)
    taken(pool, b"system", is_branch=way == "branch")
    taken(pool, b"turn")
    if way == "two restores":
        for _ in range(2):
            pool.pin(b"system")
            pool.unpin_all()
        taken(pool, b"turn")
    pool.supersede([b"turn"])
    pool.supersede([b"system"])
    taken(pool, b"new")
    assert b"system" in pool
    assert b"turn" not in pool


def test_dropped_snapshot_frees_its_slot():
    pool = SnapshotPool(2)
    taken(pool, b"a", b"b")
    pool.drop(b"a")
    pool.drop(b"never seen")
    pool.drop_slots({1})
    assert (pool.num_free, pool.num_cached) == (2, 0)
    assert pool.problems() == []


def test_check_finds_a_lost_slot_and_a_dangling_pin():
    pool = SnapshotPool(2)
    taken(pool, b"a")
    pool._free.append(1)
    pool._pinned.add(b"x")
    assert len(pool.problems()) == 2
