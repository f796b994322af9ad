"""How the products of the hyper-connections are cut over thread blocks."""

import pytest

from di_kernels.tile.hyper import part_chunks


@pytest.mark.parametrize("num_chunks", [1, 2, 7, 20, 160])
@pytest.mark.parametrize("num_rows", [1, 64, 65, 256, 8192])
def test_chunks_of_a_block_divide_the_columns(num_chunks, num_rows):
    chunks = part_chunks(num_rows, num_chunks, 132, batch_invariant=False)
    assert num_chunks % chunks == 0


def test_few_rows_take_many_blocks_and_many_rows_take_wide_ones():
    assert part_chunks(64, 160, 132, batch_invariant=False) == 1
    assert part_chunks(256, 160, 132, batch_invariant=False) == 4
    assert part_chunks(8192, 160, 132, batch_invariant=False) == 10


def test_batch_invariant_cuts_do_not_depend_on_the_rows():
    cuts = {part_chunks(rows, 160, 132, batch_invariant=True) for rows in (1, 64, 8192)}
    assert cuts == {2}
