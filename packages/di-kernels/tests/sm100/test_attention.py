"""`sparse_attention` by the stand-in for `flash_mla`, against the reference."""

import pytest
import torch

from di_kernels import RecordPool, ops
from di_kernels.sm100 import attention
from di_kernels.testing import assert_close

BLOCK_BYTES = 114_048  # 216 records of 528 bytes, 396 of 288


def filled(pool):
    generator = torch.Generator().manual_seed(pool.num_slots)
    values = torch.randn(pool.num_slots, 512, generator=generator)
    pool.write(torch.arange(pool.num_slots), values)
    return pool


def ring(entries=130):
    return filled(RecordPool(torch.zeros(entries, 528, dtype=torch.uint8), "mxfp8", 512))


def sections(record_format, entries=16, blocks=3, offset=4 * 288 * 11):
    buffer = torch.full((blocks, BLOCK_BYTES), 0xFF, dtype=torch.uint8)
    return filled(RecordPool(buffer, record_format, 512, entries, offset))


def case(rows, window_width, selected=None, selected_width=0, heads=64):
    generator = torch.Generator().manual_seed(rows * 1000 + window_width)
    window = ring()

    def slots(pool, width):
        chosen = torch.randint(0, pool.num_slots, (rows, width), generator=generator)
        return torch.where(torch.rand(rows, width, generator=generator) < 0.2, -1, chosen)

    q = torch.randn(rows, heads, 512, generator=generator).to(torch.bfloat16)
    sink = torch.randn(heads, generator=generator)
    window_slots = slots(window, window_width)
    if rows:
        window_slots[-1] = -1
    selected_slots = None if selected is None else slots(selected, selected_width)
    return q, window, window_slots, selected, selected_slots, sink


def compare(q, window, window_slots, selected, selected_slots, sink, rotation=None, scale=0.05):
    got = attention.sparse_attention(
        q, window, window_slots, selected, selected_slots, sink, scale, rotation, False
    )
    want = ops.sparse_attention(
        q, window, window_slots, sink, selected=selected, selected_slots=selected_slots,
        scale=scale, rotation=rotation,
    )  # fmt: skip
    assert got.dtype is torch.bfloat16
    assert_close(got, want)
    return got


@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 128])
def test_window_attention_equals_the_reference(flash_mla, width, heads):
    compare(*case(3, width, heads=heads))


@pytest.mark.parametrize("record_format", ["nvfp4", "mxfp8"])
@pytest.mark.parametrize("width", [1, 64, 100])
def test_selected_records_are_read_from_sections_of_larger_blocks(flash_mla, record_format, width):
    pool = sections(record_format)
    compare(*case(4, 128, pool, width))
    cache = flash_mla.calls[-1][1]["extra_k_cache"]
    assert cache.data_ptr() == pool.buffer.data_ptr() + pool.section_offset
    assert cache.shape == (3, 16, 1, ops.record_bytes(record_format, 512))
    assert cache.stride(0) == BLOCK_BYTES


@pytest.mark.parametrize("rows", [0, 1, 2, 65])
def test_any_number_of_rows(flash_mla, rows):
    assert compare(*case(rows, 64, sections("nvfp4"), 64)).shape == (rows, 64, 512)


def test_a_row_without_keys_is_zero(flash_mla):
    q, window, window_slots, *_, sink = case(2, 64)
    got = compare(q, window, torch.full_like(window_slots, -1), None, None, sink)
    assert not got.any()


def test_no_window_and_no_selection_columns(flash_mla):
    q, window, window_slots, selected, selected_slots, sink = case(2, 0, sections("nvfp4"), 70)
    compare(q, window, window_slots, selected, selected_slots, sink)
    compare(q, window, window_slots, selected, selected_slots[:, :0], sink)
    assert flash_mla.calls[-1][1]["extra_k_cache"] is None


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, 1e30])
def test_an_extreme_sink_takes_all_mass_or_none(flash_mla, value):
    *arguments, sink = case(2, 64)
    compare(*arguments, torch.full_like(sink, value))


def test_more_rows_than_requests_become_queries_of_one(flash_mla, monkeypatch):
    monkeypatch.setattr(attention, "_MOST_REQUESTS", 2)
    compare(*case(3, 64, sections("nvfp4"), 64))
    assert flash_mla.calls[-1][1]["q"].shape == (1, 3, 64, 512)
    compare(*case(2, 64))
    assert flash_mla.calls[-1][1]["q"].shape == (2, 1, 64, 512)


def test_queries_turn_before_and_results_after(flash_mla):
    frequencies = ops.rope_frequencies(64, 10_000.0)
    rotation = ops.rope_rotation(torch.tensor([5, 0, 1000]), frequencies)
    arguments = case(3, 64, sections("nvfp4"), 64)
    turned = compare(*arguments, rotation)
    assert not torch.equal(turned, compare(*arguments))


def test_scale_and_batch_invariance_are_handed_on(flash_mla):
    arguments = case(2, 64)
    attention.sparse_attention(*arguments, 0.25, None, True)
    call = flash_mla.calls[-1][1]
    assert call["softmax_scale"] == 0.25
    assert call["enable_batch_invariant"] is True


def test_blocks_that_are_no_whole_records_apart_are_kept_from_the_adapter():
    from di_kernels.ops.attention import _stray_bytes

    def pool(stride, record_format="nvfp4"):
        return RecordPool(torch.zeros(2, stride, dtype=torch.uint8), record_format, 512)

    assert _stray_bytes(pool(528, "mxfp8"), None) == 0
    assert _stray_bytes(pool(528, "mxfp8"), pool(576)) == 0
    assert _stray_bytes(pool(528, "mxfp8"), pool(304)) == 16
    assert _stray_bytes(RecordPool(torch.zeros(2, 512), "plain", 512), None) == 0
