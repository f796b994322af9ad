import pytest
import torch

from di_kernels import RecordPool, ops
from di_kernels.records import scatter_stored

FAKE = {
    "mxfp8": ops.mxfp8_fake_quantize,
    "nvfp4": ops.nvfp4_fake_quantize,
    "index_mxfp4": ops.mxfp4_fake_quantize,
}


def test_record_sizes_of_the_release():
    sizes = [ops.record_bytes(*f) for f in (("nvfp4", 512), ("mxfp8", 512), ("index_mxfp4", 128))]
    assert sizes == [288, 528, 68]
    with pytest.raises(ValueError, match="multiple of 32, got: 48"):
        ops.record_bytes("mxfp8", 48)


@pytest.mark.parametrize("record_format", FAKE)
@pytest.mark.parametrize("dim", [32, 96, 512])
@pytest.mark.parametrize(
    ("entries", "offset", "extra"), [(1, 0, 0), (8, 0, 0), (8, 32, 64), (64, 1, 7)]
)
def test_what_is_written_is_read_and_nothing_else_changes(
    record_format, dim, entries, offset, extra
):
    width = ops.record_bytes(record_format, dim)
    generator = torch.Generator().manual_seed(0)
    buffer = torch.randint(
        0, 256, (5, offset + entries * width + extra), generator=generator
    ).to(torch.uint8)  # fmt: skip
    before = buffer.clone()
    pool = RecordPool(buffer, record_format, dim, entries, offset)
    slots = torch.randperm(pool.num_slots, generator=generator)[:4]
    slots[1] = -1
    values = torch.randn(4, dim, generator=generator)
    ops.write_records(pool, slots, values)
    expected = FAKE[record_format](values)
    expected[1] = 0
    assert torch.equal(
        ops.read_records(pool, slots.view(2, 2), torch.float32).view(4, dim), expected
    )
    others = torch.tensor([slot for slot in range(pool.num_slots) if slot not in slots.tolist()])
    old = RecordPool(before, record_format, dim, entries, offset)
    stored = ops.read_records(pool, others, torch.float32)
    torch.testing.assert_close(
        stored, ops.read_records(old, others, torch.float32), rtol=0, atol=0, equal_nan=True
    )
    assert torch.equal(buffer[:, :offset], before[:, :offset])
    assert int((buffer != before).sum()) <= 3 * width


@pytest.mark.parametrize("slots", [[5, -1, 0, 7], [-1, -1, 3, -1], [-1] * 4, [2, 1, 0, 4]])
def test_rows_without_a_slot_are_left_out_without_counting_them(slots):
    # The way of devices that the host must not wait for.
    rows, slots = torch.arange(24.0).view(4, 2, 3), torch.tensor(slots)
    values = -torch.arange(1.0, 13.0).view(4, 3)
    expected = rows.clone()
    for slot, value in zip(slots.tolist(), values, strict=True):
        if slot >= 0:
            expected[slot // 2, slot % 2] = value
    scatter_stored(rows, slots, values)
    assert torch.equal(rows, expected)


def test_bytes_of_a_block_lie_where_the_layout_says():
    buffer = torch.zeros(2, 114_048, dtype=torch.uint8)
    main = RecordPool(buffer, "nvfp4", 512, 64, 4_352)
    index = RecordPool(buffer, "index_mxfp4", 128, 64, 0)
    one = torch.ones(1, 512)
    ops.write_records(main, torch.tensor([64 + 3]), one)
    codes, scale = ops.nvfp4_quantize(one)
    record = buffer[1, 4_352 + 3 * 288 :][:288]
    assert torch.equal(record, torch.cat((codes, scale.view(torch.uint8)), 1)[0])
    ops.write_records(index, torch.tensor([5]), one[:, :128])
    codes, scale = ops.mxfp4_quantize(one[:, :128])
    assert torch.equal(buffer[0, 5 * 64 : 6 * 64], codes[0])
    assert torch.equal(buffer[0, 64 * 64 + 5 * 4 :][:4], scale[0])


def test_plain_pools_may_be_strided_sections_of_a_block():
    block = torch.zeros(3, 10 * 8)
    view = block.as_strided((3, 4, 8), (80, 8, 1), 16)
    pool = RecordPool(view, "plain", 8, 4)
    values = torch.randn(2, 8)
    ops.write_records(pool, torch.tensor([11, 4]), values)
    assert torch.equal(block[2, 16 + 3 * 8 :][:8], values[0])
    assert torch.equal(ops.read_records(pool, torch.tensor([11, 4]), torch.float32), values)
    assert torch.equal(pool.read_blocks(torch.tensor([2]), torch.float32)[3], values[0])


def test_an_empty_pool_reads_as_zeros_and_a_missing_slot_is_refused():
    empty = RecordPool(torch.empty(0, 132, dtype=torch.uint8), "mxfp8", 128)
    assert not ops.read_records(empty, torch.full((2, 3), -1), torch.float32).any()
    pool = RecordPool(torch.zeros(4, 132, dtype=torch.uint8), "mxfp8", 128)
    with pytest.raises(IndexError):
        ops.read_records(pool, torch.tensor([4]), torch.float32)


def test_a_section_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at least 264"):
        RecordPool(torch.zeros(4, 263, dtype=torch.uint8), "mxfp8", 128, 2)
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        RecordPool(torch.zeros(4, 264), "mxfp8", 128, 2)
    with pytest.raises(ValueError, match="at least 3, 8"):
        RecordPool(torch.zeros(4, 2, 8), "plain", 8, 2, 1)
