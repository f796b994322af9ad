"""References have the gradients of their mathematics: a small model is trained through them."""

import pytest
import torch

from di_kernels import ops


def leaf(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def rotate(x):
    frequencies = ops.rope_frequencies(4, 100.0)
    return ops.apply_rope(x, ops.rope_rotation(torch.arange(3), frequencies, torch.float64))


CALLS = {
    "rms_norm": (lambda x, w: ops.rms_norm(x, w), [(3, 8), (8,)]),
    "apply_rope": (rotate, [(3, 2, 6)]),
    "linear": (lambda x, w: ops.linear(x, w), [(3, 8), (5, 8)]),
    "linear, batch invariant": (
        lambda x, w: ops.linear(x, w, batch_invariant=True), [(3, 8), (5, 8)]
    ),
    "grouped_linear": (ops.grouped_linear, [(3, 2, 4), (2, 5, 4)]),
    "compress_pool": (
        lambda v, g: ops.compress_pool(v, g, torch.tensor([[0, 1], [2, 3]])), [(4, 6), (4, 6)]
    ),
    "sink_attention": (
        lambda q, k, s: ops.sink_attention(q, k, torch.tensor([[True, True, False]] * 2), s),
        [(2, 2, 4), (2, 3, 4), (2,)],
    ),
    "hc_mixes": (
        lambda x, fn, s, b: ops.hc_mixes(x, fn, s, b, iterations=3)[2],
        [(2, 2, 4), (8, 8), (3,), (8,)],
    ),
    "hc_expand": (ops.hc_expand, [(2, 4), (2, 3, 4), (2, 3), (2, 3, 3)]),
    "hc_collapse_norm": (ops.hc_collapse_norm, [(2, 3, 4), (2, 3), (4,)]),
    "router_topk": (lambda x: ops.router_topk(x, None, 2)[1], [(3, 5)]),
    "moe_experts": (
        lambda x, w, up, down: ops.moe_experts(
            x, torch.tensor([[0, 2], [2, -1]]), w, up, down, limit=2.0
        ),
        [(2, 4), (2, 2), (3, 6, 4), (3, 4, 3)],
    ),
    "engram_gate": (ops.engram_gate, [(2, 2, 4), (2, 2, 4), (2, 4), (2, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_gradient(name):
    call, shapes = CALLS[name]
    assert torch.autograd.gradcheck(call, [leaf(*shape) for shape in shapes])


def test_index_scores_have_gradients_for_queries_and_weights():
    pool = ops.RecordPool(torch.randn(2, 4, 32, dtype=torch.float64), "plain", 32, 4)

    def scores(q, w):
        return ops.index_scores(
            q, w, pool, torch.tensor([[1, 0]]), torch.tensor([0, 0]), torch.tensor([6, 6]),
            max_entries=6,
        )  # fmt: skip

    assert torch.autograd.gradcheck(scores, [leaf(2, 2, 32), leaf(2, 2)])
