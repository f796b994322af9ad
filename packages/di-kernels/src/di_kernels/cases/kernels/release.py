"""The release's widths, and random weights and records of them.

Weights are in fragment order, records in blocks that hold other layers' sections too, as the engine
keeps them.
"""

from __future__ import annotations

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.fragments import (
    MXFP4FragmentWeight,
    mxfp4_to_fragment_order,
)
from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight, mxfp4_to_e4m3_fragment_order
from di_kernels.records import RecordFormat, RecordPool, record_bytes
from di_kernels.weights import MXFP4Weight, MXFP8Weight

ROWS = (0, 1, 2, 8, 63, 64, 65, 257)
HIDDEN, EXPERT_SIZE, ACTIVE, LIMIT = 5120, 2304, 6, 10.0
HEADS, HEAD_DIM = 64, 512
COPIES, SINKHORN_ITERATIONS = 4, 20
EXPERTS, VOCABULARY = 384, 129_280
ENGRAM_COLUMNS, ENGRAM_SIZE, COMPRESSED_VOCABULARY = 24, 256, 99_092
LINEARS = {
    "wq_b": (1, 32768, 1280),
    "wo_a": (8, 1024, 4096),
    "wo_b": (1, 5120, 8192),
    "wq_a + wkv": (1, 1792, 5120),
    "shared w1 + w3": (1, 4608, 5120),
    "shared w2": (1, 5120, 2304),
    "engram wkv": (1, 25600, 6144),
}
"""Groups, rows and columns of the release's MXFP8 matrices."""

BLOCK_BYTES = 114_048


def random_mxfp4(source: Source, *shape: int) -> MXFP4Weight:
    """Random codes, scales of five octaves; drawn on the device, a CPU takes seconds for all."""
    seed = int(source.integers(0, 1 << 31))
    generator = torch.Generator(source.device).manual_seed(seed)

    def draw(low: int, high: int, columns: int) -> torch.Tensor:
        size = (*shape[:-1], columns)
        return torch.randint(
            low, high, size, generator=generator, device=source.device, dtype=torch.uint8
        )

    return MXFP4Weight(draw(0, 256, shape[-1] // 2), draw(117, 122, shape[-1] // 32))


def random_mxfp8(source: Source, rows: int, columns: int) -> MXFP8Weight:
    """Random codes without NaN, scales of five octaves."""
    data = source.integers(0, 256, rows, columns).byte()
    data = torch.where((data & 127) == 127, data - 1, data)
    scale = source.integers(105, 110, rows // 32, columns // 32).byte()
    return MXFP8Weight(data.view(torch.float8_e4m3fn), scale)


def expert_weights(source: Source, experts: int) -> tuple[MXFP4FragmentWeight, MXFP4FragmentWeight]:
    """Both matrices of so many experts."""
    w13 = random_mxfp4(source, experts, 2 * EXPERT_SIZE, HIDDEN)
    w2 = random_mxfp4(source, experts, HIDDEN, EXPERT_SIZE)
    return mxfp4_to_fragment_order(w13, interleave_gate_up=True), mxfp4_to_fragment_order(w2)


def e4m3_expert_weights(
    source: Source, experts: int
) -> tuple[MXFP4E4M3FragmentWeight, MXFP4E4M3FragmentWeight]:
    """Both matrices of so many experts, for FP8 activations."""
    w13 = random_mxfp4(source, experts, 2 * EXPERT_SIZE, HIDDEN)
    w2 = random_mxfp4(source, experts, HIDDEN, EXPERT_SIZE)
    gate_up = mxfp4_to_e4m3_fragment_order(w13, interleave_gate_up=True)
    return gate_up, mxfp4_to_e4m3_fragment_order(w2)


def record_pool(
    source: Source, record_format: RecordFormat, entries: int, num_blocks: int
) -> RecordPool:
    """A pool of random entries in blocks that hold other sections before and behind."""
    offset = 2 * record_bytes(record_format, HEAD_DIM)
    buffer = torch.zeros(num_blocks, BLOCK_BYTES, dtype=torch.uint8, device=source.device)
    pool = RecordPool(buffer, record_format, HEAD_DIM, entries, offset)
    slots = torch.arange(pool.num_slots, device=source.device)
    ops.write_records(pool, slots, source.normal(pool.num_slots, HEAD_DIM))
    return pool


def window_pool(source: Source, num_slots: int) -> RecordPool:
    """A ring of random window entries."""
    buffer = torch.zeros(num_slots, record_bytes("mxfp8", HEAD_DIM), dtype=torch.uint8)
    pool = RecordPool(buffer.to(source.device), "mxfp8", HEAD_DIM)
    slots = torch.arange(num_slots, device=source.device)
    ops.write_records(pool, slots, source.normal(num_slots, HEAD_DIM))
    return pool


def engram_tables() -> ops.EngramHashTables:
    """Constants of the release's two Engram layers."""
    return ops.engram_hash_tables([1, 14], 4, 8, 16_000_000, COMPRESSED_VOCABULARY)


def random_engram_table(source: Source, rows: int) -> ops.EngramTable:
    """Random codes without NaN, scales of 64 octaves."""
    data = source.integers(0, 256, rows, ENGRAM_SIZE).byte()
    data = torch.where((data & 127) == 127, data - 1, data)
    scale = source.integers(80, 144, rows, ENGRAM_SIZE // 32).byte()
    return ops.EngramTable(data.view(torch.float8_e4m3fn), scale)
