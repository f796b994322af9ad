"""Attention over a window and selected entries, one vector per entry as key and value, with a sink.

For head h with scale s: a[k] = s * q . key[k]; out = sum of exp(a[k]) * key[k] / (sum of exp(a[k])
+ exp(sink[h])). The sink is a logit in natural units with a zero value and is not scaled
(DeepSeek-V4.1 reference `inference/model.py` and `inference/kernel.py`). A row without any valid
key gives exact zeros.
"""

from __future__ import annotations

import torch

from di_kernels.checks import check_shape
from di_kernels.numerics import cast, wide_dtype, widen
from di_kernels.ops.rope import RopeRotation, _apply_rope
from di_kernels.records import RecordPool, record_bytes
from di_kernels.registry import Op

_KEY_TILE = 64
_LARGE = 1e30
_GATHERED_VALUES_AT_ONCE = 1 << 24


def sparse_attention(
    q: torch.Tensor,
    window: RecordPool,
    window_slots: torch.Tensor,
    sink: torch.Tensor,
    *,
    selected: RecordPool | None = None,
    selected_slots: torch.Tensor | None = None,
    rotation: RopeRotation | None = None,
    scale: float | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Attention of every row over its window entries and its selected entries.

    Args:
        q: Queries, shape (num_rows, heads, head_dim), float32, float64 or bfloat16; rotated unless
            `rotation` is given.
        window: Sliding-window entries.
        window_slots: Slots in `window`, shape (num_rows, window), integer; -1 for none.
        sink: Shape (heads,), float.
        selected: Compressed entries; None for window attention alone.
        selected_slots: Slots in `selected`, shape (num_rows, k), integer; -1 for none.
        rotation: Rotations of the rows' positions, as `rope_rotation` gives them: queries are
            rotated by them first, the result is rotated back. Equals `apply_rope` before and
            after, each with its rounding. None leaves both out.
        scale: Factor of the dot products; head_dim^-0.5 when None.
        batch_invariant: A row's bits do not depend on the other rows nor on the number of -1 slots
            at the end.

    Returns:
        Shape and dtype of `q`. For bfloat16 queries the exponentials are rounded to bfloat16
        before the value product and their sum is not, as in the reference.

    Raises:
        ValueError: The shapes do not match, or one of `selected` and `selected_slots` is missing.
    """
    check_shape("q", q, (None, None, window.head_dim))
    check_shape("window_slots", window_slots, (q.shape[0], None))
    check_shape("sink", sink, (q.shape[1],))
    if (selected is None) != (selected_slots is None):
        raise ValueError(
            "`selected` and `selected_slots` go together: one was given without the other"
        )
    if selected_slots is not None:
        check_shape("selected_slots", selected_slots, (q.shape[0], None))
    rotary_dim = 0 if rotation is None else _checked_rotary_dim(q, rotation)
    num_selected = 0 if selected_slots is None else selected_slots.shape[1]
    run = _SPARSE_ATTENTION.select(
        q,
        layout=record_layout(window, selected),
        heads=q.shape[1],
        head_dim=q.shape[2],
        window=window_slots.shape[1],
        k=num_selected,
        rotary_dim=rotary_dim,
        stray_bytes=_stray_bytes(window, selected),
    )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return run(
        q, window, window_slots, selected, selected_slots, sink, scale, rotation, batch_invariant
    )


def _checked_rotary_dim(q: torch.Tensor, rotation: RopeRotation) -> int:
    """Channels that rotate; refuses tables of other rows, or wider than a head."""
    check_shape("rotation.cos", rotation.cos, (q.shape[0], None))
    check_shape("rotation.sin", rotation.sin, tuple(rotation.cos.shape))
    rotary_dim = rotation.cos.shape[1]
    if not 0 < rotary_dim <= q.shape[2] or rotary_dim % 2:
        raise ValueError(
            f"invalid width of `rotation`: expected an even number from 2 to {q.shape[2]}, the "
            f"size of a head, got: {rotary_dim}"
        )
    return rotary_dim


def sink_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    is_valid: torch.Tensor,
    sink: torch.Tensor,
    *,
    scale: float | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """The same on gathered keys, for callers that read entries once and use them in several layers.

    Args:
        q: Rotated queries, shape (num_rows, heads, head_dim), float32, float64 or bfloat16.
        keys: Entries of each row, shape (num_rows, num_keys, head_dim); those that are not valid
            must be finite.
        is_valid: Shape (num_rows, num_keys), bool.
        sink: Shape (heads,), float.
        scale: Factor of the dot products; head_dim^-0.5 when None.
        batch_invariant: A row's bits do not depend on the other rows nor on the number of invalid
            keys at the end.

    Returns:
        Shape and dtype of `q`.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("keys", keys, (q.shape[0], None, q.shape[2]))
    check_shape("is_valid", is_valid, tuple(keys.shape[:2]))
    check_shape("sink", sink, (q.shape[1],))
    run = _SINK_ATTENTION.select(q, heads=q.shape[1], head_dim=q.shape[2])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return run(q, keys, is_valid, sink, scale, batch_invariant)


def record_layout(window: RecordPool, selected: RecordPool | None) -> str:
    """Name of the layout of both pools, as backends list them."""
    pools = [window] if selected is None else [window, selected]
    formats = " + ".join(pool.format for pool in pools)
    return f"{formats} records" + ("" if all(map(_in_units, pools)) else " not in 16-byte units")


def _in_units(pool: RecordPool) -> bool:
    """Whether every record starts at a multiple of 16 bytes, and unit numbers fit 31 bits."""
    unit = 16
    if pool.format == "plain":
        return False
    widths = (pool.buffer.shape[1], pool.section_offset, record_bytes(pool.format, pool.head_dim))
    is_aligned = not any(width % unit for width in widths)
    return is_aligned and pool.buffer.is_contiguous() and pool.buffer.nbytes // unit < 1 << 31


def _stray_bytes(window: RecordPool, selected: RecordPool | None) -> int:
    """Bytes by which blocks are no whole number of records apart, the most of both pools."""
    pools = [pool for pool in (window, selected) if pool is not None and pool.format != "plain"]
    return max(
        (pool.buffer.stride(0) % record_bytes(pool.format, pool.head_dim) for pool in pools),
        default=0,
    )


# --- Reference ---


def _sparse_attention(
    q: torch.Tensor,
    window: RecordPool,
    window_slots: torch.Tensor,
    selected: RecordPool | None,
    selected_slots: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
    rotation: RopeRotation | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """Gathers and dequantises each row's entries, some rows at a time, then attends."""
    if rotation is not None:
        rotated = _apply_rope(q, rotation)
        out = _sparse_attention(
            rotated, window, window_slots, selected, selected_slots, sink, scale, None,
            batch_invariant,
        )  # fmt: skip
        return _apply_rope(out, rotation.inverse())
    sources = [(window, window_slots)]
    if selected is not None and selected_slots is not None:
        sources.append((selected, selected_slots))
    values_per_row = sum(slots.shape[1] for _, slots in sources) * q.shape[-1]
    rows_at_once = max(1, _GATHERED_VALUES_AT_ONCE // max(1, values_per_row))
    if q.shape[0] > rows_at_once:
        parts = [
            _sparse_attention(
                q[start : start + rows_at_once],
                window,
                window_slots[start : start + rows_at_once],
                selected,
                None if selected_slots is None else selected_slots[start : start + rows_at_once],
                sink,
                scale,
                None,
                batch_invariant,
            )
            for start in range(0, q.shape[0], rows_at_once)
        ]
        return torch.cat(parts)
    dtype = wide_dtype(q.dtype)
    keys = torch.cat([pool.read(slots, dtype) for pool, slots in sources], dim=1)
    is_valid = torch.cat([slots for _, slots in sources], dim=1) >= 0
    return _sink_attention(q, keys, is_valid, sink, scale, batch_invariant)


def _sink_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    is_valid: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    batch_invariant: bool,
) -> torch.Tensor:
    """Softmax in float32 (float64) with the sink as one more logit."""
    wide_q = widen(q)
    keys = cast(keys, wide_q.dtype)
    if batch_invariant:
        return _tiled_sink_attention(q, keys, is_valid, sink, scale)
    scores = torch.bmm(wide_q, keys.transpose(1, 2)) * scale
    scores = scores.masked_fill(~is_valid.unsqueeze(1), -torch.inf)
    if q.dtype is torch.bfloat16:
        powers, sink_power = _powers(scores, sink)
        total = powers.sum(-1, keepdim=True) + sink_power
        return (torch.bmm(_rounded(powers, q.dtype), keys) / total).to(q.dtype)
    logit = _finite(sink.to(scores.dtype)).view(1, -1, 1).expand(scores.shape[0], -1, 1)
    probabilities = torch.softmax(torch.cat((scores, logit), dim=-1), dim=-1)
    return torch.bmm(probabilities[..., :-1], keys)


def _tiled_sink_attention(
    q: torch.Tensor, keys: torch.Tensor, is_valid: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same in products of one shape: per row, tiles of `_KEY_TILE` keys, summed in order.

    A tile without valid keys adds exact zeros, so keys that are not valid change no bit.
    """
    num_keys = keys.shape[1]
    missing = -num_keys % _KEY_TILE if num_keys else _KEY_TILE
    padded = torch.nn.functional.pad(keys, (0, 0, 0, missing))
    tiles = torch.unflatten(padded, 1, (-1, _KEY_TILE))
    valid = torch.nn.functional.pad(is_valid, (0, missing))
    rows = list(zip(widen(q), tiles, strict=True))
    dots = [torch.cat([row @ tile.T for tile in row_tiles], dim=1) for row, row_tiles in rows]
    if not dots:
        return torch.empty_like(q)
    scores = (torch.stack(dots) * scale).masked_fill(~valid.unsqueeze(1), -torch.inf)
    powers, sink_power = _powers(scores, sink)
    powers = torch.unflatten(powers, -1, (-1, _KEY_TILE))
    total = _ordered_sum(powers.sum(-1)).unsqueeze(-1) + sink_power
    rounded = _rounded(powers, q.dtype).transpose(1, 2)
    outputs = [
        _ordered_sum(torch.stack([p @ tile for p, tile in zip(row, row_tiles, strict=True)], -1))
        for row, row_tiles in zip(rounded, tiles, strict=True)
    ]
    return cast(torch.stack(outputs) / total, q.dtype)


def _powers(scores: torch.Tensor, sink: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponentials of scores (rows, heads, keys) and sink (rows, heads, 1) less the largest score.

    The sink does not take part in the maximum, as in the reference, because bfloat16 rounding of
    the exponentials depends on it; a sink that overflows makes the sum infinite and the row zero.
    """
    if scores.shape[-1] == 0:
        return scores, torch.ones_like(scores.sum(-1, keepdim=True))
    peak = scores.amax(-1, keepdim=True).clamp_min(-_LARGE).detach()
    logit = _finite(sink.to(scores.dtype)).view(1, -1, 1)
    return torch.exp(scores - peak), torch.exp(logit - peak)


def _finite(sink: torch.Tensor) -> torch.Tensor:
    """An infinite sink takes all mass or none; so does a large finite one, without a NaN."""
    return sink.clamp(-_LARGE, _LARGE)


def _rounded(probabilities: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return probabilities.to(dtype).to(probabilities.dtype)


def _ordered_sum(parts: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension, first to last."""
    total = parts[..., 0]
    for index in range(1, parts.shape[-1]):
        total = total + parts[..., index]
    return total


_SPARSE_ATTENTION = Op(
    "sparse_attention", _sparse_attention, determinism="row_invariant_on_request"
)
_SINK_ATTENTION = Op("sink_attention", _sink_attention, determinism="row_invariant_on_request")
