"""Sparse attention against float64, block edges and empty rows included."""

from __future__ import annotations

from collections.abc import Iterator

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
from di_kernels.records import RecordPool


def cases(source: Source) -> Iterator[Case]:
    """Both record formats, and the window alone."""
    window, sink = window_pool(source, 3000), source.wide(HEADS)
    pools = {
        "nvfp4": record_pool(source, "nvfp4", 128, 40),
        "mxfp8": record_pool(source, "mxfp8", 64, 40),
        "window only": None,
    }
    for name, selected in pools.items():
        widths = ((128, 512), (133, 65), (1, 63)) if selected else ((128, 0), (133, 0), (1, 0))
        for window_width, width in widths:
            for num_rows in ROWS:
                q = source.normal(num_rows, HEADS, HEAD_DIM)
                slots = source.integers(-1, window.num_slots, num_rows, window_width)
                chosen = None
                if selected is not None:
                    chosen = source.integers(-1, selected.num_slots, num_rows, width)
                    chosen[-1:] = -1
                slots[-1:] = -1  # a row without any key
                label = f"{name} {num_rows}x{HEADS}x{HEAD_DIM}, {window_width}+{width} keys"
                yield _attention_case(source, label, q, window, slots, selected, chosen, sink)


def _attention_case(
    source: Source,
    label: str,
    q: torch.Tensor,
    window: RecordPool,
    slots: torch.Tensor,
    selected: RecordPool | None,
    chosen: torch.Tensor | None,
    sink: torch.Tensor,
) -> Case:
    def run(rows: torch.Tensor) -> Outputs:
        out = ops.sparse_attention(
            q[rows], window, slots[rows], sink, selected=selected,
            selected_slots=None if chosen is None else chosen[rows],
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    def oracle() -> Outputs:
        keys, valid = window.read(slots, torch.float64), slots >= 0
        if selected is not None and chosen is not None:
            keys = torch.cat((keys, selected.read(chosen, torch.float64)), dim=1)
            valid = torch.cat((valid, chosen >= 0), dim=1)
        scores = torch.einsum("thd,tkd->thk", q.double(), keys) * HEAD_DIM**-0.5
        powers = scores.exp() * valid.unsqueeze(1)
        total = powers.sum(-1) + sink.double().exp()
        return (torch.einsum("thk,tkd->thd", powers, keys) / total.unsqueeze(-1),)

    return Case("sparse_attention", label, q.dtype, q.shape[0], run, oracle)
