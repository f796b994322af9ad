"""Hyper-connections: residual streams in several copies, mixed before and after every sub-layer.

A sub-layer reads a weighted sum of the copies (`hc_collapse`), and its output is spread over copies
that are mixed among themselves (`hc_expand`). The weights come from the streams (`hc_mixes`). In
DeepSeek-V4.1 the weights a sub-layer reads with are those the previous sub-layer computed; that
order is the caller's (reference `inference/model.py`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from di_kernels.checks import check_shape
from di_kernels.matmul import matmul_rows
from di_kernels.numerics import cast, sigmoid, wide_dtype, widen
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.sinkhorn import hc_sinkhorn
from di_kernels.registry import Op

_POST_FACTOR = 2.0


class HyperMixes(NamedTuple):
    """Mixing weights of a sub-layer, float32 (float64 for float64 streams).

    Args:
        pre: What the next sub-layer collapses the copies with, shape (num_rows, copies).
        post: How much of this sub-layer's output each copy takes, shape (num_rows, copies).
        residual: Entry (i, j) is the share of copy i that goes to copy j, shape (num_rows, copies,
            copies).
    """

    pre: torch.Tensor
    post: torch.Tensor
    residual: torch.Tensor


def hc_mixes(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    iterations: int,
    eps: float = 1e-6,
    norm_eps: float = 1e-20,
    batch_invariant: bool = False,
) -> HyperMixes:
    """Mixing weights from the streams.

    m = scale * (fn @ x) / rms(x) + base over the flattened copies; pre = sigmoid(m) + eps, post = 2
    sigmoid(m), residual = Sinkhorn(m), each from its own part of m.

    Args:
        x: Streams, shape (num_rows, copies, hidden), float32, float64 or bfloat16.
        fn: Shape ((2 + copies) * copies, copies * hidden), float32 or float64.
        scale: Factors of the three parts, shape (3,), dtype of `fn`.
        base: Shape ((2 + copies) * copies,), dtype of `fn`.
        iterations: Sinkhorn iterations.
        eps: Added to `pre` and used by Sinkhorn.
        norm_eps: Added to the mean of squares.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        The weights.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None, None))
    copies, hidden = x.shape[1:]
    num_mixes = (2 + copies) * copies
    check_shape("fn", fn, (num_mixes, copies * hidden))
    check_shape("scale", scale, (3,))
    check_shape("base", base, (num_mixes,))
    run = _HC_MIXES.select(x, rows=x.shape[0], copies=copies, hidden=hidden)
    return run(x, fn, scale, base, iterations, eps, norm_eps, batch_invariant)


def hc_collapse(
    x: torch.Tensor, pre: torch.Tensor, *, batch_invariant: bool = False
) -> torch.Tensor:
    """Weighted sum of the copies, sum over c of pre[c] * x[c], rounded once.

    Args:
        x: Streams, shape (num_rows, copies, hidden), float32, float64 or bfloat16.
        pre: Shape (num_rows, copies), float32 or float64.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape (num_rows, hidden), dtype of `x`.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None, None))
    check_shape("pre", pre, tuple(x.shape[:2]))
    run = _HC_COLLAPSE.select(x, copies=x.shape[1], hidden=x.shape[2])
    return run(x, pre, batch_invariant)


def hc_collapse_norm(
    x: torch.Tensor,
    pre: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float = 1e-20,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """`rms_norm(hc_collapse(x, pre), norm_weight, eps)`: the input of a sub-layer.

    Args:
        x: Streams, shape (num_rows, copies, hidden), float32, float64 or bfloat16.
        pre: Shape (num_rows, copies), float32 or float64.
        norm_weight: Shape (hidden,).
        eps: Added to the mean of squares.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape (num_rows, hidden), dtype of `x`.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None, None))
    check_shape("pre", pre, tuple(x.shape[:2]))
    run = _HC_COLLAPSE_NORM.select(x, copies=x.shape[1], hidden=x.shape[2])
    return run(x, pre, norm_weight, eps, batch_invariant)


def hc_expand(
    y: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    residual: torch.Tensor,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """New streams: copy j is post[j] * y + sum over i of residual[i, j] * x[i], rounded once.

    Args:
        y: Output of the sub-layer, shape (num_rows, hidden), float32, float64 or bfloat16.
        x: Streams, shape (num_rows, copies, hidden), dtype of `y`.
        post: Shape (num_rows, copies), float32 or float64.
        residual: Shape (num_rows, copies, copies), dtype of `post`.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape and dtype of `x`.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None, None))
    rows, copies, hidden = x.shape
    check_shape("y", y, (rows, hidden))
    check_shape("post", post, (rows, copies))
    check_shape("residual", residual, (rows, copies, copies))
    run = _HC_EXPAND.select(x, copies=copies, hidden=hidden)
    return run(y, x, post, residual, batch_invariant)


# --- Reference ---


@functools.cache
def _part_of_mix(copies: int, device: torch.device) -> torch.Tensor:
    """Which of the three scales belongs to each mix."""
    parts = [0] * copies + [1] * copies + [2] * copies**2
    return torch.tensor(parts, device=device)


def _hc_mixes(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
    batch_invariant: bool,
) -> HyperMixes:
    """One product with the flattened streams, then sigmoids and Sinkhorn."""
    copies = x.shape[1]
    dtype = wide_dtype(x.dtype)
    flat = widen(x).flatten(1)
    inverse_rms = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    product = matmul_rows(flat, cast(fn, dtype), batch_invariant=batch_invariant)
    scales = cast(scale, dtype)[_part_of_mix(copies, x.device)]
    mixes = product * inverse_rms * scales + cast(base, dtype)
    gate_logits = mixes[:, : 2 * copies]
    gates = sigmoid(gate_logits) if batch_invariant else torch.sigmoid(gate_logits)
    logits = torch.unflatten(mixes[:, 2 * copies :], 1, (copies, copies))
    residual = hc_sinkhorn(logits, iterations, eps, batch_invariant=batch_invariant)
    return HyperMixes(gates[:, :copies] + eps, _POST_FACTOR * gates[:, copies:], residual)


def _hc_collapse(x: torch.Tensor, pre: torch.Tensor, batch_invariant: bool) -> torch.Tensor:
    """One small product per row, or ordered elementwise sums."""
    wide = widen(x)
    pre = cast(pre, wide.dtype)
    if not batch_invariant:
        return cast(torch.bmm(pre.unsqueeze(1), wide).squeeze(1), x.dtype)
    total = pre[:, 0, None] * wide[:, 0]
    for copy in range(1, x.shape[1]):
        total = total + pre[:, copy, None] * wide[:, copy]
    return cast(total, x.dtype)


def _hc_collapse_norm(
    x: torch.Tensor, pre: torch.Tensor, norm_weight: torch.Tensor, eps: float, batch_invariant: bool
) -> torch.Tensor:
    """Collapse rounded to the dtype of the streams, then RMSNorm."""
    return rms_norm(_hc_collapse(x, pre, batch_invariant), norm_weight, eps)


def _hc_expand(
    y: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    residual: torch.Tensor,
    batch_invariant: bool,
) -> torch.Tensor:
    """One small product per row, or ordered elementwise sums."""
    wide = widen(x)
    residual = cast(residual, wide.dtype)
    total = cast(post, wide.dtype).unsqueeze(2) * cast(y, wide.dtype).unsqueeze(1)
    if not batch_invariant:
        return cast(torch.baddbmm(total, residual.transpose(1, 2), wide), x.dtype)
    for copy in range(x.shape[1]):
        total = total + residual[:, copy, :, None] * wide[:, copy, None]
    return cast(total, x.dtype)


_HC_MIXES = Op("hc_mixes", _hc_mixes, determinism="row_invariant_on_request")
_HC_COLLAPSE = Op("hc_collapse", _hc_collapse, determinism="row_invariant_on_request")
_HC_COLLAPSE_NORM = Op(
    "hc_collapse_norm", _hc_collapse_norm, determinism="row_invariant_on_request"
)
_HC_EXPAND = Op("hc_expand", _hc_expand, determinism="row_invariant_on_request")
