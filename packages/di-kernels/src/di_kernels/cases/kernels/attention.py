"""Sparse attention against float64: block edges, empty rows, rotated or not, up to prefill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import (
    HEAD_DIM,
    HEADS,
    ROWS,
    record_pool,
    window_pool,
)
from di_kernels.ops.rope import RopeRotation, YarnScaling
from di_kernels.records import RecordPool

_ROTARY = 64
_FREQUENCIES = ops.rope_frequencies(_ROTARY, 160_000.0, yarn=YarnScaling(16, 65_536))
_FEW_ROWS = (1, 2, 65)
"""Of the awkward widths and of rotations, which prefill has too."""

_LARGE = 16.0
"""Factor of queries whose scores are large."""

_HEADS_OF_PREFILL = slice(None, None, 32)
"""Heads compared; all of them in float64 would be 2 GB."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    q: torch.Tensor
    window: RecordPool
    slots: torch.Tensor
    selected: RecordPool | None
    chosen: torch.Tensor | None
    sink: torch.Tensor
    rotation: RopeRotation | None


def cases(source: Source) -> Iterator[Case]:
    """Both record formats and the window alone (133 keys: the drafter's), rotated and not."""
    window, sink = window_pool(source, 3000), source.wide(HEADS)
    pools = {
        "nvfp4": record_pool(source, "nvfp4", 128, 40),
        "mxfp8": record_pool(source, "mxfp8", 64, 40),
        "window only": None,
    }
    for name, selected in pools.items():
        widths = ((128, 512), (133, 65), (1, 63)) if selected else ((128, 0), (133, 0), (1, 0))
        for window_width, width in widths:
            for rotates in (False, True):
                for num_rows in _FEW_ROWS if rotates or window_width != 128 else ROWS:
                    q = source.normal(num_rows, HEADS, HEAD_DIM)
                    given = _inputs(
                        source, q, window, window_width, selected, width, sink, rotates=rotates
                    )
                    yield _attention_case(source, name, given)
        if selected is not None:
            # Scores that grow by far more than a factor of 2^16 behind the first tile.
            q = _LARGE * source.normal(_FEW_ROWS[-1], HEADS, HEAD_DIM)
            given = _inputs(source, q, window, 128, selected, 512, sink, rotates=False)
            yield _attention_case(source, f"{name}, large scores", given)
    q = source.normal(1024, HEADS, HEAD_DIM)
    for num_rows, name, width in ((1024, "window only", 0), (8192, "nvfp4", 512)):
        many = q.repeat(num_rows // q.shape[0], 1, 1)
        given = _inputs(source, many, window, 128, pools[name], width, sink, rotates=True)
        yield _attention_case(source, name, given, _HEADS_OF_PREFILL)


def _inputs(
    source: Source,
    q: torch.Tensor,
    window: RecordPool,
    window_width: int,
    selected: RecordPool | None,
    width: int,
    sink: torch.Tensor,
    *,
    rotates: bool,
) -> _Inputs:
    num_rows = q.shape[0]
    slots = source.integers(-1, window.num_slots, num_rows, window_width)
    slots[-1:] = -1  # a row without any key
    chosen = None
    if selected is not None:
        chosen = source.integers(-1, selected.num_slots, num_rows, width)
        chosen[-1:] = -1
    rotation = None
    if rotates:
        positions = source.integers(0, 1 << 20, num_rows)
        rotation = ops.rope_rotation(positions, _FREQUENCIES.to(q.device))
    return _Inputs(q, window, slots, selected, chosen, sink, rotation)


def _attention_case(source: Source, name: str, given: _Inputs, heads: slice = slice(None)) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        rotation = given.rotation
        if rotation is not None:
            rotation = RopeRotation(rotation.cos[rows], rotation.sin[rows])
        out = ops.sparse_attention(
            given.q[rows], given.window, given.slots[rows], given.sink, selected=given.selected,
            selected_slots=None if given.chosen is None else given.chosen[rows],
            rotation=rotation, batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out[:, heads],)

    def oracle() -> Outputs:
        rows = torch.arange(given.q.shape[0]).split(256)
        return (torch.cat([_oracle(given, part, heads) for part in rows]),)

    num_rows, window_width = given.slots.shape
    width = 0 if given.chosen is None else given.chosen.shape[1]
    label = f"{name} {num_rows}x{HEADS}x{HEAD_DIM}, {window_width}+{width} keys"
    if given.rotation is not None:
        label += ", rotated"
    return Case("sparse_attention", label, given.q.dtype, num_rows, run, oracle)


def _oracle(given: _Inputs, rows: torch.Tensor, heads: slice) -> torch.Tensor:
    """Some rows and heads in float64; queries are rounded after their rotation, as promised."""
    slots, q = given.slots[rows], given.q[rows][:, heads]
    keys, valid = given.window.read(slots, torch.float64), slots >= 0
    if given.selected is not None and given.chosen is not None:
        chosen = given.chosen[rows]
        keys = torch.cat((keys, given.selected.read(chosen, torch.float64)), dim=1)
        valid = torch.cat((valid, chosen >= 0), dim=1)
    if given.rotation is not None:
        q = _turned(q.double(), given.rotation, rows, 1).to(q.dtype)
    scores = torch.einsum("thd,tkd->thk", q.double(), keys) * HEAD_DIM**-0.5
    powers = scores.exp() * valid.unsqueeze(1)
    total = powers.sum(-1) + given.sink[heads].double().exp()
    out = torch.einsum("thk,tkd->thd", powers, keys) / total.unsqueeze(-1)
    return out if given.rotation is None else _turned(out, given.rotation, rows, -1)


def _turned(
    x: torch.Tensor, rotation: RopeRotation, rows: torch.Tensor, direction: int
) -> torch.Tensor:
    """Pairs of the last channels as complex numbers times the row's rotation or its conjugate."""
    cos, sin = (table[rows].double().unsqueeze(1)[..., 1::2] for table in rotation)
    pairs = torch.view_as_complex(x[..., -_ROTARY:].unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.complex(cos, direction * sin)
    return torch.cat((x[..., :-_ROTARY], torch.view_as_real(turned).flatten(-2)), dim=-1)
