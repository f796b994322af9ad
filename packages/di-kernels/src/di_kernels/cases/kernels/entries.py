"""Writers and readers of entries at the release's widths.

Writes must have the bits of the reference on a CPU and change no other byte. An op that joins a
norm with others is compared with float64 and must write the bytes that the single ops write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import BLOCK_BYTES, HEAD_DIM, ROWS
from di_kernels.cases.kernels.rows import INDEX_DIM, on_cpu, picked, rotations
from di_kernels.ops.rope import RopeRotation
from di_kernels.records import RecordFormat, RecordPool, record_bytes

RATIO = 2
STATE_ROWS = 7
"""Rows that a request keeps of its latest tokens."""

_FILL = 0x5A
_READ_DTYPES = (torch.bfloat16, torch.float32, torch.float64)
# Format, channels, entries per block, bytes of a block (None: nothing but the entries), section.
_POOLS: tuple[tuple[RecordFormat, int, int, int | None, int], ...] = (
    ("mxfp8", HEAD_DIM, 1, None, 0),
    ("mxfp8", HEAD_DIM, 64, BLOCK_BYTES, 4352),
    ("nvfp4", HEAD_DIM, 64, BLOCK_BYTES, 27_136),
    ("nvfp4", HEAD_DIM, 128, BLOCK_BYTES, 77_056),
    ("index_mxfp4", INDEX_DIM, 64, BLOCK_BYTES, 22_784),
    ("index_mxfp4", INDEX_DIM, 128, BLOCK_BYTES, 68_352),
)


def cases(source: Source) -> Iterator[Case]:
    """Every op of the family."""
    for index in (0, 2, 4):
        yield _any_bytes_case(source, index)
    yield _far_case(source)
    for num_rows in ROWS:
        yield from _writer_cases(source, num_rows)
        yield from _compressor_cases(source, num_rows)


def empty_pool(source: Source, index: int, num_rows: int) -> RecordPool:
    """An empty pool of `_POOLS` with room to spare, other bytes all the same."""
    record_format, dim, entries, stride, section = _POOLS[index]
    stride = stride or record_bytes(record_format, dim)
    shape = (num_rows // entries + 2, stride)
    buffer = torch.full(shape, _FILL, dtype=torch.uint8, device=source.device)
    return RecordPool(buffer, record_format, dim, entries, section)


def _slots(source: Source, pool: RecordPool, num_rows: int) -> torch.Tensor:
    """Different slots in any order; some rows have none."""
    slots = source.permutation(pool.num_slots)[:num_rows]
    slots[num_rows // 2 :: 5] = -1
    return slots.to(source.device)


def _stray_bytes(pool: RecordPool, slots: torch.Tensor) -> torch.Tensor:
    """Bytes changed outside the records of the slots, the same number for every row."""
    clean = RecordPool(
        torch.full_like(pool.buffer, _FILL), pool.format, pool.head_dim, pool.entries_per_block,
        pool.section_offset,
    )  # fmt: skip
    zeros = torch.zeros(len(slots), pool.head_dim, device=slots.device)
    for each in (pool, clean):
        each.write(slots, zeros)
    return (pool.buffer != clean.buffer).sum().expand(len(slots), 1)


def _writer_cases(source: Source, num_rows: int) -> Iterator[Case]:
    for index, (record_format, dim, entries, stride, _) in enumerate(_POOLS):
        x, weight = source.normal(num_rows, dim), source.wide(dim)
        slots = _slots(source, empty_pool(source, index, num_rows), num_rows)
        rotation = rotations(source, num_rows)

        def write(
            rows: torch.Tensor, x: torch.Tensor = x, slots: torch.Tensor = slots, index: int = index
        ) -> Outputs:
            pool = empty_pool(source, index, len(x))
            ops.write_records(pool, slots[rows], x[rows])
            return pool.read(slots[rows], torch.float32), _stray_bytes(pool, slots[rows])

        def written(
            x: torch.Tensor = x, slots: torch.Tensor = slots, index: int = index
        ) -> Outputs:
            pool = empty_pool(source, index, len(x))
            cpu_pool = RecordPool(pool.buffer.cpu(), *_POOLS[index][:3], _POOLS[index][4])
            cpu_pool.write(slots.cpu(), x.cpu())
            return cpu_pool.read(slots.cpu(), torch.float32), torch.zeros(len(x), 1).long()

        def read(
            rows: torch.Tensor, x: torch.Tensor = x, slots: torch.Tensor = slots, index: int = index
        ) -> Outputs:
            pool = empty_pool(source, index, len(x))
            pool.write(slots, x)
            return tuple(ops.read_records(pool, slots[rows], dtype) for dtype in _READ_DTYPES)

        def entries_read(written: Callable[[], Outputs] = written) -> Outputs:
            values, _ = written()
            return tuple(values.to(dtype) for dtype in _READ_DTYPES)

        def joined(
            rows: torch.Tensor, x: torch.Tensor = x, weight: torch.Tensor = weight,
            rotation: RopeRotation = rotation, slots: torch.Tensor = slots, index: int = index,
        ) -> Outputs:  # fmt: skip
            pool, single = empty_pool(source, index, len(x)), empty_pool(source, index, len(x))
            # 32-bit slots: the other way of reading them.
            turns, places = picked(rotation, rows), slots[rows].int()
            latent = ops.norm_rope_write(x[rows], weight, turns, pool, places)
            normed = ops.rms_norm(x[rows], weight)
            ops.write_records(single, places, ops.apply_rope(normed, turns))
            return latent, _differences(pool, single, rows)

        def latents(x: torch.Tensor = x, weight: torch.Tensor = weight) -> Outputs:
            wide = x.double()
            normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-20).sqrt()
            return normed * weight.double(), torch.zeros(len(x), 1).long()

        where = "ring" if stride is None else f"{entries} a block of {stride} bytes"
        label = f"{num_rows}x{dim} {record_format}, {where}"
        yield Case("write_records", label, source.dtype, num_rows, write, written, True)
        yield Case("read_records", label, source.dtype, num_rows, read, entries_read, True)
        yield Case("norm_rope_write", label, source.dtype, num_rows, joined, latents)


def _any_bytes_case(source: Source, index: int) -> Case:
    """Entries nobody wrote: every code and every scale, NaN and the smallest power included."""
    record_format, dim, entries, stride, section = _POOLS[index]
    shape = (3, stride or record_bytes(record_format, dim))
    buffer = source.integers(0, 256, *shape).byte()
    buffer[0, section:] &= 0x87  # small scales
    pool = RecordPool(buffer, record_format, dim, entries, section)
    slots = torch.arange(pool.num_slots, device=source.device)

    def run(rows: torch.Tensor) -> Outputs:
        return (ops.read_records(pool, slots[rows], torch.float32),)

    def want() -> Outputs:
        cpu_pool = RecordPool(buffer.cpu(), record_format, dim, entries, section)
        return (cpu_pool.read(slots.cpu(), torch.float32),)

    label = f"{len(slots)}x{dim} {record_format}, any bytes"
    return Case("read_records", label, source.dtype, len(slots), run, want)


def _far_case(source: Source) -> Case:
    """Entries that lie more than 2^32 bytes after the pool's start."""
    record_format, dim, entries, stride, section = _POOLS[2]
    x = source.normal(2, dim)

    def run(rows: torch.Tensor) -> Outputs:
        buffer = torch.zeros(40_000, stride or 0, dtype=torch.uint8, device=source.device)
        pool = RecordPool(buffer, record_format, dim, entries, section)
        slots = torch.tensor([pool.num_slots - 1, 19_000 * entries], device=source.device)
        ops.write_records(pool, slots[rows], x[rows])
        # Read without an op, so that a reader with the same fault cannot hide it.
        return (pool.read(slots[rows], torch.float32),)

    def want() -> Outputs:
        return on_cpu("nvfp4_fake_quantize", x.float())

    label = f"2x{dim} {record_format}, far into a pool of 4.6 GB"
    return Case("write_records", label, source.dtype, 2, run, want, True)


def _differences(pool: RecordPool, single: RecordPool, rows: torch.Tensor) -> torch.Tensor:
    """Bytes in which two pools differ, the same number for every row."""
    return (pool.buffer != single.buffer).sum().expand(len(rows), 1)


def compressor_state(source: Source, num_requests: int) -> RecordPool:
    """Kept rows of so many requests, values and gates."""
    rows = source.normal(num_requests * STATE_ROWS, 2 * HEAD_DIM).float()
    return RecordPool(rows, "plain", 2 * HEAD_DIM)


def _compressor_cases(source: Source, num_rows: int) -> Iterator[Case]:
    """So many groups: of new rows, of kept rows, of both, and of a row that is not there."""
    num_history = max(1, num_rows // 2)
    state = compressor_state(source, num_history)
    history = source.integers(-1, state.num_slots, num_history)
    rows_in = source.normal(2 * num_rows, 2 * HEAD_DIM).float()
    groups = source.integers(0, num_history + len(rows_in), num_rows, RATIO)
    weight, rotation = source.wide(HEAD_DIM), rotations(source, num_rows)

    yield _state_write_case(source, rows_in)
    for index in (1, 2):
        slots = _slots(source, empty_pool(source, index, num_rows), num_rows)

        def run(rows: torch.Tensor, index: int = index, slots: torch.Tensor = slots) -> Outputs:
            pool, single = empty_pool(source, index, num_rows), empty_pool(source, index, num_rows)
            turns, places = picked(rotation, rows), slots[rows]
            latent = ops.compress_entries(
                rows_in, groups[rows], weight, turns, pool, places, state=state,
                history_slots=history, out_dtype=torch.bfloat16,
            )  # fmt: skip
            members = torch.cat((state.read(history, torch.float32), rows_in))
            values, gates = members.split(HEAD_DIM, dim=1)
            pooled = ops.compress_pool(values, gates, groups[rows], out_dtype=torch.bfloat16)
            normed = ops.rms_norm(pooled, weight)
            ops.write_records(single, places, ops.apply_rope(normed, turns))
            return latent, _differences(pool, single, rows)

        def want() -> Outputs:
            members = torch.cat((state.read(history, torch.float32), rows_in)).double()
            values, gates = members.split(HEAD_DIM, dim=1)
            shares = gates[groups].softmax(1)
            pooled = (shares * values[groups]).sum(1).bfloat16().double()
            normed = pooled / (pooled.square().mean(-1, keepdim=True) + 1e-20).sqrt()
            return normed * weight.double(), torch.zeros(num_rows, 1).long()

        label = f"{num_rows} groups of {RATIO} rows, {_POOLS[index][0]}"
        yield Case("compress_entries", label, torch.float32, num_rows, run, want)


def _state_write_case(source: Source, rows_in: torch.Tensor) -> Case:
    num_rows = len(rows_in)
    slots = source.permutation(num_rows + 3)[:num_rows]
    slots[::3] = -1

    def run(rows: torch.Tensor) -> Outputs:
        buffer = torch.zeros(num_rows + 3, 2 * HEAD_DIM, device=source.device)
        pool = RecordPool(buffer, "plain", 2 * HEAD_DIM)
        ops.write_records(pool, slots[rows], rows_in[rows])
        stored = pool.read(slots[rows], torch.float32)
        return stored, (pool.buffer.any(1).sum() - (slots[rows] >= 0).sum()).expand(len(rows), 1)

    def want() -> Outputs:
        return rows_in * (slots >= 0).unsqueeze(1), torch.zeros(num_rows, 1).long()

    label = f"{num_rows}x{2 * HEAD_DIM} plain"
    return Case("write_records", label, torch.float32, num_rows, run, want, True)
