"""From one sub-layer to the next: expand, then the next sub-layer's coefficients and input.

A model runs `hc_expand`, `hc_mixes` and `hc_collapse_norm` back to back, and all three move the
streams: as one op they are read and written once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from di_kernels.checks import check_shape
from di_kernels.ops.hyper_connections import (
    HyperMixes,
    _hc_collapse_norm,
    _hc_expand,
    _hc_mixes,
)
from di_kernels.registry import Op


class HyperTransition(NamedTuple):
    """What a sub-layer starts from.

    Args:
        streams: New streams, shape (num_rows, copies, hidden).
        normed: Input of the sub-layer, shape (num_rows, hidden), dtype of the streams.
        mixes: Its coefficients.
    """

    streams: torch.Tensor
    normed: torch.Tensor
    mixes: HyperMixes


def hc_transition(
    y: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    residual: torch.Tensor,
    pre: torch.Tensor,
    norm_weight: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    iterations: int,
    eps: float = 1e-6,
    norm_eps: float = 1e-20,
    batch_invariant: bool = False,
) -> HyperTransition:
    """`hc_expand`, then `hc_mixes` and `hc_collapse_norm` of the new streams.

    Args:
        y: Output of the sub-layer before, shape (num_rows, hidden), float32, float64 or bfloat16.
        x: Its streams, shape (num_rows, copies, hidden), dtype of `y`.
        post: Its coefficients, shape (num_rows, copies), float32 or float64.
        residual: Likewise, shape (num_rows, copies, copies).
        pre: What the next sub-layer reads the new streams with, shape (num_rows, copies).
        norm_weight: Of the next sub-layer's norm, shape (hidden,).
        fn: Of the next sub-layer's coefficients, as `hc_mixes` takes it.
        scale: Likewise.
        base: Likewise.
        iterations: Sinkhorn iterations.
        eps: Added to `pre` and used by Sinkhorn.
        norm_eps: Added to all means of squares.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        New streams, input and coefficients of the next sub-layer.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None, None))
    rows, copies, hidden = x.shape
    num_mixes = (2 + copies) * copies
    check_shape("y", y, (rows, hidden))
    check_shape("post", post, (rows, copies))
    check_shape("residual", residual, (rows, copies, copies))
    check_shape("pre", pre, (rows, copies))
    check_shape("norm_weight", norm_weight, (hidden,))
    check_shape("fn", fn, (num_mixes, copies * hidden))
    check_shape("scale", scale, (3,))
    check_shape("base", base, (num_mixes,))
    run = _HC_TRANSITION.select(x, copies=copies, hidden=hidden)
    return run(
        y, x, post, residual, pre, norm_weight, fn, scale, base, iterations, eps, norm_eps,
        batch_invariant,
    )  # fmt: skip


def _hc_transition(
    y: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    residual: torch.Tensor,
    pre: torch.Tensor,
    norm_weight: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
    batch_invariant: bool,
) -> HyperTransition:
    """The three references in turn."""
    streams = _hc_expand(y, x, post, residual, batch_invariant)
    mixes = _hc_mixes(streams, fn, scale, base, iterations, eps, norm_eps, batch_invariant)
    normed = _hc_collapse_norm(streams, pre, norm_weight, norm_eps, batch_invariant)
    return HyperTransition(streams, normed, mixes)


_HC_TRANSITION = Op("hc_transition", _hc_transition, determinism="row_invariant_on_request")
