"""Quantisers, norm, rotation and writers of entries at the release's widths.

Quantisers, rotation and plain writes must have the bits of the reference on a CPU. A norm sums in
another order than torch: it is compared with float64, and an op that joins it with others must
write the bytes that the single ops write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import BLOCK_BYTES, EXPERT_SIZE, HEAD_DIM, HEADS, HIDDEN, ROWS
from di_kernels.ops.rope import RopeRotation
from di_kernels.records import RecordFormat, RecordPool, record_bytes
from di_kernels.registry import get_op

LORA, INDEX_HEADS, INDEX_DIM, ROTARY, RATIO = 1280, 32, 128, 64, 2
STATE_ROWS = 7
"""Rows that a request keeps of its latest tokens."""

_FILL = 0x5A
_READ_DTYPES = (torch.bfloat16, torch.float32, torch.float64)
_QUANTIZERS: dict[str, Callable[..., object]] = {
    name: getattr(ops, name)
    for quantizer in ("mxfp8", "mxfp4", "nvfp4")
    for name in (f"{quantizer}_fake_quantize", f"{quantizer}_quantize")
}
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
        yield from _quantizer_cases(source, num_rows)
        yield from _norm_cases(source, num_rows)
        yield from _rope_cases(source, num_rows)
        yield from _writer_cases(source, num_rows)
        yield from _compressor_cases(source, num_rows)


def rotations(source: Source, num_rows: int) -> RopeRotation:
    """Rotations at random positions of a long context."""
    yarn = ops.YarnScaling(16.0, 65_536)
    frequencies = ops.rope_frequencies(ROTARY, 160_000.0, yarn=yarn).to(source.device)
    return ops.rope_rotation(source.integers(0, 1 << 20, num_rows), frequencies)


def _picked(rotation: RopeRotation, rows: torch.Tensor) -> RopeRotation:
    return RopeRotation(rotation.cos[rows], rotation.sin[rows])


def _awkward(source: Source, num_rows: int, size: int) -> torch.Tensor:
    """Rows of many magnitudes with ties, zeros of both signs and the ends of the range."""
    x = source.normal(num_rows, size) * source.wide(num_rows, size // 32, scale=8).exp2().bfloat16(
    ).repeat_interleave(32, dim=1)  # fmt: skip
    special = torch.tensor(
        [0.0, -0.0, 1e-30, -1e-38, 448.0, 449.0, 6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0,
         -5.0, 3.0e38, -1e-40, 0.01, 1e-4]
    ).to(source.device, source.dtype)  # fmt: skip
    for row in range(min(num_rows, 3)):
        x[row, 32 * row : 32 * row + len(special)] = special
        x[row, -64:] = special[row]
        x[row, 128:148] = special.clamp(-7, 7)
    return x


def _reference(op: str, *arguments: object) -> Outputs:
    """What the reference gives on a CPU."""
    moved = (a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments)
    result = get_op(op).reference(*moved)
    return result if isinstance(result, tuple) else (result,)


def _quantizer_cases(source: Source, num_rows: int) -> Iterator[Case]:
    for size in (HIDDEN, EXPERT_SIZE, HEAD_DIM):
        x = _awkward(source, num_rows, size)
        for op, function in _QUANTIZERS.items():

            def run(
                rows: torch.Tensor, x: torch.Tensor = x, f: Callable[..., object] = function
            ) -> Outputs:
                return _as_bytes(f(x[rows]))

            def want(x: torch.Tensor = x, op: str = op) -> Outputs:
                return _as_bytes(_reference(op, x))

            yield Case(op, f"{num_rows}x{size}", source.dtype, num_rows, run, want, True)
    for op, function in _QUANTIZERS.items():
        if num_rows and op.endswith("fake_quantize"):
            yield _not_finite(source, op, function, num_rows)


def _as_bytes(result: object) -> Outputs:
    """One bfloat16 tensor, or codes and scales as bytes."""
    if isinstance(result, torch.Tensor):
        return (result,)
    parts: Outputs = result  # type: ignore[assignment]
    return parts if len(parts) == 1 else tuple(part.view(torch.uint8) for part in parts)


def _not_finite(source: Source, op: str, function: Callable[..., object], num_rows: int) -> Case:
    """Groups with a NaN or an infinity become NaN, their neighbours do not."""
    x = source.normal(num_rows, HEAD_DIM)
    x[0, 40], x[-1, 70] = torch.nan, -torch.inf

    def run(rows: torch.Tensor) -> Outputs:
        (values,) = _as_bytes(function(x[rows]))
        return (values.isnan(),)

    def want() -> Outputs:
        (values,) = _reference(op, x)
        return (values.isnan(),)

    label = f"{num_rows}x{HEAD_DIM} with NaN and infinity"
    return Case(op, label, source.dtype, num_rows, run, want, True)


def _norm_cases(source: Source, num_rows: int) -> Iterator[Case]:
    # The last is columns of a wider matrix, as the query latent is.
    for size, start, width in ((HIDDEN, 0, HIDDEN), (HEAD_DIM, 0, HEAD_DIM), (INDEX_DIM, 0, 128),
                               (LORA, 0, LORA + HEAD_DIM)):  # fmt: skip
        x, weight = source.normal(num_rows, width), source.wide(size)
        x[-1:] *= 1e-12  # a row that the epsilon must not flatten
        for out_dtype in (torch.bfloat16, torch.float32):

            def run(
                rows: torch.Tensor, x: torch.Tensor = x, weight: torch.Tensor = weight,
                start: int = start, out_dtype: torch.dtype = out_dtype,
            ) -> Outputs:  # fmt: skip
                columns = x[rows][:, start : start + len(weight)]
                return (
                    ops.rms_norm(columns, weight, out_dtype=out_dtype),
                    ops.rms_norm(columns, None, out_dtype=out_dtype),
                )

            def want(
                x: torch.Tensor = x, weight: torch.Tensor = weight, start: int = start
            ) -> Outputs:
                wide = x[:, start : start + len(weight)].double()
                normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-20).sqrt()
                return normed * weight.double(), normed

            label = f"{num_rows}x{size} of {width} to {str(out_dtype).removeprefix('torch.')}"
            yield Case("rms_norm", label, source.dtype, num_rows, run, want)


def _rope_cases(source: Source, num_rows: int) -> Iterator[Case]:
    rotation = rotations(source, num_rows)
    heads = source.normal(num_rows, HEADS + 1, HEAD_DIM)
    inputs = {
        "queries": heads[:, :-1],  # rows at the stride of one head more
        "outputs, rotated back": source.normal(num_rows, HEADS, HEAD_DIM),
        "keys": heads[:, -1],
        "index queries": source.normal(num_rows, INDEX_HEADS, INDEX_DIM),
    }
    for name, x in inputs.items():
        turns = rotation.inverse() if "back" in name else rotation

        def run(rows: torch.Tensor, x: torch.Tensor = x, turns: RopeRotation = turns) -> Outputs:
            whole = x if len(rows) == len(x) else x[rows]
            return (ops.apply_rope(whole, _picked(turns, rows)),)

        def want(x: torch.Tensor = x, turns: RopeRotation = turns) -> Outputs:
            return _reference("apply_rope", x, RopeRotation(turns.cos.cpu(), turns.sin.cpu()))

        label = f"{name} {'x'.join(map(str, x.shape))}"
        yield Case("apply_rope", label, source.dtype, num_rows, run, want, True)


def empty_pool(source: Source, index: int, num_rows: int) -> RecordPool:
    """An empty pool of `_POOLS` with room to spare, other bytes all the same."""
    record_format, dim, entries, stride, section = _POOLS[index]
    stride = stride or record_bytes(record_format, dim)
    shape = (num_rows // entries + 2, stride)
    buffer = torch.full(shape, _FILL, dtype=torch.uint8, device=source.device)
    return RecordPool(buffer, record_format, dim, entries, section)


def _slots(source: Source, pool: RecordPool, num_rows: int) -> torch.Tensor:
    """Different slots in any order; some rows have none."""
    slots = torch.randperm(pool.num_slots, generator=source.generator)[:num_rows]
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
            on_cpu = RecordPool(pool.buffer.cpu(), *_POOLS[index][:3], _POOLS[index][4])
            on_cpu.write(slots.cpu(), x.cpu())
            return on_cpu.read(slots.cpu(), torch.float32), torch.zeros(len(x), 1).long()

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
            turns, places = _picked(rotation, rows), slots[rows].int()
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
        on_cpu = RecordPool(buffer.cpu(), record_format, dim, entries, section)
        return (on_cpu.read(slots.cpu(), torch.float32),)

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
        return _reference("nvfp4_fake_quantize", x.float())

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
            turns, places = _picked(rotation, rows), slots[rows]
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
    slots = torch.randperm(num_rows + 3, generator=source.generator)[:num_rows].to(source.device)
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
