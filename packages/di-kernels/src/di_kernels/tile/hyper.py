"""Hyper-connections by TileLang: views of the streams as units of eight columns, the launches."""

from __future__ import annotations

import torch

from di_kernels.ops.hyper_connections import HyperMixes
from di_kernels.ops.hyper_transition import HyperTransition
from di_kernels.tile.catalogue import kernel_for

COPIES, MAX_HIDDEN = 4, 8192
ROWS, COLUMNS = 64, 32
"""Rows of a thread block, and columns of every copy that it takes at a time."""

SHARES = 32
"""Floats it leaves per row: 24 products, squares of the streams and of the collapsed row."""

_UNIT = 8
# Above, the fused kernel's one block per 32 columns moves more than it saves.
_FUSED_ROWS = 128
_INVARIANT_CHUNKS, _MAX_CHUNKS = 2, 10
_CHUNK_CHOICES = (1, 2, 4, 5, 8, 10)


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
    """Arguments as the op passes them."""
    num_rows, _, hidden = x.shape
    mixes = _empty_mixes(num_rows, x.device)
    if num_rows == 0:
        return mixes
    chunks = _part_chunks(x, batch_invariant)
    streams, factors = _units(x), _wide_units(fn)
    # Where the kernels of a transition have a collapsed row, these have none.
    nothing = x.new_empty(num_rows, hidden // _UNIT, _UNIT)
    shares = _empty_shares(num_rows, hidden, chunks, x.device)
    kernel_for("hc_mixes_partial", x.device)(
        nothing, streams, mixes.post, mixes.residual, mixes.pre, factors, chunks, streams, nothing,
        shares,
    )  # fmt: skip
    kernel_for("hc_mixes_finish", x.device)(
        shares, nothing, factors[0, 0], scale.float(), base.float(), iterations, eps, norm_eps,
        norm_eps, mixes.pre, mixes.post, mixes.residual.view(num_rows, -1), nothing,
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
    num_rows, _, hidden = x.shape
    coefficients = fn, scale, base, iterations, eps, norm_eps, batch_invariant
    if num_rows > _FUSED_ROWS and not batch_invariant:
        streams = hc_expand(y, x, post, residual, batch_invariant)
        normed = hc_collapse_norm(streams, pre, norm_weight, norm_eps, batch_invariant)
        return HyperTransition(streams, normed, hc_mixes(streams, *coefficients))
    mixes = _empty_mixes(num_rows, x.device)
    streams = torch.empty_like(x, memory_format=torch.contiguous_format)
    normed = x.new_empty(num_rows, hidden)
    if num_rows:
        collapsed = x.new_empty(num_rows, hidden // _UNIT, _UNIT)
        shares = _empty_shares(num_rows, hidden, 1, x.device)
        kernel_for("hc_transition_partial", x.device)(
            _units(y), _units(x), _wide(post), _wide(residual), _wide(pre), _wide_units(fn), 1,
            _units(streams), collapsed, shares,
        )  # fmt: skip
        kernel_for("hc_transition_finish", x.device)(
            shares, collapsed, _wide_units(norm_weight), scale.float(), base.float(), iterations,
            eps, norm_eps, norm_eps, mixes.pre, mixes.post, mixes.residual.view(num_rows, -1),
            _units(normed),
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
    """A norm weight, or factors by copy, in units of eight columns."""
    shape = (-1, _UNIT) if x.dim() == 1 else (x.shape[0], COPIES, -1, _UNIT)
    return _wide(x).view(shape)


def _empty_mixes(num_rows: int, device: torch.device) -> HyperMixes:
    pre, post, residual = torch.empty(
        num_rows * (2 + COPIES) * COPIES, dtype=torch.float32, device=device
    ).split([num_rows * COPIES, num_rows * COPIES, num_rows * COPIES**2])
    shape = (num_rows, COPIES)
    return HyperMixes(pre.view(shape), post.view(shape), residual.view(*shape, COPIES))


def _part_chunks(x: torch.Tensor, batch_invariant: bool) -> int:
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    return part_chunks(
        x.shape[0], x.shape[2] // COLUMNS, multiprocessors, batch_invariant=batch_invariant
    )


def part_chunks(
    num_rows: int, num_chunks: int, multiprocessors: int, *, batch_invariant: bool
) -> int:
    """Chunks of columns per thread block: a divisor of all, more where there are blocks to spare.

    Args:
        num_rows: Rows of the call.
        num_chunks: Columns of a copy / `COLUMNS`.
        multiprocessors: Of the device; each works on two blocks.
        batch_invariant: Whether the number must not depend on the rows.
    """
    tiles = -(-num_rows // ROWS)
    spare = tiles * num_chunks / (2 * multiprocessors)
    wanted = _INVARIANT_CHUNKS if batch_invariant else min(_MAX_CHUNKS, spare)
    return next((n for n in _CHUNK_CHOICES if n >= wanted and not num_chunks % n), 1)


def _empty_shares(num_rows: int, hidden: int, chunks: int, device: torch.device) -> torch.Tensor:
    shape = (num_rows, hidden // (COLUMNS * chunks), SHARES)
    return torch.empty(shape, dtype=torch.float32, device=device)
