"""Sparse attention beside gathered entries and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import release as widths
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.records import RecordPool


def sparse_attention(source: Source) -> Iterator[Workload]:
    """Both record formats, and the window alone."""
    window, sink = widths.window_pool(source, 40_000), source.wide(widths.HEADS)
    for name, selected, width in (
        ("nvfp4", widths.record_pool(source, "nvfp4", 128, 1000), 512),
        ("mxfp8", widths.record_pool(source, "mxfp8", 64, 1000), 512),
        ("window", None, 0),
    ):
        for num_rows in (1, 6, 16, 64, 256, 2048):
            q = source.normal(num_rows, widths.HEADS, widths.HEAD_DIM)
            slots = source.integers(0, window.num_slots, num_rows, 128).to(torch.int32)
            chosen = None
            moved = 2 * q.nbytes + slots.numel() * 528
            if selected is not None:
                chosen = source.integers(0, selected.num_slots, num_rows, width).to(torch.int32)
                moved += chosen.numel() * (288 if name == "nvfp4" else 528)

            def ours(
                q: torch.Tensor = q,
                slots: torch.Tensor = slots,
                chosen: torch.Tensor | None = chosen,
                selected: RecordPool | None = selected,
            ) -> torch.Tensor:
                return ops.sparse_attention(
                    q, window, slots, sink, selected=selected, selected_slots=chosen
                )

            ways = {"tilelang": on_tilelang(ours)}
            if num_rows <= 256:
                ways["torch bf16"] = _gathered_attention(source, q, slots, chosen)
            flops = 4 * num_rows * widths.HEADS * widths.HEAD_DIM * (128 + width)
            yield Workload("sparse_attention", f"{name}, {num_rows} rows", ways, moved, flops)


def _gathered_attention(
    source: Source, q: torch.Tensor, slots: torch.Tensor, chosen: torch.Tensor | None
) -> Callable[[], object]:
    """Entries kept in bfloat16, gathered, then attended by torch; the sink is left out."""
    entries = source.normal(128_000, widths.HEAD_DIM)
    places = slots if chosen is None else torch.cat((slots, chosen), dim=1)
    flat = places.flatten().long() % entries.shape[0]

    def call() -> torch.Tensor:
        keys = entries[flat].view(q.shape[0], 1, -1, widths.HEAD_DIM)
        return torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1), keys, keys)

    return call
