import pytest
import torch

from di_kernels import ops


@pytest.fixture(scope="module")
def tables():
    return ops.engram_hash_tables([1, 14], 4, 8, 16_000_000, 99_092)


def context_of(ids):
    """Each token with the three before it, -1 before the start."""
    columns = [torch.cat((torch.full((back,), -1), ids[: len(ids) - back])) for back in range(4)]
    return torch.stack(columns, dim=1)


def test_constants_of_the_release(tables, real_tables):
    assert tables.num_rows == (384_006_168, 384_016_682)
    for name in ("primes", "offsets", "multipliers"):
        assert torch.equal(getattr(tables, name), real_tables[f"engram.{name}"])


def test_golden_hash_rows(tables, real_tables):
    ids = real_tables["engram.compressed_ids"]
    rows = ops.engram_hash(context_of(ids), 2, tables)
    assert torch.equal(rows, real_tables["engram.hash_ids"])


def test_a_blocked_position_blocks_what_lies_behind_it(tables, real_tables):
    alive = real_tables["engram.dead_mask"].bool()
    ids = torch.where(alive, real_tables["engram.compressed_ids"], -1)
    rows = ops.engram_hash(context_of(ids), 2, tables)
    assert torch.equal(rows[alive], real_tables["engram.hash_ids_with_dead"][alive])
    assert (rows[~alive] == -1).all()


def test_last_ids_stay_inside_the_table(tables):
    rows = ops.engram_hash(torch.full((1, 4), 99_091), 2, tables)
    assert rows[0, 0, :3].tolist() == [12193612, 18525611, 33702377]
    assert rows[0, 0, -1] == 375130424


def test_lookup_of_no_row_gives_zeros():
    codes, scale = ops.mxfp8_quantize(torch.randn(7, 32))
    table = ops.EngramTable(codes, scale)
    rows = torch.tensor([[3, -1], [0, 6]])
    found = ops.engram_lookup(table, rows, torch.float32)
    dense = ops.mxfp8_dequantize(codes, scale)
    assert torch.equal(found[0], torch.cat((dense[3], torch.zeros(32))))
    assert torch.equal(ops.engram_lookup(dense, rows, torch.float32), found)
    assert ops.engram_lookup(table, rows[:0], torch.float32).shape == (0, 64)


@pytest.mark.parametrize(
    ("dot", "gate"), [(0.0, 0.50025), (0.25, 0.622459), (-0.25, 0.377541), (4.0, 0.880797)]
)
def test_gate_of_a_known_dot_product(dot, gate):
    # Unit rows of width 4: the normalised dot product is their sum of products / 2.
    x = torch.ones(1, 1, 4)
    weight = torch.full((1, 4), dot / 2)
    added = ops.engram_gate(x, torch.ones(1, 1, 4), torch.ones(1, 4), weight) - x
    torch.testing.assert_close(added, torch.full((1, 1, 4), gate), atol=1e-5, rtol=0)


def test_masked_rows_come_back_bit_for_bit():
    x = torch.randn(3, 2, 8).bfloat16()
    x[1] = -0.0
    mask = torch.tensor([True, False, True])
    y = ops.engram_gate(x, x, x[:, 0], torch.ones(2, 8), row_mask=mask)
    assert torch.equal(y[1].view(torch.int16), x[1].view(torch.int16))
    assert not torch.equal(y[0], x[0])


def test_wrong_configuration_is_refused():
    with pytest.raises(ValueError, match="max_ngram_size"):
        ops.engram_hash_tables([1], 1, 8, 100, 10)
    with pytest.raises(ValueError, match="compressed_vocab_size"):
        ops.engram_hash_tables([1], 3, 8, 100, 0)
