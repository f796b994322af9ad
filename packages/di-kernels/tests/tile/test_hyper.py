"""Arithmetic of the hyper-connections' kernels that can be tried without a GPU."""

import pytest
import torch

from di_kernels import ops

EPS, ITERATIONS = 1e-6, 20


def step(entries, factors, old):
    """New factors of one side as the kernel makes them: one reciprocal for all four."""
    first, last = factors[:, 0] * factors[:, 1], factors[:, 2] * factors[:, 3]
    others = torch.stack(
        [factors[:, 1] * last, factors[:, 0] * last, factors[:, 3] * first, factors[:, 2] * first],
        dim=1,
    )
    product = first * last
    return (entries * others[:, None]).sum(2) / product[:, None] + EPS * old, product


def logits_of(kind, count=2000):
    torch.manual_seed(0)
    if kind == "columns":
        return torch.where(torch.rand(count, 4, 4) < 0.4, 50.0, -50.0)
    if kind == "one column":
        return torch.tensor([1000.0, 0.0, 0.0, 0.0]).expand(1, 4, 4).contiguous()
    return float(kind) * torch.randn(count, 4, 4)


@pytest.mark.parametrize("kind", ["1", "3", "10", "100", "columns", "one column"])
def test_four_factors_share_a_reciprocal_without_loss(kind):
    logits = logits_of(kind)
    entries = torch.softmax(logits, 2) + EPS
    u, v = torch.ones(len(logits), 4), entries.sum(1) + EPS
    products = []
    for _ in range(ITERATIONS - 1):
        u, product = step(entries, v, u)
        products.append(product)
        v, product = step(entries.transpose(1, 2), u, v)
        products.append(product)
    got = entries / (u[:, :, None] * v[:, None])
    torch.testing.assert_close(
        got.double(), ops.hc_sinkhorn(logits.double(), ITERATIONS, EPS), rtol=1e-5, atol=3e-6
    )
    # Far from where float32 has no normal numbers.
    assert torch.cat(products).min() > 1e-25
    assert torch.cat(products).max() < 1e25


def test_a_factor_is_three_bfloat16_numbers():
    torch.manual_seed(0)
    factors = torch.randn(4096) * torch.exp2(torch.randint(-20, 20, (4096,)).float())
    rest, total = factors.clone(), torch.zeros(4096, dtype=torch.float64)
    for _ in range(3):
        piece = rest.bfloat16().float()
        rest -= piece
        total += piece.double()
    assert torch.equal(total, factors.double())
