"""Quantisers, norm, rotation and writers of entries beside torch, eager and compiled.

`torch.compile` takes seconds for each shape: it is measured at 64 rows, once for every kind of op.
It refuses the references' writes into pools, so the compiled writers here make the records and put
them into a plain table of records.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source, nbytes
from di_kernels.cases.kernels.entries import RATIO, compressor_state, empty_pool
from di_kernels.cases.kernels.release import HEAD_DIM, HEADS, HIDDEN
from di_kernels.cases.kernels.rows import INDEX_DIM, INDEX_HEADS, LORA, rotations
from di_kernels.formats import mxfp4_encode, mxfp8_encode, nvfp4_encode
from di_kernels.kernel_bench.timing import Workload, on_tilelang
from di_kernels.kernel_bench.torch_ways import compiled_way
from di_kernels.ops.rope import RopeRotation
from di_kernels.records import record_bytes
from di_kernels.registry import REFERENCE, get_op, use_backend

_ROWS = (1, 16, 64, 256, 2048)
_TORCH_ROWS = 256
"""Most rows that torch is measured with."""
_COMPILED_ROWS = 64
_ENCODERS = {"mxfp8": mxfp8_encode, "nvfp4": nvfp4_encode, "index_mxfp4": mxfp4_encode}

QUANTIZERS = ("mxfp8_fake_quantize", "mxfp8_quantize", "nvfp4_quantize", "mxfp4_fake_quantize")
"""Those measured; the others differ in their codes alone."""

Call = Callable[[], object]


def _workload(
    op: str, label: str, num_rows: int, call: Call, moved: int, compiled: Call | None = None
) -> Workload:
    """The op by the kernels, by torch, and compiled where a call is given for it."""

    def eager() -> object:
        with use_backend(REFERENCE):
            return call()

    ways: dict[str, Call] = {"tilelang": on_tilelang(call)}
    if num_rows <= _TORCH_ROWS:
        ways["torch"] = eager
    if compiled is not None:
        ways |= compiled_way(op, compiled)
    return Workload(op, label, ways, moved, 0)


def _compiled(num_rows: int, function: Callable[..., object], *arguments: object) -> Call | None:
    if num_rows != _COMPILED_ROWS:
        return None
    compiled = torch.compile(function, dynamic=False)
    return lambda: compiled(*arguments)


def quantizers(source: Source) -> Iterator[Workload]:
    """The activation of a linear, and index queries."""
    for num_rows in _ROWS:
        yield from _quantizers(source, num_rows)


def norms(source: Source) -> Iterator[Workload]:
    """The layer's input, and the query latent: columns of the projection it shares."""
    for num_rows in _ROWS:
        yield from _norms(source, num_rows)


def rope(source: Source) -> Iterator[Workload]:
    """Queries."""
    for num_rows in _ROWS:
        yield _rope(source, num_rows)


def records(source: Source) -> Iterator[Workload]:
    """Window keys in a ring, entries and index keys in blocks of 114,048 bytes."""
    for num_rows in _ROWS:
        yield from _records(source, num_rows)


def writers(source: Source) -> Iterator[Workload]:
    """The same places, from projected rows."""
    for num_rows in _ROWS:
        yield from _writers(source, num_rows)


def compressor(source: Source) -> Iterator[Workload]:
    """So many entries of two rows each, every other one with a row of an earlier step."""
    for num_rows in _ROWS:
        yield _compressor(source, num_rows)


def _quantizers(source: Source, num_rows: int) -> Iterator[Workload]:
    hidden = source.normal(num_rows, HIDDEN)
    queries = source.normal(num_rows, INDEX_HEADS, INDEX_DIM)
    shapes = (
        (hidden, hidden.nbytes),
        (hidden, hidden.numel() * 33 // 32),
        (hidden, hidden.numel() * 9 // 16),
        (queries, queries.nbytes),
    )
    for op, (x, stored) in zip(QUANTIZERS, shapes, strict=True):
        call, compiled = functools.partial(getattr(ops, op), x), None
        if op == "mxfp8_fake_quantize":
            compiled = _compiled(num_rows, get_op(op).reference, x)
        label = "x".join(map(str, x.shape))
        yield _workload(op, label, num_rows, call, x.nbytes + stored, compiled)


def _norms(source: Source, num_rows: int) -> Iterator[Workload]:
    reference = get_op("rms_norm").reference
    for size, width in ((HIDDEN, HIDDEN), (LORA, LORA + HEAD_DIM)):
        x, weight = source.normal(num_rows, width)[:, :size], source.wide(size)
        call, compiled = functools.partial(ops.rms_norm, x, weight), None
        if size == HIDDEN:
            compiled = _compiled(num_rows, reference, x, weight, 1e-20, x.dtype)
        moved = 2 * x.numel() * x.element_size() + weight.nbytes
        label = f"{num_rows}x{size} of {width}"
        yield _workload("rms_norm", label, num_rows, call, moved, compiled)


def _rope(source: Source, num_rows: int) -> Workload:
    q, rotation = source.normal(num_rows, HEADS, HEAD_DIM), rotations(source, num_rows)
    call = functools.partial(ops.apply_rope, q, rotation)
    compiled = _compiled(num_rows, get_op("apply_rope").reference, q, rotation)
    moved = 2 * q.nbytes + nbytes(*rotation)
    label = f"{num_rows}x{HEADS}x{HEAD_DIM}"
    return _workload("apply_rope", label, num_rows, call, moved, compiled)


def _record_rows(
    record_format: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    rotation: RopeRotation,
    table: torch.Tensor,
    slots: torch.Tensor,
) -> object:
    """What the joined writers do, into rows of a table: what `torch.compile` accepts."""
    normed = get_op("rms_norm").reference(x, weight, 1e-20, x.dtype)
    rotated = get_op("apply_rope").reference(normed, rotation)
    codes, scale = _ENCODERS[record_format](rotated)  # type: ignore[arg-type]
    table[slots] = torch.cat((codes.view(torch.uint8), scale.view(torch.uint8)), dim=-1)
    return normed


def _places(source: Source, num_rows: int) -> Iterator[tuple[ops.RecordPool, torch.Tensor, str]]:
    """Pools with slots for so many rows, and labels."""
    for index, where in ((0, "window ring"), (2, "blocks"), (4, "index pages")):
        pool = empty_pool(source, index, num_rows)
        slots = source.permutation(pool.num_slots)[:num_rows]
        yield pool, slots.to(source.device), f"{num_rows}x{pool.head_dim} {pool.format}, {where}"


def _records(source: Source, num_rows: int) -> Iterator[Workload]:
    for pool, slots, label in _places(source, num_rows):
        x = source.normal(num_rows, pool.head_dim)
        write = functools.partial(ops.write_records, pool, slots, x)
        read = functools.partial(ops.read_records, pool, slots, x.dtype)
        moved = x.nbytes + num_rows * record_bytes(pool.format, pool.head_dim) + slots.nbytes
        yield _workload("write_records", label, num_rows, write, moved)
        yield _workload("read_records", label, num_rows, read, moved)


def _writers(source: Source, num_rows: int) -> Iterator[Workload]:
    for pool, slots, label in _places(source, num_rows):
        width = record_bytes(pool.format, pool.head_dim)
        x, weight = source.normal(num_rows, pool.head_dim), source.wide(pool.head_dim)
        rotation = rotations(source, num_rows)
        call = functools.partial(ops.norm_rope_write, x, weight, rotation, pool, slots)
        moved = nbytes(x, x, weight, *rotation, slots) + num_rows * width
        compiled = None
        if pool.format == "mxfp8":
            table = torch.empty(pool.num_slots, width, dtype=torch.uint8, device=source.device)
            compiled = _compiled(
                num_rows, _record_rows, pool.format, x, weight, rotation, table, slots
            )
        yield _workload("norm_rope_write", label, num_rows, call, moved, compiled)


def _compressor(source: Source, num_rows: int) -> Workload:
    state = compressor_state(source, num_rows)
    history = source.integers(0, state.num_slots, num_rows)
    rows = source.normal(RATIO * num_rows, 2 * HEAD_DIM).float()
    groups = torch.arange(RATIO * num_rows, device=source.device).view(num_rows, RATIO) + num_rows
    groups[::2, 0] = torch.arange(num_rows, device=source.device)[::2]
    pool = empty_pool(source, 2, num_rows)
    slots = source.permutation(pool.num_slots)[:num_rows]
    slots, rotation = slots.to(source.device), rotations(source, num_rows)
    weight, dtype = source.wide(HEAD_DIM), torch.bfloat16
    call = functools.partial(
        ops.compress_entries, rows, groups, weight, rotation, pool, slots, state=state,
        history_slots=history, out_dtype=dtype,
    )  # fmt: skip
    table = torch.empty(pool.num_slots, 288, dtype=torch.uint8, device=source.device)

    def pooled() -> object:
        members = torch.cat((state.buffer[history], rows))
        values, gates = members.split(HEAD_DIM, dim=1)
        z = get_op("compress_pool").reference(values, gates, groups, dtype)
        return _record_rows("nvfp4", z, weight, rotation, table, slots)  # type: ignore[arg-type]

    moved = num_rows * (RATIO * 4 * HEAD_DIM * 2 + 2 * HEAD_DIM + 288) + nbytes(*rotation, groups)
    label = f"{num_rows} groups of {RATIO} rows, nvfp4"
    compiled = _compiled(num_rows, pooled)
    return _workload("compress_entries", label, num_rows, call, moved, compiled)
