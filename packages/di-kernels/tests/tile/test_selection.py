"""How selections and index scores are cut and served, decided without a device."""

import pytest
import torch

from di_kernels import RecordPool, UnsupportedLayoutError, UnsupportedShapeError, backends
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import index, selection
from di_kernels.ops.indexer import _key_layout
from di_kernels.testing import assert_bitwise, assert_close
from di_kernels.tile import scores, select, toolchain
from di_kernels.tile.catalogue import kernels
from di_kernels.tile.catalogue.index import BLOCKS_PER_SM, scores_name
from di_kernels.tile.catalogue.selection import _VARIANTS, CLUSTER_ENTRIES, selection_name

HOPPER = ("cuda", (9, 0))
SMALL = 30_000


@pytest.fixture
def tools(monkeypatch):
    """As on a machine that has TileLang and nvcc."""
    real = toolchain.importlib.util.find_spec
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: real("json"))
    toolchain.missing_tools.cache_clear()
    yield
    toolchain.missing_tools.cache_clear()


@pytest.fixture
def source():
    generator = torch.Generator().manual_seed(0)
    return Source(torch.device("cpu"), torch.bfloat16, False, generator)


def test_every_choice_is_in_the_catalogue():
    for dtype in (torch.float32, torch.bfloat16):
        for block_size in (1, 8):
            for rows in (1, 16, 17, 32, 33, 5000):
                for candidates in (2, 4096, 4097, 16_384, 16_385, 131_072, 131_073, 1 << 20):
                    variant = select.variant_for(rows, candidates, block_size)
                    assert selection_name(dtype, block_size, variant) in kernels()
    names = {scores_name(rows, is_candidate=False) for rows in BLOCKS_PER_SM}
    assert names | {scores_name(1, is_candidate=True)} <= set(kernels())


@pytest.mark.parametrize(
    ("rows", "candidates", "block_size", "variant"),
    [
        (1, 4096, 1, "block"), (1, 4097, 1, "cluster"), (17, 16_384, 1, "block"),
        (64, 16_384, 8, "cluster"), (65, 16_384, 8, "block"), (65, 16_385, 8, "cluster"),
        (1, 131_072, 1, "cluster"), (1, 131_073, 1, "long"), (15, 131_072, 1, "cluster"),
        (16, 131_072, 1, "six"), (17, 16_385, 1, "six"), (18, 131_072, 1, "cluster"),
        (16, 16_384, 1, "cluster"), (16, 131_072, 8, "cluster"), (16, 131_073, 1, "long"),
    ],
)  # fmt: skip
def test_the_variant_holds_a_row(rows, candidates, block_size, variant):
    assert select.variant_for(rows, candidates, block_size) == variant


@pytest.mark.parametrize("blocks", range(1, 9))
def test_every_bin_has_one_owner_and_place(blocks):
    steps = pytest.importorskip("di_kernels.tile.select_steps")
    shape = steps.Selection(32, blocks, 1, True, False, 1024)
    places = {(shape.owner(bin_), shape.place(bin_)) for bin_ in range(steps.BINS)}
    assert len(places) == steps.BINS
    assert all(0 <= place < shape.owned for _, place in places)
    for block in range(blocks):
        warps = shape.first_owned(block + 1) - shape.first_owned(block)
        assert warps * steps.BINS_PER_WARP == sum(owner == block for owner, _ in places)


def test_clusters_hold_a_row():
    steps = pytest.importorskip("di_kernels.tile.select_steps")
    for blocks, is_kept, _, keys in _VARIANTS.values():
        assert keys % steps.LOOK == 0
        if blocks > 1 and is_kept:
            assert blocks * steps.WARPS * keys >= CLUSTER_ENTRIES


@pytest.mark.parametrize("rows", [1, 3, 16, 100, 5000])
@pytest.mark.parametrize("requests", [1, 2, 16])
@pytest.mark.parametrize("tiles", [1, 63, 2048, 16_384])
def test_parts_cover_the_tiles_within_their_limit(rows, requests, tiles):
    group = scores.group_rows_for(rows, requests)
    assert 1 <= group <= max(BLOCKS_PER_SM)
    for most in (16, 128):
        part = scores.part_tiles_for(tiles, -(-rows // group), 528, most)
        assert 1 <= part <= most


def test_rows_of_a_request_share_keys():
    assert scores.group_rows_for(16, 16) == 1
    assert scores.group_rows_for(96, 16) == 6
    assert scores.group_rows_for(4096, 1) == max(BLOCKS_PER_SM)


def test_keys_that_are_no_whole_units_or_other_records_are_refused(tools):
    def layout(record_format, stride, offset=0):
        buffer = torch.zeros(2, stride, dtype=torch.uint8)
        return _key_layout(RecordPool(buffer, record_format, 128, 64, offset))

    backend = backends("index_scores")[0]
    sizes = {"heads": 32, "head_dim": 128, "entries_per_block": 64}
    call = ("index_scores", *HOPPER, torch.bfloat16)
    assert backend.refusal(*call, sizes, layout=layout("index_mxfp4", 4368, 16)) is None
    for other in (layout("index_mxfp4", 4360), layout("index_mxfp4", 4368, 8)):
        assert other == "index_mxfp4 records, not in 16-byte units"
        assert isinstance(backend.refusal(*call, sizes, layout=other), UnsupportedLayoutError)
    other = layout("nvfp4", 64 * 72)
    assert isinstance(backend.refusal(*call, sizes, layout=other), UnsupportedLayoutError)
    refusal = backend.refusal(*call, {**sizes, "entries_per_block": 96})
    assert isinstance(refusal, UnsupportedShapeError)
    assert "entries_per_block % 64 == 0 (got 96)" in str(refusal)


def test_more_entries_than_served_fall_to_the_reference(tools):
    refusal = backends("select_topk")[0].refusal("select_topk", *HOPPER, torch.float32, {"k": 4096})
    assert "k >= 1 and k <= 2048 (got 4096)" in str(refusal)


def test_the_reference_passes_the_cases_of_selections(source):
    count = 0
    for case in selection.cases(source):
        label = case.label.split()[1].rstrip(",").split("x")
        if int(label[0]) * int(label[1]) <= SMALL:
            for actual, expected in zip(case.run(case.all_rows), case.oracle(), strict=True):
                assert_bitwise(actual, expected, case.name)
            count += 1
    assert count > 40


def test_the_reference_passes_the_cases_of_index_scores(source):
    count = 0
    for case in index.cases(source):
        if "131071" in case.label or "4097" in case.label:
            continue
        for actual, expected in zip(case.run(case.all_rows), case.oracle(), strict=True):
            assert_close(actual, expected, case.name)
        count += 1
    assert count > 10
