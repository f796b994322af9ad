import pytest
import torch

from di_kernels import RecordPool, ops
from di_kernels.testing import assert_bitwise

DIM, ROTARY = 64, 32


def rotation(num_rows):
    frequencies = ops.rope_frequencies(ROTARY, 10000.0)
    return ops.rope_rotation(torch.arange(num_rows) * 37, frequencies)


def pool(record_format="mxfp8", slots=12):
    width = ops.record_bytes(record_format, DIM)
    return RecordPool(torch.zeros(slots, width, dtype=torch.uint8), record_format, DIM)


@pytest.mark.parametrize("record_format", ["mxfp8", "nvfp4", "index_mxfp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_call_writes_what_three_write(record_format, dtype):
    x, weight, slots = torch.randn(4, DIM).to(dtype), torch.randn(DIM), torch.tensor([5, -1, 0, 9])
    joined, single = pool(record_format), pool(record_format)
    latent = ops.norm_rope_write(x, weight, rotation(4), joined, slots, 1e-6)
    normed = ops.rms_norm(x, weight, 1e-6)
    ops.write_records(single, slots, ops.apply_rope(normed, rotation(4)))
    assert_bitwise(latent, normed)
    assert torch.equal(joined.buffer, single.buffer)
    assert joined.buffer.any(1).nonzero().flatten().tolist() == [0, 5, 9]


def test_groups_take_kept_rows_and_new_ones():
    rows, weight = torch.randn(3, 2 * DIM), torch.randn(DIM)
    state = RecordPool(torch.randn(6, 2 * DIM), "plain", 2 * DIM)
    history = torch.tensor([4, -1])
    # A kept row with a new one, two new ones, zeros with a new one.
    groups, slots = torch.tensor([[0, 2], [3, 4], [1, 2]]), torch.tensor([1, 0, -1])
    joined, single = pool("nvfp4"), pool("nvfp4")
    latent = ops.compress_entries(
        rows, groups, weight, rotation(3), joined, slots, state=state, history_slots=history,
        out_dtype=torch.bfloat16,
    )  # fmt: skip
    members = torch.cat((state.buffer[4:5], torch.zeros(1, 2 * DIM), rows))
    pooled = ops.compress_pool(*members.split(DIM, 1), groups, out_dtype=torch.bfloat16)
    expected = ops.norm_rope_write(pooled, weight, rotation(3), single, slots)
    assert_bitwise(latent, expected)
    assert torch.equal(joined.buffer, single.buffer)
    alone = ops.compress_entries(
        rows, groups[1:2] - 2, weight, _row(rotation(3), 1), pool("nvfp4"),
        slots[1:2], out_dtype=torch.bfloat16,
    )  # fmt: skip
    assert_bitwise(alone, latent[1:2])


def _row(turns, row):
    return ops.RopeRotation(turns.cos[row : row + 1], turns.sin[row : row + 1])


def test_no_rows_and_no_groups_write_nothing():
    empty = torch.empty(0, dtype=torch.int64)
    target = pool()
    latent = ops.norm_rope_write(torch.empty(0, DIM), torch.ones(DIM), rotation(0), target, empty)
    assert latent.shape == (0, DIM)
    latent = ops.compress_entries(
        torch.randn(2, 2 * DIM), empty.view(0, 2), torch.ones(DIM), rotation(0), target, empty
    )
    assert latent.shape == (0, DIM)
    assert not target.buffer.any()


def test_shapes_that_do_not_match_are_named():
    x, weight, slots = torch.randn(2, DIM), torch.ones(DIM), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="`x`"):
        ops.norm_rope_write(x[:1], weight, rotation(2), pool(), slots)
    with pytest.raises(ValueError, match="`weight`"):
        ops.norm_rope_write(x, weight[1:], rotation(2), pool(), slots)
    rows, groups = torch.randn(4, 2 * DIM), torch.tensor([[0, 1], [2, 3]])
    call = (rows, groups, weight, rotation(2), pool(), slots)
    with pytest.raises(ValueError, match="give both or neither"):
        ops.compress_entries(*call, history_slots=slots)
    narrow = RecordPool(torch.zeros(4, DIM), "plain", DIM)
    with pytest.raises(ValueError, match="`plain` entries of 128 values, got: `plain`"):
        ops.compress_entries(*call, state=narrow, history_slots=slots)
