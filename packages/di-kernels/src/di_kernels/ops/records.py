"""Reading and writing cache entries; `di_kernels.records` describes pools and formats."""

from __future__ import annotations

import torch

from di_kernels.checks import check_shape
from di_kernels.records import RecordPool
from di_kernels.registry import FLOATS, Op


def write_records(pool: RecordPool, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Quantises entries into the pool's format and stores them; modifies the pool's buffer.

    Args:
        pool: Where to store.
        slots: Slot of each entry, shape (num_rows,), integer, all different; -1 stores nothing.
        values: Entries, shape (num_rows, head_dim), float32, float64 or bfloat16.

    Raises:
        ValueError: The shapes do not match.
        IndexError: A slot the pool does not have; the TileLang kernels store nothing there.
    """
    check_shape("slots", slots, (None,))
    check_shape("values", values, (slots.shape[0], pool.head_dim))
    run = _WRITE_RECORDS.select(
        values, layout=pool_layout(pool, values.dtype), head_dim=pool.head_dim
    )
    run(pool, slots, values)


def read_records(pool: RecordPool, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Entries of a pool, dequantised.

    Args:
        pool: Where to read.
        slots: Any shape, integer; -1 gives an entry of zeros.
        dtype: Dtype of the result.

    Returns:
        Shape (*slots.shape, head_dim).

    Raises:
        IndexError: A slot the pool does not have; the TileLang kernels give zeros.
    """
    run = _READ_RECORDS.select(pool.buffer, layout=pool_layout(pool), head_dim=pool.head_dim)
    return run(pool, slots, dtype)


def pool_layout(pool: RecordPool, dtype: torch.dtype | None = None) -> str:
    """Name of a pool's layout, for rows of a dtype where rows are written, as backends list it."""
    name = f"{pool.format} records"
    if dtype is not None:
        name += f" of {str(dtype).removeprefix('torch.')}"
    if dtype is not None and pool.format == "plain" and pool.buffer.dtype != dtype:
        name += f" in {str(pool.buffer.dtype).removeprefix('torch.')}"
    return name if pool.is_in_units else f"{name}, not in 16-byte units"


def _write_records(pool: RecordPool, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Encode, then one indexed copy per part of an entry."""
    pool.write(slots, values)


def _read_records(pool: RecordPool, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One indexed copy per part of an entry, then decode."""
    return pool.read(slots, dtype)


_WRITE_RECORDS = Op("write_records", _write_records, is_differentiable=False)
_READ_RECORDS = Op(
    "read_records", _read_records, dtypes=(torch.uint8, *FLOATS), is_differentiable=False
)
