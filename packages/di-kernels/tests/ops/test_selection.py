import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from di_kernels import ops

SCORES = st.lists(
    st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 2.0, torch.nan]), min_size=1, max_size=40
)


@given(scores=SCORES, k=st.integers(1, 45), data=st.data())
def test_topk_takes_the_best_lower_index_first(scores, k, data):
    visible = data.draw(st.integers(0, len(scores)))
    row = torch.tensor([scores])
    selected = ops.select_topk(row, torch.tensor([visible]), k)[0].tolist()
    ranks = torch.where(row.isnan(), -torch.inf, row)[0].tolist()
    ranked = sorted(range(visible), key=lambda i: (-ranks[i], i))
    expected = sorted(ranked[:k])
    assert selected == expected + [-1] * (k - len(expected))


@given(scores=SCORES, block=st.integers(1, 9), count=st.integers(1, 6), data=st.data())
def test_candidates_hold_the_newest_block_and_only_visible_ones(scores, block, count, data):
    visible = data.draw(st.integers(0, len(scores)))
    row, seen = torch.tensor([scores]), torch.tensor([visible])
    blocks = ops.select_candidate_blocks(row, seen, block_size=block, num_blocks=count)
    chosen = [b for b in blocks[0].tolist() if b >= 0]
    num_visible_blocks = -(-visible // block)
    assert len(chosen) == min(count, num_visible_blocks)
    assert chosen == sorted(set(chosen))
    assert blocks[0].tolist() == chosen + [-1] * (count - len(chosen))
    if visible:
        assert chosen[-1] == num_visible_blocks - 1
    length = int(ops.candidate_visible(blocks, seen, block)[0])
    entries = [e for b in chosen for e in range(b * block, min(visible, (b + 1) * block))]
    assert length == len(entries)
    compact = torch.arange(length)[None]
    assert ops.expand_candidates(compact, blocks, block)[0].tolist() == entries


def test_the_best_blocks_win_beside_the_newest():
    scores = torch.tensor([[9.0, 0, 1, 1, 8, 0, 2, 2, 0, 0, 0]])
    blocks = ops.select_candidate_blocks(scores, torch.tensor([10]), block_size=2, num_blocks=3)
    assert blocks.tolist() == [[0, 2, 4]]


def test_candidate_scores_are_the_dense_ones():
    generator = torch.Generator().manual_seed(0)
    pool = ops.RecordPool(torch.randn(6, 8, 32, generator=generator), "plain", 32, 8)
    q, w = torch.randn(3, 2, 32, generator=generator), torch.randn(3, 2, generator=generator)
    arguments = (q, w, pool, torch.tensor([[4, 0, 5]]), torch.zeros(3, dtype=torch.int64))
    visible = torch.tensor([20, 3, 0])
    for invariant in (False, True):
        dense = ops.index_scores(*arguments, visible, max_entries=20, batch_invariant=invariant)
        blocks = ops.select_candidate_blocks(dense, visible, block_size=4, num_blocks=3)
        compact = ops.candidate_scores(
            *arguments, visible, blocks, block_size=4, max_entries=20, batch_invariant=invariant
        )
        for row in range(3):
            for place, value in enumerate(compact[row].tolist()):
                block = int(blocks[row, place // 4])
                entry = 4 * block + place % 4
                seen = block >= 0 and entry < int(visible[row])
                assert value == (dense[row, entry].item() if seen else -torch.inf)


def test_requests_of_different_lengths_are_scored_apart():
    generator = torch.Generator().manual_seed(0)
    pool = ops.RecordPool(torch.randn(6, 8, 32, generator=generator), "plain", 32, 8)
    q, w = torch.randn(4, 2, 32, generator=generator), torch.randn(4, 2, generator=generator)
    tables = torch.tensor([[4, 0, 5], [1, -1, -1]], dtype=torch.int32)
    requests, visible = torch.tensor([0, 0, 0, 1]), torch.tensor([18, 19, 20, 5])
    for invariant in (False, True):
        together = ops.index_scores(
            q, w, pool, tables, requests, visible, max_entries=20, batch_invariant=invariant
        )
        alone = ops.index_scores(
            q[3:], w[3:], pool, tables[1:], requests[:1], visible[3:], max_entries=5,
            batch_invariant=invariant,
        )  # fmt: skip
        torch.testing.assert_close(together[3:, :5], alone, rtol=1e-5, atol=1e-6)
        assert (together[3, 5:] == -torch.inf).all()
        if invariant:
            assert torch.equal(together[3:, :5], alone)
    nothing = ops.index_scores(q, w, pool, tables, requests, visible * 0, max_entries=0)
    assert nothing.shape == (4, 0)


def test_entries_follow_the_block_table():
    entries = torch.tensor([[0, 9, 17, -1], [7, -1, -1, -1]])
    tables = torch.tensor([[5, 2, 0], [3, -1, -1]], dtype=torch.int32)
    slots = ops.entries_to_slots(entries, tables, torch.tensor([0, 1]), 8)
    assert slots.tolist() == [[40, 17, 1, -1], [31, -1, -1, -1]]


def test_short_block_tables_are_refused():
    pool = ops.RecordPool(torch.randn(6, 8, 32), "plain", 32, 8)
    with pytest.raises(ValueError, match=r"at least 3.*17 entries"):
        ops.index_scores(
            torch.zeros(1, 2, 32), torch.zeros(1, 2), pool, torch.zeros(1, 2, dtype=torch.int32),
            torch.zeros(1, dtype=torch.int64), torch.tensor([17]), max_entries=17,
        )  # fmt: skip
