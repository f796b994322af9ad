"""Cache entries from rows: norm, rotation, quantisation and the write in one call.

Both ops are compositions of `compress_pool`, `rms_norm`, `apply_rope` and `write_records` and round
where those round; a backend may join them.
"""

from __future__ import annotations

import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.ops.compressor import compress_pool
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.records import pool_layout, read_records, write_records
from di_kernels.ops.rope import RopeRotation, apply_rope
from di_kernels.records import RecordPool
from di_kernels.registry import FLOATS, Op


def norm_rope_write(
    x: torch.Tensor,
    weight: torch.Tensor,
    rotation: RopeRotation,
    pool: RecordPool,
    slots: torch.Tensor,
    eps: float = 1e-20,
) -> torch.Tensor:
    """Stores the rotated RMSNorm of every row; modifies the pool's buffer.

    Makes window keys, compressed entries that need no pooling, and index keys (DeepSeek-V4.1
    reference `inference/model.py`).

    Args:
        x: Projected rows, shape (num_rows, head_dim), float32, float64 or bfloat16.
        weight: Weight of the norm, shape (head_dim,).
        rotation: Rotations of the same rows.
        pool: Where to store.
        slots: Slot of each row, shape (num_rows,), integer, all different; -1 stores nothing.
        eps: Added to the mean of squares.

    Returns:
        The normalised rows before the rotation, shape and dtype of `x`: the latents that index keys
        are projected from.

    Raises:
        ValueError: The shapes do not match.
        IndexError: A slot the pool does not have; the TileLang kernels store nothing there.
    """
    check_shape("x", x, (rotation.cos.shape[0], pool.head_dim))
    check_shape("weight", weight, (pool.head_dim,))
    check_shape("slots", slots, (x.shape[0],))
    run = _NORM_ROPE_WRITE.select(
        x,
        layout=pool_layout(pool, x.dtype),
        head_dim=pool.head_dim,
        rotary_dim=rotation.cos.shape[1],
    )
    return run(x, weight, rotation, pool, slots, eps)


def compress_entries(
    rows: torch.Tensor,
    groups: torch.Tensor,
    weight: torch.Tensor,
    rotation: RopeRotation,
    pool: RecordPool,
    slots: torch.Tensor,
    eps: float = 1e-20,
    *,
    state: RecordPool | None = None,
    history_slots: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Pools groups of rows and stores the rotated RMSNorm of each; modifies the pool's buffer.

    Rows of earlier steps come from `state`; the caller stores this step's rows there afterwards
    (`write_records`), since they may take the places of rows that this call reads.

    Args:
        rows: Values, then gates, of the step's rows, shape (num_rows, 2 * head_dim), float32,
            float64 or bfloat16.
        groups: Rows of each group in token order, shape (num_groups, ratio), integer, counted
            through `history_slots` first and `rows` after them.
        weight: Weight of the norm, shape (head_dim,).
        rotation: Rotations of the groups.
        pool: Where to store.
        slots: Slot of each group, shape (num_groups,), integer, all different; -1 stores nothing.
        eps: Added to the mean of squares.
        state: `plain` entries of 2 * head_dim values, the rows kept of earlier steps; None for
            none.
        history_slots: Their slots, shape (num_history,), integer; -1 stands for a row of zeros.
        out_dtype: Dtype the pooled rows are rounded to; the dtype of `rows` when None.

    Returns:
        The normalised pooled rows before the rotation, shape (num_groups, head_dim).

    Raises:
        ValueError: The shapes do not match, or only one of `state` and `history_slots` is given.
        IndexError: A slot or row that is not there; the TileLang kernels take zeros and store
            nothing.
    """
    check_shape("rows", rows, (None, 2 * pool.head_dim))
    check_shape("groups", groups, (rotation.cos.shape[0], None))
    check_shape("weight", weight, (pool.head_dim,))
    check_shape("slots", slots, (groups.shape[0],))
    if (state is None) != (history_slots is None):
        raise ValueError("`state` and `history_slots` belong together: give both or neither")
    if state is not None and (state.format, state.head_dim) != ("plain", 2 * pool.head_dim):
        raise ValueError(
            f"invalid `state`: expected `plain` entries of {2 * pool.head_dim} values, "
            f"got: `{state.format}` entries of {state.head_dim}"
        )
    out_dtype = out_dtype or rows.dtype
    check_dtype("rows", rows, FLOATS)
    run = _COMPRESS_ENTRIES.select(
        rows,
        layout=_compressed_layout(pool, state, out_dtype),
        head_dim=pool.head_dim,
        rotary_dim=rotation.cos.shape[1],
        ratio=groups.shape[1],
    )
    return run(rows, groups, weight, rotation, pool, slots, eps, state, history_slots, out_dtype)


def _compressed_layout(pool: RecordPool, state: RecordPool | None, out_dtype: torch.dtype) -> str:
    """Layout of the records, and of the state where it is not float32 rows in 16-byte units."""
    layout = pool_layout(pool, out_dtype)
    if state is None:
        return layout
    kept = pool_layout(state, torch.float32)
    return layout if kept == "plain records of float32" else f"{layout}, state of {kept}"


# --- Reference ---


def _norm_rope_write(
    x: torch.Tensor,
    weight: torch.Tensor,
    rotation: RopeRotation,
    pool: RecordPool,
    slots: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Norm, rotation, write, one after the other."""
    normed = rms_norm(x, weight, eps)
    write_records(pool, slots, apply_rope(normed, rotation))
    return normed


def _compress_entries(
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
    """Earlier rows before the new ones, pooling, norm, rotation, write, one after the other."""
    if state is not None and history_slots is not None:
        rows = torch.cat((read_records(state, history_slots, rows.dtype), rows))
    values, gates = rows.split(pool.head_dim, dim=-1)
    pooled = compress_pool(values, gates, groups, out_dtype=out_dtype)
    return _norm_rope_write(pooled, weight, rotation, pool, slots, eps)


_NORM_ROPE_WRITE = Op("norm_rope_write", _norm_rope_write)
_COMPRESS_ENTRIES = Op("compress_entries", _compress_entries)
