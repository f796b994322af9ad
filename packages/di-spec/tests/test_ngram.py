import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec.drafting import DraftContext, Drafter
from di_spec.ngram import NgramDrafter, NgramIndex


def longest_match(text, min_n, max_n):
    """Length of the longest suffix that occurred before, by definition; 0 if below `min_n`."""
    for n in range(min(max_n, len(text) - 1), min_n - 1, -1):
        if any(text[end - n : end] == text[-n:] for end in range(n, len(text))):
            return n
    return 0


texts = st.lists(st.integers(0, 3), max_size=60)


@given(texts, texts, st.integers(1, 3), st.integers(0, 3), st.integers(1, 8))
def test_drafts_continue_a_longest_match(prompt, output, min_n, more, length):
    max_n = min_n + more
    drafter = NgramDrafter(length, min_n, max_n)
    drafter.begin("a", prompt)
    text, new = list(prompt), []
    for token_id in [*output, None]:
        drafts = drafter.propose(DraftContext(["a"], [new], length)).drafts_of(0)
        n = longest_match(text, min_n, max_n)
        assert len(drafts) == (length if n else 0)
        if n:
            index = drafter._indices["a"]
            end, matched = index.match_end, index.match_length
            assert 0 < end < len(text)
            assert min(matched, max_n) == n
            assert text[end - matched : end] == text[-matched:]
            copied = list(text)
            for i in range(length):
                copied.append(copied[end + i])
            assert drafts == copied[len(text) :]
        if token_id is not None:
            new = [token_id]
            text.append(token_id)


@given(st.integers(0, 2**32), st.integers(2, 200))
def test_prompt_in_bulk_or_token_by_token(seed, size):
    text = np.random.default_rng(seed).integers(0, 5, size)
    index = NgramIndex(text[:1], 2, 4)
    for token_id in text[1:].tolist():
        index.extend([token_id])
    bulk = NgramIndex(text, 2, 4)
    assert min(index.match_length, 4) == min(bulk.match_length, 4)
    assert len(index) == len(bulk) == size
    assert bulk.is_beginning_of(text)
    assert bulk.is_beginning_of(np.append(text, 1))
    assert not bulk.is_beginning_of(text[:-1])
    assert not bulk.is_beginning_of(np.append(text[:-1], 7))


def test_match_is_followed_beyond_the_longest_ngram():
    text = [1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4]
    index = NgramIndex(text[:10], 2, 2)
    index.extend(text[10:])
    assert index.match_length == 4
    assert index.continuation(1).tolist() == [9]  # an index of pairs alone would find [8]


def test_index_grows_with_new_text():
    text = np.random.default_rng(3).integers(0, 1000, 3000).tolist()
    index = NgramIndex(text[:5], 2, 5)
    index.extend(text[5:])
    index.extend(text[100:110])
    assert (index.match_end, index.match_length) == (110, 10)
    assert index.continuation(4).tolist() == text[110:114]


def test_loops_are_drafted_at_full_length():
    drafter = NgramDrafter(7, 1, 3)
    drafter.begin(0, [9, 1, 2, 1, 2])
    assert drafter.propose(DraftContext([0], [[]], 7)).drafts_of(0) == [1, 2, 1, 2, 1, 2, 1]


def test_limits_and_missing_matches():
    drafter = NgramDrafter(4, 1, 2)
    for name, prompt in (("loop", [1, 1, 1]), ("new", [1, 2, 3]), ("empty", [])):
        drafter.begin(name, prompt)
    proposal = drafter.propose(DraftContext(["new", "loop", "empty"], [[], [], []], [4, 2, 4]))
    assert proposal.lengths.tolist() == [0, 2, 0]
    proposal = drafter.propose(DraftContext(["loop"], [[]], 0))
    assert proposal.lengths.tolist() == [0]


def test_requests_begin_end_and_begin_again():
    drafter = NgramDrafter(2, 1, 2)
    drafter.begin("a", [1, 1])
    drafter.end("a")
    drafter.end("a")
    with pytest.raises(KeyError):
        drafter.propose(DraftContext(["a"], [[]], 2))
    drafter.begin("a", [5, 6, 5])
    assert drafter.propose(DraftContext(["a"], [[]], 2)).drafts_of(0) == [6, 5]


def test_confidence_follows_experience():
    drafter = NgramDrafter(3, 1, 2)
    drafter.begin("a", [1, 1, 1])
    first = drafter.propose(DraftContext(["a"], [[]], 3)).confidence[0]
    for _ in range(50):
        drafter.propose(DraftContext(["a"], [[]], 3))
        drafter.observe(["a"], [1])
    later = drafter.propose(DraftContext(["a"], [[]], 3)).confidence[0]
    assert later[0] > first[0] > later[1]
    assert later[2] == first[2]  # the third draft was never reached
    drafter.observe(["a", "unknown"], [-1, 3])  # nothing to learn


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 3, 2), (1, 2, 17)])
def test_wrong_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="ascend from 1 to 16"):
        NgramDrafter(*sizes)


def test_is_a_drafter():
    assert isinstance(NgramDrafter(), Drafter)
