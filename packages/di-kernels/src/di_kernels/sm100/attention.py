"""`sparse_attention` by `flash_mla.flash_mla_with_kvcache`, every row a request of one query.

Both sides store an entry as its codes followed by its scales: 528 bytes of MXFP8 in the window and
528 bytes of MXFP8 or 288 of NVFP4 among the selected ones (FlashMLA 1.0.0 README, "FP8 / FP4 KV
Cache Format"). A pool is passed as it lies, as a view of its blocks; the kernel finds an entry by
its slot, counts records from the start of a block, and so needs blocks that are whole numbers of
records apart. -1 is the only slot it leaves out, and slots come in groups of 64.
"""

from __future__ import annotations

import importlib

import torch

from di_kernels.ops.rope import RopeRotation, apply_rope
from di_kernels.records import RecordPool, record_bytes

_SLOT_GROUP = 64
# The table of splits takes 16 bytes of shared memory per request, of 227 KB; more rows become the
# queries of one request.
_MOST_REQUESTS = 8192


def sparse_attention(
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
    """Arguments as the op passes them; with `batch_invariant` a row's keys are never split."""
    if rotation is not None:
        q = apply_rope(q, rotation)
    out = _attend(q, window, window_slots, selected, selected_slots, sink, scale, batch_invariant)
    return out if rotation is None else apply_rope(out, rotation.inverse())


def _attend(
    q: torch.Tensor,
    window: RecordPool,
    window_slots: torch.Tensor,
    selected: RecordPool | None,
    selected_slots: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
    batch_invariant: bool,
) -> torch.Tensor:
    """Attention of rotated queries, unrotated results."""
    num_rows = q.shape[0]
    if num_rows == 0:
        return torch.empty_like(q)
    flash_mla = importlib.import_module("flash_mla")
    batch = (num_rows, 1) if num_rows <= _MOST_REQUESTS else (1, num_rows)
    if selected is None or selected_slots is None or selected_slots.shape[1] == 0:
        cache, indices = None, None
    else:
        cache, indices = _blocks(selected), _grouped(selected_slots, batch)
    # Metadata belongs to one set of shapes; the first call that gets it fills it in.
    metadata, _ = flash_mla.get_mla_metadata()
    out, _ = flash_mla.flash_mla_with_kvcache(
        q.contiguous().view(*batch, *q.shape[1:]),
        _blocks(window),
        None,
        None,
        q.shape[-1],
        metadata,
        softmax_scale=scale,
        indices=_grouped(window_slots, batch),
        attn_sink=sink.to(torch.float32).contiguous(),
        extra_k_cache=cache,
        extra_indices_in_kvcache=indices,
        enable_batch_invariant=batch_invariant,
    )
    result: torch.Tensor = out.view(q.shape)
    return result


def _blocks(pool: RecordPool) -> torch.Tensor:
    """The pool as (blocks, entries of a block, 1, bytes of a record), a view."""
    width = record_bytes(pool.format, pool.head_dim)
    start = pool.section_offset
    section = pool.buffer[:, start : start + pool.entries_per_block * width]
    return torch.unflatten(section, 1, (pool.entries_per_block, 1, width))


def _grouped(slots: torch.Tensor, batch: tuple[int, int]) -> torch.Tensor:
    """Slots as (requests, queries, width), int32, filled up with -1 to at least one group."""
    width = slots.shape[1]
    missing = -width % _SLOT_GROUP if width else _SLOT_GROUP
    padded = torch.nn.functional.pad(slots.to(torch.int32), (0, missing), value=-1)
    return padded.view(*batch, width + missing)
