import pytest
import torch

from di_kernels import ops


def step(p, q, num_requests, temperature=1.0):
    """One drafted token per request, of the law q, verified against p; emitted tokens in order."""
    generator = torch.Generator().manual_seed(5)
    logits = p.log().expand(2 * num_requests, -1)
    rows = torch.arange(2 * num_requests)
    degrees = torch.full((2 * num_requests,), temperature, dtype=torch.float64)
    drawn = ops.draw_tokens(logits, degrees, rows // 2, rows % 2)
    drafts = torch.multinomial(q, num_requests, replacement=True, generator=generator)
    return ops.verify_drafts_by_ratio(
        *drawn, logits, degrees, rows // 2, rows % 2,
        torch.stack([drafts, torch.full_like(drafts, -1)], 1).flatten(),
        torch.arange(num_requests + 1) * 2, width=2,
        q_log_probs=q.log().expand(num_requests, 1, -1),
    )  # fmt: skip


def test_emitted_tokens_follow_the_target_whatever_the_drafts():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.2, 0.7])
    got = step(p, q, 20_000)
    first = got.token_ids[:, 0].bincount(minlength=3) / 20_000
    torch.testing.assert_close(first, p, atol=0.015, rtol=0)
    agreement = torch.minimum(p, q).sum()
    torch.testing.assert_close(got.num_accepted.float().mean(), agreement, atol=0.015, rtol=0)
    second = got.token_ids[got.num_accepted == 1, 1]
    shares = second.bincount(minlength=3) / len(second)
    torch.testing.assert_close(shares, p, atol=0.02, rtol=0)


def test_equal_laws_accept_every_draft():
    p = torch.tensor([0.5, 0.3, 0.2])
    assert (step(p, p, 1000).num_accepted == 1).all()


def test_temperature_zero_accepts_the_largest_logit_alone():
    p, q = torch.tensor([0.4, 0.35, 0.25]), torch.tensor([0.1, 0.45, 0.45])
    got = step(p, q, 200, temperature=0.0)
    assert (got.token_ids[:, 0] == 0).all()
    assert 0 < got.num_accepted.sum() < 60


def test_a_draft_that_the_target_does_not_have_is_refused():
    logits, one = torch.zeros(2, 4), torch.ones(2, dtype=torch.float64)
    keys = torch.zeros(2, dtype=torch.int64), torch.arange(2)
    drawn = ops.draw_tokens(logits, one, *keys)
    got = ops.verify_drafts_by_ratio(
        *drawn, logits, one, *keys, torch.tensor([-2, -1]), torch.tensor([0, 2]), width=2
    )
    assert got.num_accepted.tolist() == [0]
    assert got.num_emitted.tolist() == [1]


def test_wrong_arguments_are_named():
    logits, one = torch.zeros(2, 4), torch.ones(2, dtype=torch.float64)
    keys = torch.zeros(2, dtype=torch.int64), torch.arange(2)
    drawn = ops.draw_tokens(logits, one, *keys)
    rest = torch.tensor([1, -1]), torch.tensor([0, 2])
    with pytest.raises(ValueError, match="expected `q_log_probs` beside `q_token_ids`"):
        ops.verify_drafts_by_ratio(
            *drawn, logits, one, *keys, *rest, width=2,
            q_token_ids=torch.zeros(1, 1, 3, dtype=torch.int64),
        )  # fmt: skip
    with pytest.raises(ValueError, match="invalid shape of `q_log_probs`"):
        ops.verify_drafts_by_ratio(
            *drawn, logits, one, *keys, *rest, width=2, q_log_probs=torch.zeros(2, 1, 4)
        )
