"""Engram by TileLang: one launch for the hashes of all layers, one per lookup, one per gate."""

from __future__ import annotations

import torch

from di_kernels.ops.engram import EngramHashTables, EngramTable
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.views import aligned, row_units

COPIES, MAX_HIDDEN, MAX_HEADS = 4, 8192, 32
NARROW_HIDDEN = 5120
"""Most columns of the gate's kernel for narrow rows; wider ones have one of their own."""

_UNIT = 8


def engram_hash(context: torch.Tensor, pad_id: int, tables: EngramHashTables) -> torch.Tensor:
    """Arguments as the op passes them."""
    layers, orders, heads = tables.primes.shape
    rows = context.new_empty(context.shape[0], layers, orders, heads)
    if rows.numel():
        kernel_for("engram_hash", context.device)(
            context.contiguous(), tables.multipliers, tables.primes,
            tables.offsets.view(layers, orders, heads), pad_id, rows,
        )  # fmt: skip
    return rows.flatten(2)


def engram_lookup(table: EngramTable, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Arguments as the op passes them, `dtype` bfloat16."""
    size = table.data.shape[1]
    y = torch.empty(*rows.shape, size, dtype=dtype, device=rows.device)
    if rows.numel():
        codes = table.data.view(torch.uint8).view(torch.uint32)
        kernel_for("engram_lookup", rows.device)(
            codes.view(len(codes), -1, 2), table.scale.view(torch.uint8),
            rows.to(torch.int64).contiguous().view(-1), y.view(rows.numel(), -1, _UNIT),
        )  # fmt: skip
    return y.flatten(1)


def engram_gate(
    x: torch.Tensor,
    keys: torch.Tensor,
    value: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    row_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Arguments as the op passes them; `keys` and `value` are read where they lie."""
    num_rows, copies, hidden = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if num_rows == 0:
        return y
    mask = torch.empty(num_rows, dtype=torch.uint8, device=x.device)
    if row_mask is not None:
        mask = row_mask.contiguous().view(torch.uint8)
    shape = (num_rows, copies, hidden // _UNIT, _UNIT)
    width = "_wide" if hidden > NARROW_HIDDEN else ""
    masked = "" if row_mask is None else "_masked"
    kernel_for(f"engram_gate{width}{masked}", x.device)(
        aligned(x).view(shape), *row_units(keys), *row_units(value),
        aligned(weight.to(torch.float32)).view(shape[1:]), mask, eps, y.view(shape),
    )  # fmt: skip
    return y
