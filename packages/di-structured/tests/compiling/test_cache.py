"""Byte limits and files."""

from dataclasses import dataclass

from di_structured.compiling.cache import ByteLimitedCache, DiskCache


@dataclass
class Sized:
    size_bytes: int


def test_ten_thousand_entries_stay_within_the_limit():
    cache = ByteLimitedCache(1000)
    for i in range(10_000):
        cache.put(str(i), Sized(i % 90))
        assert cache.size_bytes <= 1000
    assert cache.size_bytes == sum(
        cache.get(str(i)).size_bytes for i in range(10_000) if cache.get(str(i))
    )


def test_what_was_used_longest_ago_goes_first():
    cache = ByteLimitedCache(3)
    for name in "abc":
        cache.put(name, Sized(1))
    cache.get("a")
    cache.put("d", Sized(1))
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]


def test_a_value_beyond_the_limit_is_not_kept_and_a_new_value_replaces():
    cache = ByteLimitedCache(10)
    cache.put("a", Sized(4))
    cache.put("a", Sized(6))
    cache.put("b", Sized(11))
    assert (cache.size_bytes, len(cache), cache.get("b")) == (6, 1, None)


def test_files_are_kept_apart_by_scope(tmp_path):
    one, two = DiskCache(tmp_path / "x", "one"), DiskCache(tmp_path / "x", "two")
    one.write("key", "é")
    assert (one.read("key"), two.read("key")) == ("é", None)
    one.discard("key")
    one.discard("key")
    assert one.read("key") is None
    assert list((tmp_path / "x").iterdir()) == []
