"""Quantisers, `rms_norm`, `apply_rope` and the writers of cache entries by TileLang.

Each is one launch without a wait for the device. Bits are those of the references; sums of squares
run in another order than torch's, so a norm may differ in its last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from di_kernels.ops.rope import RopeRotation
from di_kernels.records import RecordPool
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.entries import norm_name, reader_name, writer_name
from di_kernels.tile.views import (
    aligned,
    four_wide,
    plain_places,
    record_places,
    record_views,
    row_units,
    words_of,
)

_LANE = 16


def quantizer(name: str) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """`mxfp8_quantize`, `mxfp4_quantize` or `nvfp4_quantize`."""
    code_dtype = torch.float8_e4m3fn if name == "mxfp8" else torch.uint8
    scale_dtype = torch.float8_e4m3fn if name == "nvfp4" else torch.uint8
    per_code, group = (1 if name == "mxfp8" else 2), (16 if name == "nvfp4" else 32)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        *rest, size = x.shape
        codes = torch.empty(*rest, size // per_code, dtype=torch.uint8, device=x.device)
        scales = torch.empty(*rest, size // group, dtype=torch.uint8, device=x.device)
        if x.numel():
            kernel_for(f"{name}_quantize", x.device)(
                aligned(x).view(-1, _LANE),
                codes.view(torch.uint32).view(-1, _LANE // per_code // 4),
                scales.view(-1),
            )
        return codes.view(code_dtype), scales.view(scale_dtype)

    return run


def fake_quantizer(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """`mxfp8_fake_quantize`, `mxfp4_fake_quantize` or `nvfp4_fake_quantize`."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        if x.numel():
            kernel_for(f"{name}_fake_quantize", x.device)(
                aligned(x).view(-1, _LANE), y.view(-1, _LANE)
            )
        return y

    return run


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Arguments as the op passes them."""
    size = x.shape[-1]
    kept = torch.bfloat16 if out_dtype == torch.bfloat16 else torch.float32
    y = torch.empty(x.shape, dtype=kept, device=x.device)
    if x.numel():
        units, stride = row_units(x if x.dim() == 2 else x.reshape(-1, size))
        wide = four_wide(x.new_empty(4) if weight is None else weight)
        name = norm_name(str(kept).removeprefix("torch."), has_weight=weight is not None)
        kernel_for(name, x.device)(units, stride, size // 8, wide, eps, y.view(-1, size // 8, 8))
    return y if kept == out_dtype else y.to(out_dtype)


def apply_rope(x: torch.Tensor, rotation: RopeRotation) -> torch.Tensor:
    """Arguments as the op passes them."""
    num_rows, rotary = rotation.cos.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        units, stride = row_units(x)
        cos, sin = (four_wide(table).view(num_rows, rotary // 4, 4) for table in rotation)
        kernel_for("apply_rope", x.device)(
            units, stride, x.shape[-1] // 8, cos, sin, y.view(num_rows, -1, 8)
        )
    return y


def write_records(pool: RecordPool, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Arguments as the op passes them; slots the pool does not have store nothing."""
    if values.numel() == 0 or pool.num_slots == 0:
        return
    units, stride = row_units(values)
    words, step = words_of(slots)
    if pool.format == "plain":
        stored, places = plain_places(pool)
        width = pool.head_dim * values.element_size() // 16
        kernel_for("copy_records", values.device)(
            units.view(torch.uint32), stride, len(slots), width, words, step, *places,
            pool.num_slots, stored,
        )  # fmt: skip
        return
    kernel_for(writer_name("write_records", pool.format), values.device)(
        units, stride, len(slots), pool.head_dim // _LANE, words, step, *record_places(pool),
        *record_views(pool),
    )  # fmt: skip


def read_records(pool: RecordPool, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Arguments as the op passes them; slots the pool does not have give zeros."""
    kept = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    y = torch.empty(*slots.shape, pool.head_dim, dtype=kept, device=pool.buffer.device)
    if y.numel():
        kernel_for(reader_name(pool.format, str(kept).removeprefix("torch.")), y.device)(
            *words_of(slots), *record_places(pool), *record_views(pool),
            y.view(slots.numel(), -1, _LANE),
        )  # fmt: skip
    return y if kept == dtype else y.to(dtype)


def norm_rope_write(
    x: torch.Tensor,
    weight: torch.Tensor,
    rotation: RopeRotation,
    pool: RecordPool,
    slots: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Arguments as the op passes them; slots the pool does not have store nothing."""
    latent = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        kernel_for(writer_name("norm_rope_write", pool.format), x.device)(
            *row_units(x), four_wide(weight), eps, *map(four_wide, rotation),
            rotation.cos.shape[1] // 4, *words_of(slots), *record_places(pool),
            *record_views(pool), latent.view(len(x), -1, _LANE),
        )  # fmt: skip
    return latent


def compress_entries(
    rows: torch.Tensor,
    groups: torch.Tensor,
    weight: torch.Tensor,
    rotation: RopeRotation,
    pool: RecordPool,
    slots: torch.Tensor,
    eps: float,
    state: RecordPool | None,
    history_slots: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Arguments as the op passes them; rows that are not there are zeros, slots store nothing."""
    num_groups = groups.shape[0]
    latent = torch.empty(num_groups, pool.head_dim, dtype=out_dtype, device=rows.device)
    if num_groups == 0:
        return latent
    num_rows = rows.shape[0]
    units, stride = row_units(rows if num_rows else rows.new_zeros(1, rows.shape[1]))
    state_units, places, num_states = units, (1, 0, 0), 0
    history, num_history = slots, 0
    if state is not None and history_slots is not None and len(history_slots):
        state_units, places = plain_places(state)
        state_units, num_states = state_units.view(torch.float32), state.num_slots
        history, num_history = history_slots, len(history_slots)
    kernel_for(writer_name("compress_entries", pool.format), rows.device)(
        units, stride, num_rows, *words_of(groups), state_units, *places, num_states,
        *words_of(history), num_history, four_wide(weight), eps, *map(four_wide, rotation),
        rotation.cos.shape[1] // 4, *words_of(slots), *record_places(pool), *record_views(pool),
        latent.view(num_groups, -1, _LANE),
    )  # fmt: skip
    return latent
