import pytest
import torch

from di_kernels import RecordPool, ops
from di_kernels.testing import assert_bitwise, assert_close

INVARIANT = [False, True]


def inputs(rows=5, heads=3, dim=32, keys=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(rows, heads, dim, generator=generator).to(dtype)
    k = torch.randn(rows, keys, dim, generator=generator).to(dtype)
    return q, k, torch.ones(rows, keys, dtype=torch.bool), torch.randn(heads, generator=generator)


@pytest.mark.parametrize("invariant", INVARIANT)
@pytest.mark.parametrize("sink", [-torch.inf, -1e4, 0.0, 1e4, torch.inf])
def test_a_row_without_keys_gives_exact_zeros(invariant, sink):
    q, k, valid, _ = inputs()
    valid[2] = False
    sinks = torch.full((3,), sink)
    out = ops.sink_attention(q, k, valid, sinks, batch_invariant=invariant)
    assert not out[2].any()
    assert not out.isnan().any()


@pytest.mark.parametrize("invariant", INVARIANT)
def test_no_sink_is_plain_softmax_and_a_large_one_takes_everything(invariant):
    q, k, valid, _ = inputs()
    plain = torch.softmax(q.double() @ k.double().transpose(1, 2) * 32**-0.5, -1) @ k.double()
    none = torch.full((3,), -torch.inf)
    assert_close(ops.sink_attention(q, k, valid, none, batch_invariant=invariant), plain)
    everything = torch.full((3,), torch.inf)
    assert not ops.sink_attention(q, k, valid, everything, batch_invariant=invariant).any()


@pytest.mark.parametrize("invariant", INVARIANT)
def test_a_sink_of_zero_is_one_more_zero_key(invariant):
    q, k, valid, _ = inputs()
    longer = torch.cat((k, torch.zeros(5, 1, 32)), dim=1)
    more = torch.cat((valid, valid[:, :1]), dim=1)
    none = torch.full((3,), -torch.inf)
    with_key = ops.sink_attention(q, longer, more, none, batch_invariant=invariant)
    with_sink = ops.sink_attention(q, k, valid, torch.zeros(3), batch_invariant=invariant)
    assert_close(with_sink, with_key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("extra", [1, 57, 64, 200])
def test_slots_of_minus_one_change_no_bit(dtype, extra):
    q, _, _, sink = inputs(dtype=dtype)
    pool = RecordPool(torch.randn(20, 32).to(dtype), "plain", 32)
    slots = torch.arange(35).view(5, 7) % 20
    padded = torch.nn.functional.pad(slots, (0, extra), value=-1)
    whole = ops.sparse_attention(q, pool, slots, sink, batch_invariant=True)
    more = ops.sparse_attention(q, pool, padded, sink, batch_invariant=True)
    assert_bitwise(more, whole)


@pytest.mark.parametrize("invariant", INVARIANT)
def test_no_rows_and_no_slots(invariant):
    q, _, _, sink = inputs()
    pool = RecordPool(torch.randn(20, 32), "plain", 32)
    none = torch.empty(0, 7, dtype=torch.int64)
    assert ops.sparse_attention(
        q[:0], pool, none, sink, batch_invariant=invariant
    ).shape == (0, 3, 32)  # fmt: skip
    nothing = torch.empty(5, 0, dtype=torch.int64)
    assert not ops.sparse_attention(q, pool, nothing, sink, batch_invariant=invariant).any()


def test_rows_are_gathered_in_parts_without_a_change(monkeypatch):
    q, _, _, sink = inputs()
    pool = RecordPool(torch.randn(20, 32), "plain", 32)
    slots = torch.arange(35).view(5, 7) % 20
    whole = ops.sparse_attention(q, pool, slots, sink, selected=pool, selected_slots=slots)
    monkeypatch.setattr("di_kernels.ops.attention._GATHERED_VALUES_AT_ONCE", 1000)
    parts = ops.sparse_attention(q, pool, slots, sink, selected=pool, selected_slots=slots)
    assert_close(parts, whole)


@pytest.mark.parametrize("invariant", INVARIANT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_rotation_is_the_op_before_and_back_after(dtype, invariant):
    q, _, _, sink = inputs(dtype=dtype)
    pool = RecordPool(torch.randn(20, 32).to(dtype), "plain", 32)
    slots = torch.arange(35).view(5, 7) % 20
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    positions = torch.tensor([0, 1, 70, 4095, 1_000_000])
    rotation = ops.rope_rotation(positions, ops.rope_frequencies(16, 10_000.0), wide)
    rotated = ops.apply_rope(q, rotation)
    out = ops.sparse_attention(rotated, pool, slots, sink, batch_invariant=invariant)
    fused = ops.sparse_attention(q, pool, slots, sink, rotation=rotation, batch_invariant=invariant)
    assert_bitwise(fused, ops.apply_rope(out, rotation.inverse()))
    assert not torch.equal(fused, out)


def test_mistakes_are_named():
    q, k, valid, sink = inputs()
    pool = RecordPool(torch.randn(20, 32), "plain", 32)
    slots = torch.zeros(5, 7, dtype=torch.int64)
    with pytest.raises(ValueError, match="go together"):
        ops.sparse_attention(q, pool, slots, sink, selected=pool)
    with pytest.raises(ValueError, match="`sink`"):
        ops.sink_attention(q, k, valid, sink[:2])
    frequencies = ops.rope_frequencies(32, 10_000.0)
    other_rows = ops.rope_rotation(torch.arange(4), frequencies)
    with pytest.raises(ValueError, match=r"`rotation.cos`.*\(5, any\)"):
        ops.sparse_attention(q, pool, slots, sink, rotation=other_rows)
    wide = ops.rope_rotation(torch.arange(5), frequencies)
    narrow = RecordPool(torch.randn(20, 16), "plain", 16)
    with pytest.raises(ValueError, match="even number from 2 to 16, the size of a head, got: 32"):
        ops.sparse_attention(q[..., :16], narrow, slots, sink, rotation=wide)
