"""Hyper-connections by TileLang: views of the streams as units of eight columns, the launches."""

from __future__ import annotations

import torch

from di_kernels.ops.hyper_connections import HyperMixes
from di_kernels.ops.hyper_transition import HyperTransition
from di_kernels.tile.catalogue import kernel_for

COPIES, MAX_HIDDEN = 4, 8192
MIXES = (2 + COPIES) * COPIES
ROWS = 32
"""Rows that a thread block works on at a time."""

PART_UNITS = 40
"""Units of eight columns of a part, of one copy after the other or as many of each."""

SHARES = 32
"""Floats that a part leaves per row: 24 products, the sum of squares, the rest of a line."""

# Blocks side by side for the coefficients of many rows: more would take the factors apart again.
_MAX_BLOCKS = 4
# With so many a thread block has a multiprocessor, and its registers, to itself.
_FEW_ROWS = 64
# Above, a block that expands and multiplies waits longer than it saves.
_FUSED_ROWS = 128
_UNIT = 8


def hc_mixes(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
    batch_invariant: bool,
) -> HyperMixes:
    """Arguments as the op passes them; `batch_invariant` changes nothing, every result is."""
    num_rows, copies, hidden = x.shape
    mixes = _empty_mixes(num_rows, x.device)
    if num_rows == 0:
        return mixes
    # What the kernel of a transition norms, this one has not.
    nothing = x.new_empty(num_rows, hidden // _UNIT, _UNIT)
    no_weight = torch.empty(nothing.shape[1:], dtype=torch.float32, device=x.device)
    shares = _empty_shares(num_rows, -(-copies * hidden // (_UNIT * PART_UNITS)), x.device)
    kernel_for("hc_mixes_few" if num_rows <= _FEW_ROWS else "hc_mixes_many", x.device)(
        _units(x.flatten(1)), _wide_units(fn), min(-(-num_rows // ROWS), _MAX_BLOCKS), shares
    )
    kernel_for("hc_mixes_finish", x.device)(
        shares.unflatten(2, (-1, 4)), nothing, no_weight, scale.float(), base.float(), iterations,
        eps, norm_eps, norm_eps, mixes.pre, mixes.post, mixes.residual.flatten(1), nothing,
    )  # fmt: skip
    return mixes


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
    iterations: int,
    eps: float,
    norm_eps: float,
    batch_invariant: bool,
) -> HyperTransition:
    """Arguments as the op passes them; without `batch_invariant` many rows take the three ops."""
    num_rows, copies, hidden = x.shape
    if num_rows > _FUSED_ROWS and not batch_invariant:
        streams = hc_expand(y, x, post, residual, batch_invariant)
        normed = hc_collapse_norm(streams, pre, norm_weight, norm_eps, batch_invariant)
        coefficients = fn, scale, base, iterations, eps, norm_eps, batch_invariant
        return HyperTransition(streams, normed, hc_mixes(streams, *coefficients))
    mixes = _empty_mixes(num_rows, x.device)
    streams = torch.empty_like(x, memory_format=torch.contiguous_format)
    normed = x.new_empty(num_rows, hidden)
    if num_rows:
        collapsed = x.new_empty(num_rows, hidden // _UNIT, _UNIT)
        shares = _empty_shares(num_rows, -(-copies * hidden // (_UNIT * PART_UNITS)), x.device)
        kernel_for("hc_transition_products", x.device)(
            _units(y), _units(x), _wide(post), _wide(residual), _wide(pre),
            _wide_units(fn).unflatten(1, (copies, -1)), _units(streams), collapsed, shares,
        )  # fmt: skip
        kernel_for("hc_transition_finish", x.device)(
            shares.unflatten(2, (-1, 4)), collapsed, _wide_units(norm_weight), scale.float(),
            base.float(), iterations, eps, norm_eps, norm_eps, mixes.pre, mixes.post,
            mixes.residual.flatten(1), _units(normed),
        )  # fmt: skip
    return HyperTransition(streams, normed, mixes)


def hc_expand(
    y: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    residual: torch.Tensor,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; the bits are those of the batch-invariant reference."""
    streams = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.shape[0]:
        kernel_for("hc_expand", x.device)(
            _units(y), _units(x), _wide(post), _wide(residual), _units(streams)
        )
    return streams


def hc_collapse_norm(
    x: torch.Tensor,
    pre: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; `batch_invariant` changes nothing, every result is."""
    normed = x.new_empty(x.shape[0], x.shape[2])
    if x.shape[0]:
        kernel_for("hc_collapse_norm", x.device)(
            _units(x), _wide(pre), _wide_units(norm_weight), eps, _units(normed)
        )
    return normed


def _units(x: torch.Tensor) -> torch.Tensor:
    """Columns in units of 16 bytes, without copying where rows are contiguous."""
    return torch.unflatten(x.contiguous(), -1, (-1, _UNIT))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32).contiguous()


def _wide_units(x: torch.Tensor) -> torch.Tensor:
    return _units(_wide(x))


def _empty_mixes(num_rows: int, device: torch.device) -> HyperMixes:
    pre, post, residual = torch.empty(num_rows * MIXES, dtype=torch.float32, device=device).split(
        [num_rows * COPIES, num_rows * COPIES, num_rows * COPIES**2]
    )
    shape = (num_rows, COPIES)
    return HyperMixes(pre.view(shape), post.view(shape), residual.view(*shape, COPIES))


def _empty_shares(num_rows: int, num_parts: int, device: torch.device) -> torch.Tensor:
    return torch.empty(num_rows, num_parts, SHARES, dtype=torch.float32, device=device)
