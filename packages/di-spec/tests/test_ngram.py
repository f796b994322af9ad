import numpy as np
import pytest

from di_spec.drafting import DraftContext, Drafter
from di_spec.ngram import NgramDrafter


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


def test_batch_and_alone_draft_the_same():
    rng = np.random.default_rng(4)
    together, alone = NgramDrafter(4, 2, 4), NgramDrafter(4, 2, 4)
    texts = {f"r{i}": rng.integers(0, 6, 15).tolist() for i in range(40)}
    for request_id, text in texts.items():
        together.begin(request_id, text)
        alone.begin(request_id, text)
    for _ in range(12):
        ids = [request_id for request_id in texts if rng.random() < 0.9]
        new = [rng.integers(0, 6, rng.integers(0, 5)).tolist() for _ in ids]
        batch = together.propose(DraftContext(ids, new, 4))
        batch.check()
        for i, request_id in enumerate(ids):
            one = alone.propose(DraftContext([request_id], [new[i]], 4))
            assert batch.drafts_of(i) == one.drafts_of(0)
            np.testing.assert_array_equal(batch.confidence[i], one.confidence[0])


def test_new_tokens_may_be_an_array():
    drafter = NgramDrafter(2, 1, 2)
    for name in "abc":
        drafter.begin(name, [1, 2, 3, 4])
    new = np.array([[1, 2, -1], [-1, -1, -1], [2, 3, 4]])
    proposal = drafter.propose(DraftContext(["a", "b", "c"], new, 2))
    assert proposal.token_ids.tolist() == [[3, 4], [-1, -1], [2, 3]]


def test_rollback_forgets_the_last_tokens():
    drafter = NgramDrafter(2, 1, 2)
    drafter.begin("a", [1, 2, 3, 1])
    drafter.propose(DraftContext(["a"], [[7, 8, 9]], 2))
    drafter.rollback("a", 4)
    assert drafter.propose(DraftContext(["a"], [[]], 2)).drafts_of(0) == [2, 3]
    assert drafter.propose(DraftContext(["a"], [[7]], 2)).drafts_of(0) == []
    with pytest.raises(KeyError):
        drafter.rollback("unknown", 1)


def test_wrong_requests_change_no_text():
    drafter = NgramDrafter(2, 1, 2)
    drafter.begin("a", [1, 2, 1])
    with pytest.raises(KeyError):
        drafter.propose(DraftContext(["a", "unknown"], [[9], [9]], 2))
    with pytest.raises(ValueError, match="`request_ids` must differ"):
        drafter.propose(DraftContext(["a", "a"], [[9], [9]], 2))
    with pytest.raises(ValueError, match="one entry for each request"):
        drafter.propose(DraftContext(["a"], [[9], [9]], 2))
    assert drafter.propose(DraftContext(["a"], [[]], 2)).drafts_of(0) == [2, 1]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 3, 2), (1, 2, 17)])
def test_wrong_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="ascend from 1 to 16"):
        NgramDrafter(*sizes)


def test_is_a_drafter():
    assert isinstance(NgramDrafter(), Drafter)
