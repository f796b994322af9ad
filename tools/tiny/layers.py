"""Mathematics of the layers over whole sequences: shapes [B, N, ...], differentiable everywhere.

The engine computes rows against caches (`di_engine.model`); training computes all positions of a
batch at once. The formulas are the same (DeepSeek-V4.1 reference `inference/model.py`,
`inference/engram.py`), and a test compares the two.

B sequences, N positions, C copies, H hidden size, h heads, d head size, K compressed entries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, softplus

from tiny.fuse import fusable

_NORM_EPS = 1e-20
_GATE_FLOOR = 1e-6
_MASKED = -1e30


class Mixes(NamedTuple):
    """Coefficients of a hyper-connection, float32: [.., C], [.., C] and [.., C, C]."""

    pre: Tensor
    post: Tensor
    residual: Tensor


@fusable
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last dimension, statistics in float32."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + _NORM_EPS)
    return (wide * inverse * weight.float()).to(x.dtype)


@fusable
def hyper_mixes(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
) -> Mixes:
    """Coefficients from streams [.., C, H]."""
    copies = streams.shape[-2]
    flat = streams.float().flatten(-2)
    inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + _NORM_EPS)
    mixed = linear(flat, fn) * inverse
    pre, post, residual = mixed.split([copies, copies, copies * copies], dim=-1)
    base_pre, base_post, base_residual = base.split([copies, copies, copies * copies])
    pre = torch.sigmoid(pre * scale[0] + base_pre) + eps
    post = 2 * torch.sigmoid(post * scale[1] + base_post)
    logits = (residual * scale[2] + base_residual).unflatten(-1, (copies, copies))
    return Mixes(pre, post, sinkhorn(logits, iterations, eps))


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Alternating division by row and column sums, columns last."""
    mix = torch.softmax(logits, dim=-1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return mix


@fusable
def collapse_norm(streams: Tensor, pre: Tensor, weight: Tensor) -> Tensor:
    """Input of a sub-layer: weighted sum of the copies, then RMSNorm. [.., H]."""
    summed = (pre.unsqueeze(-1) * streams.float()).sum(-2).to(streams.dtype).float()
    inverse = torch.rsqrt(summed.square().mean(-1, keepdim=True) + _NORM_EPS)
    return (summed * inverse * weight.float()).to(streams.dtype)


@fusable
def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the copies, [.., H]."""
    return (pre.unsqueeze(-1) * streams.float()).sum(-2).to(streams.dtype)


@fusable
def expand(y: Tensor, streams: Tensor, post: Tensor, residual: Tensor) -> Tensor:
    """Streams after a sub-layer with output y [.., H]."""
    wide = streams.float()
    total = post.unsqueeze(-1) * y.float().unsqueeze(-2)
    for copy in range(streams.shape[-2]):
        total = total + residual[..., copy, :, None] * wide[..., copy, None, :]
    return total.to(streams.dtype)


@fusable
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the last channels, interleaved pairs; cos and sin are [.., rd / 2]."""
    rotary = 2 * cos.shape[-1]
    kept, turned = x[..., :-rotary], x[..., -rotary:].float()
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return torch.cat((kept, pairs.flatten(-2).to(x.dtype)), dim=-1)


def window_keys(keys: Tensor, window: int) -> Tensor:
    """Keys that the queries of each chunk of `window` positions see: [B, M, 2 window, d]."""
    batch, length, size = keys.shape
    chunks = keys.view(batch, length // window, window, size)
    before = pad(chunks, (0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat((before, chunks), dim=2)


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Which of them each query sees: itself and the `window` - 1 before, [M, window, 2 window]."""
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(2 * window, device=device) - window
    near = (key <= query) & (key > query - window)
    chunk = torch.arange(length // window, device=device)[:, None, None]
    return near & ((chunk > 0) | (key >= 0))


@fusable
def _weigh(near: Tensor, near_mask: Tensor, far: Tensor, far_mask: Tensor, sink: Tensor) -> Tensor:
    """Probabilities of near and far keys in one softmax with the sink: [B, N, h, near + far]."""
    logits = torch.cat(
        (
            near.float().masked_fill(~near_mask, _MASKED),
            far.float().masked_fill(~far_mask, _MASKED),
        ),
        dim=-1,
    )
    largest = logits.amax(-1, keepdim=True).detach()
    exponents = torch.exp(logits - largest)
    total = exponents.sum(-1, keepdim=True) + torch.exp(sink[:, None] - largest)
    return (exponents / total).to(near.dtype)


@fusable
def _weigh_near(near: Tensor, near_mask: Tensor, sink: Tensor) -> Tensor:
    """The same without far keys."""
    logits = near.float().masked_fill(~near_mask, _MASKED)
    largest = logits.amax(-1, keepdim=True).detach()
    exponents = torch.exp(logits - largest)
    total = exponents.sum(-1, keepdim=True) + torch.exp(sink[:, None] - largest)
    return (exponents / total).to(near.dtype)


def attend(
    q: Tensor,
    keys: Tensor,
    sink: Tensor,
    window: int,
    entries: Tensor | None = None,
    entry_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """One softmax over window keys, compressed entries and the sink; keys are values too.

    Args:
        q: Shape [B, N, h, d], N a multiple of `window`.
        keys: Window keys, shape [B, N, d].
        sink: Shape [h].
        window: Window length.
        entries: Shape [B, K, d]; None for none.
        entry_mask: Which entries each position reads, shape [B or 1, N, K].

    Returns:
        Outputs [B, N, h, d], and the probabilities of the entries summed over heads [B, N, K].
    """
    batch, length, heads, size = q.shape
    chunks = length // window
    q = q * size**-0.5
    near_keys = window_keys(keys, window)
    near_mask = window_mask(length, window, q.device).view(1, length, 1, 2 * window)
    queries = q.reshape(batch, chunks, window * heads, size)
    near = (queries @ near_keys.transpose(-1, -2)).view(batch, length, heads, 2 * window)
    if entries is None or entry_mask is None:
        weights = _weigh_near(near, near_mask, sink)
        out = weights.view(batch, chunks, window * heads, 2 * window) @ near_keys
        return out.view(batch, length, heads, size), None
    far = (q.reshape(batch, length * heads, size) @ entries.transpose(-1, -2)).unflatten(
        1, (length, heads)
    )
    weights = _weigh(near, near_mask, far, entry_mask.unsqueeze(2), sink)
    near_weights, far_weights = weights.split([2 * window, entries.shape[1]], dim=-1)
    out = near_weights.reshape(batch, chunks, window * heads, 2 * window) @ near_keys
    out = out.view(batch, length, heads, size)
    far_out = far_weights.reshape(batch, length * heads, -1) @ entries
    return out + far_out.view_as(out), far_weights.detach().sum(2, dtype=torch.float32)


def attend_block(q: Tensor, keys: Tensor, is_valid: Tensor, sink: Tensor) -> Tensor:
    """Attention of draft rows: q [G, R, h, d] on keys [G, S, d] with mask [G, S]."""
    groups, rows, heads, size = q.shape
    scores = (q.reshape(groups, rows * heads, size) * size**-0.5) @ keys.transpose(-1, -2)
    scores = scores.view(groups, rows, heads, -1)
    weights = _weigh_near(scores, is_valid[:, None, None, :], sink)
    return (weights.view(groups, rows * heads, -1) @ keys).view_as(q)


@fusable
def pool_pairs(values: Tensor, gates: Tensor) -> Tensor:
    """Softmax over the two members of each pair, per channel: [B, N, d] to [B, N / 2, d]."""
    share = torch.softmax(gates.unflatten(1, (-1, 2)), dim=2)
    return torch.sum(share * values.unflatten(1, (-1, 2)), dim=2)


@fusable
def index_scores(q: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
    """Scores [B, N, K] of q [B, N, hI, dI], weights [B, N, hI] and keys [B, K, dI], float32."""
    batch, length, heads, size = q.shape
    products = q.reshape(batch, length * heads, size) @ keys.transpose(-1, -2)
    products = torch.relu(products.float()).unflatten(1, (length, heads))
    scaled = head_weights.float() * (size * heads) ** -0.5
    return torch.sum(products * scaled.unsqueeze(-1), dim=2)


@fusable
def route(logits: Tensor, bias: Tensor, active: int, factor: float) -> Tensor:
    """Weight of every expert, zero for those not chosen: [.., E] float32."""
    scores = torch.sqrt(softplus(logits))
    chosen = torch.topk(scores.detach() + bias, active, dim=-1).indices
    mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    kept = scores * mask
    return factor * kept / (kept.sum(-1, keepdim=True) + _NORM_EPS)


@fusable
def gated_experts(gate_up: Tensor, weights: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU of all experts times their weights: [.., E, 2I], [.., E] to [.., E, I]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (gate * torch.sigmoid(gate) * up * weights.unsqueeze(-1)).to(gate_up.dtype)


@fusable
def engram_gate(streams: Tensor, keys: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Streams [.., C, H] plus the value [.., H] as far as each copy agrees with its key."""
    wide, wide_keys = streams.float(), keys.float()
    dot = (wide * weight * wide_keys).sum(-1) * streams.shape[-1] ** -0.5
    dot = dot * torch.rsqrt(wide.square().mean(-1) + _NORM_EPS)
    dot = dot * torch.rsqrt(wide_keys.square().mean(-1) + _NORM_EPS)
    root = dot.abs().clamp_min(_GATE_FLOOR).sqrt()
    signed = torch.where(dot.signbit(), -root, root)
    return (wide + torch.sigmoid(signed).unsqueeze(-1) * value.float().unsqueeze(-2)).to(
        streams.dtype
    )


@fusable
def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood in nats of each target, float32."""
    wide = logits.float()
    chosen = wide.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return torch.logsumexp(wide, dim=-1) - chosen
