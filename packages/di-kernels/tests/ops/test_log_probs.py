import pytest
import torch

from di_kernels import ops


def test_raw_log_probs_are_the_log_softmax():
    logits = torch.randn(5, 1000) * 4
    tokens = torch.randint(1000, (5,))
    got = ops.log_probs(logits, tokens, num_top=20)
    want = logits.double().log_softmax(1)
    torch.testing.assert_close(got.chosen, want.gather(1, tokens[:, None])[:, 0].float())
    values, ids = want.topk(20)
    torch.testing.assert_close(got.top, values.float())
    assert torch.equal(got.top_token_ids, ids)


def test_equal_logits_are_listed_by_id():
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, -0.0, 2.0]])
    got = ops.log_probs(logits, torch.tensor([0]), num_top=6)
    assert got.top_token_ids.tolist() == [[1, 2, 5, 0, 3, 4]]


def test_temperature_zero_reports_temperature_one():
    logits, tokens = torch.randn(2, 50), torch.tensor([3, 4])
    zero = ops.log_probs(logits, tokens, num_top=2, temperature=torch.zeros(2).double())
    one = ops.log_probs(logits, tokens, num_top=2)
    assert all(torch.equal(a, b) for a, b in zip(zero, one, strict=True))


def test_what_is_not_there_is_marked():
    logits = torch.randn(4, 3)
    logits[1, 0], logits[2, 0], logits[3] = torch.nan, torch.inf, -torch.inf
    got = ops.log_probs(logits, torch.tensor([-1, 0, 0, 0]), num_top=5)
    assert got.chosen.isnan().all()
    assert (got.top_token_ids[0, :3] >= 0).all()
    assert (got.top_token_ids[0, 3:] == -1).all()
    assert (got.top_token_ids[1:] == -1).all()
    assert (got.top[1:] == -torch.inf).all()


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="expected `num_top` of at least 0, got: -1"):
        ops.log_probs(torch.randn(1, 4), torch.tensor([0]), num_top=-1)
