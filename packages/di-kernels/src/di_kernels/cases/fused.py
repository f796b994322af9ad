"""Cases of ops that join others: against their parts in float64, which have cases of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Sizes, Source, nbytes
from di_kernels.ops.rope import RopeRotation
from di_kernels.records import RecordPool

_RATIO = 2
_SINKHORN_ITERATIONS = 20


def cases(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    """Cases of this module for one number of rows."""
    yield _fp8_quantize(sizes, source, num_rows)
    yield _norm_rope_write(sizes, source, num_rows)
    yield _compress_entries(sizes, source, num_rows)
    yield _hc_transition(sizes, source, num_rows)


def _fp8_quantize(sizes: Sizes, source: Source, num_rows: int) -> Case:
    x = source.normal(num_rows, sizes.hidden)
    x[-1:] = 0

    def run(rows: torch.Tensor) -> Outputs:
        codes, scale = ops.fp8_quantize(x[rows])
        return codes.double() * scale.double().unsqueeze(-1), scale

    def oracle() -> Outputs:
        scale = x.double().abs().amax(-1).clamp_min(2.0**-100) / 448
        return x.double(), scale

    # Half a step of e4m3's three bits of mantissa.
    return Case(
        "fp8_quantize", f"{num_rows}x{sizes.hidden}", source.dtype, num_rows, run, oracle,
        num_bytes=x.nbytes + x.numel(), tolerance=2.0**-4,
    )  # fmt: skip


def _rotation(sizes: Sizes, source: Source, num_rows: int) -> RopeRotation:
    dtype = torch.float64 if source.dtype == torch.float64 else torch.float32
    positions = source.integers(0, 100_000, num_rows)
    frequencies = ops.rope_frequencies(sizes.rotary_dim, 10_000.0).to(source.device)
    return ops.rope_rotation(positions, frequencies, dtype)


def _picked(rotation: RopeRotation, rows: torch.Tensor) -> RopeRotation:
    return RopeRotation(*(part[rows] for part in rotation))


def _doubled(rotation: RopeRotation) -> RopeRotation:
    return RopeRotation(*(part.double() for part in rotation))


def _empty_pool(x: torch.Tensor, slots: int) -> RecordPool:
    return RecordPool(x.new_zeros(slots, x.shape[-1]), "plain", x.shape[-1])


def _norm_rope_write(sizes: Sizes, source: Source, num_rows: int) -> Case:
    x, weight = source.normal(num_rows, sizes.head_dim), source.normal(sizes.head_dim)
    rotation = _rotation(sizes, source, num_rows)
    slots = source.permutation(num_rows + 3)[:num_rows]

    def run(rows: torch.Tensor) -> Outputs:
        pool = _empty_pool(x, num_rows + 3)
        turns = _picked(rotation, rows)
        normed = ops.norm_rope_write(x[rows], weight, turns, pool, slots[rows])
        return normed, ops.read_records(pool, slots[rows], x.dtype)

    def oracle() -> Outputs:
        normed = ops.rms_norm(x.double(), weight.double())
        return normed, ops.apply_rope(normed, _doubled(rotation))

    label = f"{num_rows}x{sizes.head_dim}"
    return Case(
        "norm_rope_write", label, source.dtype, num_rows, run, oracle, num_bytes=3 * x.nbytes
    )


def _compress_entries(sizes: Sizes, source: Source, num_rows: int) -> Case:
    dim = sizes.head_dim
    new = source.normal(_RATIO * num_rows - 1, 2 * dim)
    weight, rotation = source.normal(dim), _rotation(sizes, source, num_rows)
    kept = RecordPool(source.normal(4, 2 * dim), "plain", 2 * dim)
    history = torch.tensor([2], device=source.device)  # the first group began a step earlier
    groups = torch.arange(_RATIO * num_rows, device=source.device).view(-1, _RATIO)
    slots = torch.arange(num_rows, device=source.device)

    def run(rows: torch.Tensor) -> Outputs:
        pool = _empty_pool(new[:, :dim], num_rows)
        turns = _picked(rotation, rows)
        normed = ops.compress_entries(
            new, groups[rows], weight, turns, pool, slots[rows], state=kept, history_slots=history
        )
        return normed, ops.read_records(pool, slots[rows], new.dtype)

    def oracle() -> Outputs:
        whole = torch.cat((kept.buffer[2:3], new)).double()
        pooled = ops.compress_pool(whole[:, :dim], whole[:, dim:], groups)
        normed = ops.rms_norm(pooled, weight.double())
        return normed, ops.apply_rope(normed, _doubled(rotation))

    label = f"{num_rows}x{_RATIO}x{dim}"
    return Case(
        "compress_entries", label, source.dtype, num_rows, run, oracle,
        num_bytes=nbytes(new) + 2 * num_rows * dim * new.element_size(),
    )  # fmt: skip


def _hc_transition(sizes: Sizes, source: Source, num_rows: int) -> Case:
    copies, hidden = sizes.copies, sizes.hidden
    num_mixes = (2 + copies) * copies
    y, x = source.normal(num_rows, hidden), source.normal(num_rows, copies, hidden)
    post, pre = (source.wide(num_rows, copies).sigmoid() for _ in range(2))
    residual = source.wide(num_rows, copies, copies).softmax(2)
    norm_weight = source.normal(hidden)
    fn = source.wide(num_mixes, copies * hidden, scale=(copies * hidden) ** -0.5)
    scale, base = source.wide(3), source.wide(num_mixes)
    invariant = source.batch_invariant

    def run(rows: torch.Tensor) -> Outputs:
        streams, normed, mixes = ops.hc_transition(
            y[rows], x[rows], post[rows], residual[rows], pre[rows], norm_weight, fn, scale, base,
            iterations=_SINKHORN_ITERATIONS, batch_invariant=invariant,
        )  # fmt: skip
        return (streams, normed, *mixes)

    def oracle() -> Outputs:
        # What follows reads the streams as rounded to their dtype.
        wide = [part.double() for part in (y, x, post, residual)]
        streams = ops.hc_expand(y, x, post, residual, batch_invariant=invariant).double()
        mixes = ops.hc_mixes(
            streams, fn.double(), scale.double(), base.double(), iterations=_SINKHORN_ITERATIONS
        )
        normed = ops.hc_collapse_norm(streams, pre.double(), norm_weight.double())
        return (ops.hc_expand(*wide), normed, *mixes)

    label = f"{num_rows}x{copies}x{hidden}"
    return Case(
        "hc_transition", label, source.dtype, num_rows, run, oracle,
        num_bytes=nbytes(y, fn) + 2 * x.nbytes + y.nbytes, num_flops=2 * num_rows * fn.numel(),
    )  # fmt: skip
