"""Small ops by di-kernels and by the public TileKernels 2.1.0, for `compare_tilekernels.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels.release import (
    ACTIVE,
    COMPRESSED_VOCABULARY,
    COPIES,
    EXPERTS,
    HIDDEN,
    SINKHORN_ITERATIONS,
    engram_tables,
)

Results = tuple[torch.Tensor, ...]
Call = Callable[[], Results]

MIXES = (2 + COPIES) * COPIES
EPS, NORM_EPS, GATE_FLOOR = 1e-6, 1e-20, 1e-6
SCALING = 1.5
PEER = "tile-kernels"


@dataclass(frozen=True)
class Comparison:
    """One op and size, by ours and by the other library.

    Args:
        op: Name of our op, or of several in turn.
        ours: The call.
        peers: Calls of the other library by name.
    """

    op: str
    ours: Call
    peers: dict[str, Call]


class Streams:
    """Streams and coefficients of two sub-layers."""

    def __init__(self, source: Source, num_rows: int) -> None:
        self.num_rows = num_rows
        self.x = source.normal(num_rows, COPIES, HIDDEN)
        self.y = source.normal(num_rows, HIDDEN)
        self.fn = source.wide(MIXES, COPIES * HIDDEN, scale=(COPIES * HIDDEN) ** -0.5)
        self.scale, self.base = source.wide(3), source.wide(MIXES)
        self.pre, self.post = source.wide(2, num_rows, COPIES).sigmoid().unbind()
        self.residual = source.wide(num_rows, COPIES, COPIES).softmax(2)
        self.norm = source.normal(HIDDEN)
        self.wide_norm = self.norm.float()

    def empty(self, *shape: int) -> torch.Tensor:
        """Float32 for one row each."""
        return torch.empty(self.num_rows, *shape, device=self.x.device)

    def product(self, x: torch.Tensor) -> Results:
        """What DeepGEMM computes for TileKernels, in one part."""
        flat = x.flatten(1).float()
        return torch.mm(flat, self.fn.T).unsqueeze(0), flat.square().sum(1).unsqueeze(0)

    def peer_mixes(self, product: torch.Tensor, squares: torch.Tensor) -> Results:
        """Norm, sigmoids and Sinkhorn as kernels of their own."""
        from tile_kernels import mhc

        mixes, post, pre = self.empty(MIXES), self.empty(COPIES), self.empty(COPIES)
        logits, residual = self.empty(COPIES**2), self.empty(COPIES, COPIES)
        mhc.mhc_reduce_partials_and_rmsnorm_fwd(
            product.unsqueeze(2), squares.unsqueeze(2), self.empty(1, MIXES), self.empty(1), mixes,
            COPIES * HIDDEN, NORM_EPS, 1,
        )  # fmt: skip
        mhc.mhc_pre_split_mixes_fwd(mixes, self.scale, self.base, pre, post, logits, 2.0, EPS)
        mhc.mhc_sinkhorn_fwd(logits.view_as(residual), residual, SINKHORN_ITERATIONS, EPS)
        return pre, post, residual

    def peer_fused(self, product: torch.Tensor, squares: torch.Tensor) -> Results:
        """Coefficients and the collapse with them, then the norm."""
        from tile_kernels import mhc

        post, residual = self.empty(COPIES), self.empty(COPIES**2)
        collapsed = torch.empty_like(self.y)
        mhc.mhc_pre_big_fuse_fwd(
            product, squares, self.scale, self.base, self.x, post, residual, collapsed, NORM_EPS,
            EPS, EPS, 2.0, SINKHORN_ITERATIONS, n_splits=1,
        )  # fmt: skip
        return post, residual.view(-1, COPIES, COPIES), self.peer_norm(collapsed)

    def peer_collapse(self, x: torch.Tensor) -> torch.Tensor:
        """With given weights, then the norm."""
        from tile_kernels import mhc

        collapsed = torch.empty_like(self.y)
        mhc.mhc_pre_apply_mix_fwd(x, self.pre, collapsed)
        return self.peer_norm(collapsed)

    def peer_norm(self, x: torch.Tensor) -> torch.Tensor:
        """RMSNorm."""
        from tile_kernels import quant

        normed: torch.Tensor = quant.norm_forward(x, self.norm, NORM_EPS)[0]
        return normed

    def peer_expand(self) -> torch.Tensor:
        """New streams."""
        from tile_kernels import mhc

        streams: torch.Tensor = mhc.mhc_post_fwd(
            self.y[None], self.x[None], self.post[None, ..., None], self.residual[None]
        )[0]
        return streams

    def our_mixes(self) -> ops.HyperMixes:
        """Coefficients."""
        return ops.hc_mixes(
            self.x, self.fn, self.scale, self.base, iterations=SINKHORN_ITERATIONS, eps=EPS
        )

    def our_mixes_and_collapse(self) -> Results:
        """The order of operations of the fused kernel of the other side."""
        mixes = self.our_mixes()
        normed = ops.hc_collapse_norm(self.x, mixes.pre, self.wide_norm)
        return mixes.post, mixes.residual, normed

    def our_transition(self) -> Results:
        """One op."""
        streams, normed, mixes = ops.hc_transition(
            self.y, self.x, self.post, self.residual, self.pre, self.wide_norm, self.fn, self.scale,
            self.base, iterations=SINKHORN_ITERATIONS, eps=EPS,
        )  # fmt: skip
        return streams, normed, *mixes

    def peer_transition(self) -> Results:
        """Expand, product, coefficients, collapse and norm in turn."""
        streams = self.peer_expand()
        return streams, self.peer_collapse(streams), *self.peer_mixes(*self.product(streams))


def hyper_connections(source: Source, num_rows: int) -> Iterator[Comparison]:
    """What lies between two sub-layers."""
    streams = Streams(source, num_rows)
    given = streams.product(streams.x)
    yield Comparison(
        "hc_expand",
        lambda: (ops.hc_expand(streams.y, streams.x, streams.post, streams.residual),),
        {PEER: lambda: (streams.peer_expand(),)},
    )
    yield Comparison(
        "hc_collapse_norm",
        lambda: (ops.hc_collapse_norm(streams.x, streams.pre, streams.wide_norm),),
        {PEER: lambda: (streams.peer_collapse(streams.x),)},
    )
    yield Comparison(
        "hc_mixes",
        lambda: tuple(streams.our_mixes()),
        {
            f"{PEER}, product by torch": lambda: streams.peer_mixes(*streams.product(streams.x)),
            f"{PEER}, product given": lambda: streams.peer_mixes(*given),
        },
    )
    yield Comparison(
        "hc_mixes and hc_collapse_norm",
        streams.our_mixes_and_collapse,
        {
            f"{PEER} fused, product by torch": lambda: streams.peer_fused(
                *streams.product(streams.x)
            ),
            f"{PEER} fused, product given": lambda: streams.peer_fused(*given),
        },
    )
    yield Comparison(
        "hc_transition",
        streams.our_transition,
        {f"{PEER}, product by torch": streams.peer_transition},
    )


def engram(source: Source, num_rows: int) -> Iterator[Comparison]:
    """Hash of both layers, and the gate."""
    tables = engram_tables().to(source.device)
    context = source.integers(0, COMPRESSED_VOCABULARY, num_rows, tables.multipliers.shape[1])
    ids = context.int()
    primes, offsets = tables.primes.int(), tables.offsets.int()

    def peer_hash() -> Results:
        from tile_kernels import engram as peer

        rows = peer.engram_hash(ids, tables.multipliers, primes, offsets)
        return (rows.transpose(0, 1),)

    yield Comparison(
        "engram_hash", lambda: (ops.engram_hash(context, 2, tables),), {PEER: peer_hash}
    )
    x, projected = source.normal(num_rows, COPIES, HIDDEN), source.normal(num_rows, 5 * HIDDEN)
    keys, value = projected.split([COPIES * HIDDEN, HIDDEN], dim=1)
    keys, weight = keys.unflatten(1, (COPIES, HIDDEN)), source.wide(COPIES, HIDDEN)

    def peer_gate() -> Results:
        from tile_kernels import engram as peer

        entries = projected.view(num_rows, COPIES + 1, HIDDEN)
        gated = peer.engram_gate_fwd(x, entries, weight, NORM_EPS, GATE_FLOOR, False)
        return (gated[0],)

    yield Comparison(
        "engram_gate", lambda: (ops.engram_gate(x, keys, value, weight),), {PEER: peer_gate}
    )


def router(source: Source, num_rows: int) -> Iterator[Comparison]:
    """The backbone's."""
    logits, bias = source.wide(num_rows, EXPERTS), source.wide(EXPERTS)

    def peer() -> Results:
        from tile_kernels import moe

        chosen: Results = moe.moe_topk_gate_forward(logits, ACTIVE, False, 0, SCALING, 0, bias=bias)
        return chosen

    yield Comparison(
        "router_topk",
        lambda: ops.router_topk(logits, bias, ACTIVE, scaling_factor=SCALING),
        {PEER: peer},
    )


def quantisers(source: Source, num_rows: int) -> Iterator[Comparison]:
    """The activation of a linear; the norm before it."""
    x = source.normal(num_rows, HIDDEN)
    for name, codes, group in (("mxfp8", "e4m3", 32), ("mxfp4", "e2m1", 32), ("nvfp4", "e2m1", 16)):
        quantize = getattr(ops, f"{name}_quantize")
        yield Comparison(
            f"{name}_quantize",
            functools.partial(quantize, x),
            {PEER: _cast(x, codes, group)},
        )
        if group == 32:
            round_trip = getattr(ops, f"{name}_fake_quantize")
            yield Comparison(
                f"{name}_fake_quantize",
                _alone(functools.partial(round_trip, x)),
                {f"{PEER}, in place": _cast_and_back(x.clone(), codes)},
            )
    weight = source.normal(HIDDEN)
    wide = weight.float()

    def peer_norm() -> Results:
        from tile_kernels import quant

        return (quant.norm_forward(x, weight, NORM_EPS)[0],)

    yield Comparison("rms_norm", lambda: (ops.rms_norm(x, wide, NORM_EPS),), {PEER: peer_norm})


def _alone(call: Callable[[], torch.Tensor]) -> Call:
    """One tensor as results."""
    return lambda: (call(),)


def _cast(x: torch.Tensor, codes: str, group: int) -> Call:
    def call() -> Results:
        from tile_kernels import quant

        powers = group == 32
        values, scale = quant.per_token_cast(
            x, codes, group, round_sf=powers, use_packed_ue8m0=powers, use_e4m3_sf=not powers
        )
        return values, scale.view(torch.uint8) if powers else scale

    return call


def _cast_and_back(x: torch.Tensor, codes: str) -> Call:
    """A second call finds what the first left, and leaves it so."""

    def call() -> Results:
        from tile_kernels import quant

        quant.per_token_cast_and_cast_back(x, codes, 32, round_sf=True)
        return (x,)

    return call


FAMILIES = {
    "hyper_connections": hyper_connections,
    "engram": engram,
    "router": router,
    "quantisers": quantisers,
}
