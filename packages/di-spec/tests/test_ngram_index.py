"""The index against a search by definition, step by step.

Small vocabularies make matches, loops and matches that overlap their own source frequent; both
paths (numpy over all texts, Python text by text) are forced whatever the number of texts.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from di_spec import _ngram_store, _ngrams, ngram_index
from di_spec.ngram_index import NgramIndex


def first_longest(text, min_n, max_n):
    """Place after the first occurrence of the longest suffix, and its length, by definition."""
    for n in range(min(max_n, len(text) - 1), min_n - 1, -1):
        for end in range(n, len(text)):
            if text[end - n : end] == text[-n:]:
                return end, n
    return 0, 0


class Oracle:
    """One text whose match is followed token by token and searched for where it breaks."""

    def __init__(self, text, min_n, max_n):
        self.text, self.lengths = list(text), (min_n, max_n)
        self.match = first_longest(self.text, min_n, max_n)

    def extend(self, token_ids):
        for token_id in token_ids:
            end, length = self.match
            self.text.append(token_id)
            if length and self.text[end] == token_id:
                self.match = end + 1, length + 1
            else:
                self.match = first_longest(self.text, *self.lengths)

    def continuation(self, length):
        end, matched = self.match
        text = list(self.text)
        for i in range(length if matched else 0):
            text.append(text[end + i])
        return text[len(self.text) :]


def as_array(token_ids, spare):
    width = max(map(len, token_ids), default=0) + spare
    rows = [ids + [-1] * (width - len(ids)) for ids in token_ids]
    return np.array(rows, np.int64).reshape(len(rows), width)


def rows_of(oracles):
    return np.array(list(oracles), np.int64)


def run(draw, many):
    """Texts come, grow, are cut and go, in an order that hypothesis chooses."""
    min_n = draw(st.integers(1, 3))
    max_n = min_n + draw(st.integers(0, 3))
    token = st.integers(0, draw(st.integers(0, 4)))
    index, oracles = NgramIndex(min_n, max_n), {}
    for _ in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(0, 3))):
            text = draw(st.lists(token, max_size=30))
            row = index.add(np.array(text, np.int32) if many else text)
            assert row not in oracles
            oracles[row] = Oracle(text, min_n, max_n)
        for row in list(oracles):
            fate = draw(st.integers(0, 12))
            if fate == 0:
                index.remove(row)
                del oracles[row]
            elif fate == 1:
                size = draw(st.integers(0, len(oracles[row].text)))
                index.truncate(row, size)
                oracles[row] = Oracle(oracles[row].text[:size], min_n, max_n)
        new = [draw(st.lists(token, max_size=9)) for _ in oracles]
        width = draw(st.integers(1, 20))
        limits = draw(
            st.one_of(st.integers(-1, 21), st.just([draw(st.integers(-1, 21)) for _ in new]))
        )
        given_as = as_array(new, draw(st.integers(0, 1))) if draw(st.booleans()) else new
        drafts, lengths, matched = index.propose(rows_of(oracles), given_as, limits, width)
        assert drafts.shape == (len(oracles), width)
        for i, (row, oracle) in enumerate(oracles.items()):
            oracle.extend(new[i])
            limit = limits if isinstance(limits, int) else limits[i]
            expected = oracle.continuation(max(0, min(limit, width)))
            assert index.text(row).tolist() == oracle.text
            assert index.match(row) == oracle.match
            assert drafts[i].tolist() == expected + [-1] * (width - len(expected))
            assert lengths[i] == len(expected)
            assert matched[i] == min(oracle.match[1], max_n)


@pytest.mark.parametrize("many", [1, 1000])
@given(st.data())
def test_first_occurrence_of_the_longest_suffix_is_followed(many, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_index, "_MANY", many)
        run(data.draw, many == 1)


@pytest.mark.parametrize("many", [1, 1000])
@settings(max_examples=40)
@given(st.data())
def test_equal_hashes_change_nothing(many, data):
    """Every n-gram in one chain of every table: all that is found is found by its tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_index, "_MANY", many)
        patch.setattr(ngram_index, "_MULTIPLIERS", [0] * _ngrams.MAX_N)
        patch.setattr(_ngram_store, "MULTIPLIERS", 0 * _ngrams.MULTIPLIERS)
        run(data.draw, many == 1)


def test_full_lines_hand_on(monkeypatch):
    """Pairs lie behind a first line that single tokens fill, one of which is the one looked for."""
    monkeypatch.setattr(ngram_index, "_MANY", 1)
    monkeypatch.setattr(ngram_index, "_MULTIPLIERS", [0] * _ngrams.MAX_N)
    monkeypatch.setattr(_ngram_store, "MULTIPLIERS", 0 * _ngrams.MULTIPLIERS)
    index = NgramIndex(1, 2)
    text = [*range(9, -1, -1), *range(10)]
    rows = np.array([index.add(text) for _ in range(9)])
    index.propose(rows, [[first, first + 1] for first in range(9)], 0, 1)
    assert [index.match(row) for row in rows.tolist()] == [(12 + i, 2) for i in range(9)]


def test_paths_change_with_the_batch():
    """Texts of several hundred tokens grow in large and small batches by turns."""
    rng = np.random.default_rng(8)
    index, oracles = NgramIndex(2, 4), {}
    for _ in range(30):
        text = rng.integers(0, 12, 20).tolist()
        oracles[index.add(text)] = Oracle(text, 2, 4)
    tables = set()
    for step in range(60):
        rows = list(oracles)[: 30 if step % 3 else 5]
        new = [rng.integers(0, 12, rng.integers(0, 7)).tolist() for _ in rows]
        if step == 30:
            new[2] = rng.integers(0, 12, 90).tolist()  # more than is taken at once
        index.propose(np.array(rows), new, 0, 1)
        for row, token_ids in zip(rows, new, strict=True):
            oracles[row].extend(token_ids)
            assert index.match(row) == oracles[row].match
        tables.add(index._tables.data.size)
    assert len(tables) > 1


def test_memory_is_bound_by_the_texts_that_live():
    """Requests come and go; what is held stays within what a few of them need."""
    rng = np.random.default_rng(2)
    index = NgramIndex(2, 5)
    rows = [index.add(rng.integers(0, 50, 500)) for _ in range(8)]
    held = index._tables.data.nbytes + index._texts.data.nbytes
    for turn in range(200):
        index.remove(rows.pop(0))
        rows.append(index.add(rng.integers(0, 50, int(rng.integers(1, 500)))))
        index.propose(np.array(rows[-1:]), [rng.integers(0, 50, turn % 80).tolist()], 0, 1)
    assert index._tables.data.nbytes + index._texts.data.nbytes <= 4 * held
    assert len(index._state) <= 16


def test_tables_grow_with_new_ngrams_and_not_with_repeated_text():
    rng = np.random.default_rng(5)
    index = NgramIndex(2, 5)
    new, repeated = index.add([1, 2, 3]), index.add([1, 2, 3])
    for _ in range(300):
        tokens = [rng.integers(0, 10**6, 20).tolist(), [1, 2, 3, 4] * 5]
        index.propose(np.array([new, repeated]), tokens, 0, 1)
    num_lines = index._tables.where[:, 1]
    num_entries = 4 * index.num_tokens(new)
    assert num_entries / 4 <= num_lines[new] <= num_entries
    assert num_lines[repeated] == 128


def test_match_is_followed_beyond_the_longest_ngram():
    text = [1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4]
    index = NgramIndex(2, 2)
    row = index.add(text[:10])
    drafts, _, matched = index.propose(np.array([row]), [text[10:]], 1, 1)
    assert index.match(row) == (4, 4)
    assert drafts.tolist() == [[9]]
    assert matched.tolist() == [2]


def test_wrong_lengths_are_refused():
    index = NgramIndex(1, 2)
    rows = np.array([index.add([1, 2])])
    with pytest.raises(ValueError, match=r"`new_token_ids` must have one entry .* got 2 for 1"):
        index.propose(rows, [[1], [2]], 1, 1)
    with pytest.raises(ValueError, match=r"`max_tokens` must have one entry .* got 0 for 1"):
        index.propose(rows, [[1]], [], 1)
    assert index.text(0).tolist() == [1, 2]


def test_lines_of_tables_are_cache_lines():
    """A look-up reads one cache line where it would read two."""
    index = NgramIndex(2, 5)
    for size in (10, 1000, 30_000):
        index.add(np.arange(size))
        assert index._tables.units.ctypes.data % 64 == 0
        assert index._tables.units[0].nbytes == 64
