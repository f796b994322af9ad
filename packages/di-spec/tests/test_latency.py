import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec import LatencyCache, LatencyKey, LatencyTable, LatencyTableError, row_buckets


class Clock:
    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


TABLE = LatencyTable((1, 8, 16), (0.001, 0.002, 0.004))
KEY = LatencyKey("H200 x 8", "model@abc", {"num_drafts": 5, "deterministic": True})


@given(st.integers(1, 3000))
def test_buckets_ascend_and_hold_every_row_count(max_rows):
    buckets = row_buckets(max_rows)
    assert buckets == sorted(set(buckets))
    assert buckets[0] == 1
    assert buckets[-1] == max_rows


def test_buckets_by_example():
    assert row_buckets(24) == [1, 2, 4, 8, 16, 24]
    assert len(row_buckets(1536)) == 195
    with pytest.raises(ValueError, match="`max_rows`"):
        row_buckets(0)


def test_steps_and_lines():
    assert TABLE.dense(18).tolist() == [0, 0.001] + [0.002] * 7 + [0.004] * 8 + [np.inf] * 2
    line = LatencyTable((2, 4), (1.0, 3.0), "linear")
    assert line.dense(5).tolist() == [0, 1.0, 1.0, 2.0, 3.0, np.inf]
    assert [TABLE.bucket(n) for n in (1, 2, 8, 9, 99)] == [1, 8, 8, 16, 16]


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ((), ()),
        ((1, 1), (1.0, 2.0)),
        ((0, 1), (1.0, 2.0)),
        ((1,), (1.0, 2.0)),
        ((1,), (0.0,)),
        ((1,), (float("nan"),)),
    ],
)
def test_impossible_tables_are_refused(rows, seconds):
    with pytest.raises(LatencyTableError):
        LatencyTable(rows, seconds)


def test_measuring_drops_the_extremes():
    clock = Clock(0.0)
    durations = iter([9, 1, 2, 3, 4, 100, 9, 5, 5, 5, 5, 5])
    calls = []

    def run(num_rows):
        calls.append(num_rows)
        clock.now += next(durations)

    table = LatencyTable.measure([1, 4], run, clock=clock)
    assert calls == [4] * 6 + [1] * 6  # the largest first, one warm-up each
    assert table == LatencyTable((1, 4), (5.0, 3.0))


def test_saved_tables_come_back_until_they_are_stale(tmp_path):
    clock = Clock()
    cache = LatencyCache(tmp_path / "tables", max_age_s=100, clock=clock)
    assert cache.find(KEY) is None
    cache.save(KEY, TABLE)
    assert cache.load(KEY) == TABLE
    clock.now += 100
    assert cache.load(KEY) == TABLE
    clock.now += 1
    with pytest.raises(LatencyTableError, match="101 s old, the limit is 100 s"):
        cache.load(KEY)
    assert cache.prune() == 1
    assert cache.find(KEY) is None


def test_newest_readable_table_wins(tmp_path):
    clock = Clock()
    cache = LatencyCache(tmp_path, clock=clock)
    cache.save(KEY, TABLE)
    clock.now += 5
    newer = LatencyTable((1,), (0.5,))
    path = cache.save(KEY, newer)
    assert cache.load(KEY) == newer
    path.write_text("{broken")
    assert cache.load(KEY) == TABLE


@pytest.mark.parametrize(
    "other",
    [
        LatencyKey("H100 x 8", "model@abc", {"num_drafts": 5, "deterministic": True}),
        LatencyKey("H200 x 8", "model@abd", {"num_drafts": 5, "deterministic": True}),
        LatencyKey("H200 x 8", "model@abc", {"num_drafts": 3, "deterministic": True}),
    ],
)
def test_tables_of_other_things_are_not_used(tmp_path, other):
    cache = LatencyCache(tmp_path)
    path = cache.save(KEY, TABLE)
    assert cache.find(other) is None
    with pytest.raises(LatencyTableError, match="something else"):
        cache.read(path, other)


def test_order_of_settings_does_not_matter():
    assert (
        KEY.digest == LatencyKey(KEY.device, KEY.model, dict(reversed(KEY.settings.items()))).digest
    )


def test_tables_from_the_future_and_foreign_files(tmp_path):
    clock = Clock()
    cache = LatencyCache(tmp_path, clock=clock)
    path = cache.save(KEY, TABLE)
    (tmp_path / "notes.txt").write_text("keep me")
    (tmp_path / "other.json").write_text("{}")
    clock.now -= 10
    with pytest.raises(LatencyTableError, match="-10 s old"):
        cache.load(KEY)
    clock.now += 1e9
    assert cache.prune() == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "other.json"]
    assert not path.exists()


def test_file_says_what_it_is(tmp_path):
    path = LatencyCache(tmp_path).save(KEY, TABLE)
    content = json.loads(path.read_text())
    assert content["key"]["device"] == "H200 x 8"
    assert not list(tmp_path.glob("*.tmp"))
