"""Sparse attention beside gathered entries and torch's own, its rotations inside and apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import release as widths
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.kernel_bench.torch_ways import compiled_way
from di_kernels.ops.rope import RopeRotation
from di_kernels.records import RecordPool
from di_kernels.registry import use_backend
from di_kernels.tile.toolchain import TILELANG

_ROWS = (1, 6, 16, 64, 256, 2048)
_COMPILED_ROWS = 64


def sparse_attention(source: Source) -> Iterator[Workload]:
    """Both record formats, and the window alone."""
    window, sink = widths.window_pool(source, 40_000), source.wide(widths.HEADS)
    queries = source.normal(_ROWS[-1], widths.HEADS, widths.HEAD_DIM)
    entries = source.normal(128_000, widths.HEAD_DIM)
    for name, selected, width in (
        ("nvfp4", widths.record_pool(source, "nvfp4", 128, 1000), 512),
        ("mxfp8", widths.record_pool(source, "mxfp8", 64, 1000), 512),
        ("window", None, 0),
    ):
        for num_rows in _ROWS:
            q = queries[:num_rows]
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
                rotation: RopeRotation | None = None,
            ) -> torch.Tensor:
                return ops.sparse_attention(
                    q, window, slots, sink, selected=selected, selected_slots=chosen,
                    rotation=rotation,
                )  # fmt: skip

            ways = {"tilelang": on_tilelang(ours)}
            if num_rows <= 256:
                gathered = _gathered_attention(entries, q, slots, chosen)
                ways["torch bf16"] = gathered
                if num_rows == _COMPILED_ROWS and name == "nvfp4":
                    ways |= compiled_way("sparse_attention", torch.compile(gathered, dynamic=False))
            flops = 4 * num_rows * widths.HEADS * widths.HEAD_DIM * (128 + width)
            yield Workload("sparse_attention", f"{name}, {num_rows} rows", ways, moved, flops)
            if name != "mxfp8":
                label = f"{name} with rotation, {num_rows} rows"
                ways = _rotated_ways(source, q, ours)
                yield Workload("sparse_attention", label, ways, moved, flops)


def _rotated_ways(
    source: Source, q: torch.Tensor, attend: Callable[..., torch.Tensor]
) -> dict[str, Callable[[], object]]:
    """Rotations inside, and as ops of their own before and after."""
    frequencies = ops.rope_frequencies(64, 10_000.0).to(source.device)
    rotation = ops.rope_rotation(source.integers(0, 1 << 17, q.shape[0]), frequencies)
    back = rotation.inverse()

    def apart() -> torch.Tensor:
        with use_backend(TILELANG):
            return ops.apply_rope(attend(q=ops.apply_rope(q, rotation)), back)

    return {
        "tilelang": on_tilelang(lambda: attend(rotation=rotation)),
        "tilelang, rotations apart": apart,
    }


def _gathered_attention(
    entries: torch.Tensor, q: torch.Tensor, slots: torch.Tensor, chosen: torch.Tensor | None
) -> Callable[[], object]:
    """Entries kept in bfloat16, gathered, then attended by torch; the sink is left out."""
    places = slots if chosen is None else torch.cat((slots, chosen), dim=1)
    flat = places.flatten().long() % entries.shape[0]

    def call() -> torch.Tensor:
        keys = entries[flat].view(q.shape[0], 1, -1, widths.HEAD_DIM)
        return torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1), keys, keys)

    return call
