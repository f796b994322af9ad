"""Who sees whom: causality, window edge, selections, candidates, sinks."""

import pytest
import torch

from di_engine.model import Numerics, StepBatch, attention, indexer

WIDE = Numerics("float64", "compute", deterministic=True)
LENGTH = 50


@pytest.fixture(scope="module")
def wide(kit):
    return kit.load(kit.make_config(), WIDE)


def replaced(token_ids, position):
    changed = list(token_ids)
    changed[position] = 3 + (changed[position] - 2) % 80
    return changed


@pytest.mark.parametrize("position", [0, 1, 30, 31, 48, 49])
def test_a_token_changes_no_row_before_it(kit, wide, position):
    prompt = kit.tokens(5, LENGTH)
    one = kit.runner(wide).feed(prompt, [LENGTH])
    other = kit.runner(wide).feed(replaced(prompt, position), [LENGTH])
    assert torch.equal(one[:position], other[:position])
    assert not torch.equal(one[position], other[position])


@pytest.mark.parametrize(("distance", "is_seen"), [(7, True), (8, False), (9, False)])
def test_a_window_layer_sees_the_window_and_no_more(kit, distance, is_seen):
    config = kit.make_config(
        num_hidden_layers=1,
        compress_ratios=[0],
        kv_source_layer_ids=[],
        index_source_layer_ids=[],
        candidate_source_layer_id=-1,
        engram_layer_ids=[],
        engram_num_embeddings=[],
    )
    backbone = kit.load(config, WIDE)
    prompt = kit.tokens(6, 40)
    one = kit.runner(backbone).feed(prompt, [40])[-1]
    other = kit.runner(backbone).feed(replaced(prompt, 39 - distance), [40])[-1]
    assert torch.equal(one, other) is not is_seen


def selections(kit, backbone, prompt, chunks=None):
    """Selected entries of each index source as sets per row, and all taps."""
    runner = kit.runner(backbone, taps={})
    runner.feed(prompt, chunks or [len(prompt)])
    sources = backbone.config.index_source_layer_ids
    return {
        layer: [
            {entry for entry in row if entry >= 0}
            for row in runner.taps[f"layers.{layer}.topk_positions"].tolist()
        ]
        for layer in sources
    }, runner.taps


def test_few_entries_are_all_selected(kit, wide):
    chosen, _ = selections(kit, wide, kit.tokens(7, LENGTH))
    for layer, rows in chosen.items():
        ratio = wide.config.ratio(layer)
        for position, row in enumerate(rows):
            num_visible = (position + 1) // ratio
            assert len(row) == min(num_visible, wide.config.index_topk)
            assert row <= set(range(num_visible))


def test_reindex_layers_stay_inside_the_candidate_blocks(kit, wide):
    chosen, taps = selections(kit, wide, kit.tokens(8, LENGTH))
    blocks = taps["layers.3.candidate_blocks"].tolist()
    size, count = wide.config.candidate_block_size, wide.config.candidate_topk_blocks
    for position, (row, row_blocks) in enumerate(zip(chosen[5], blocks, strict=True)):
        candidates = {block for block in row_blocks if block >= 0}
        assert len(candidates) == min(count, -(-(position + 1) // size))
        assert position // size in candidates, "the newest block is always a candidate"
        assert {entry // size for entry in row} <= candidates
    assert chosen[3] != chosen[5]


def test_candidates_that_cover_everything_change_no_selection(kit):
    config = kit.make_config(candidate_topk_blocks=64)
    without = kit.make_config(candidate_source_layer_id=-1)
    prompt = kit.tokens(9, LENGTH)
    one = selections(kit, kit.load(config, WIDE), prompt)[0]
    assert one == selections(kit, kit.load(without, WIDE), prompt)[0]


def test_a_power_of_two_in_the_head_weights_changes_no_selection(kit):
    config = kit.make_config()
    prompt = kit.tokens(10, LENGTH)
    one = kit.load(config, WIDE)
    other = kit.load(config, WIDE)
    for layer in other.layers:
        if layer.attention.indexer is not None:
            layer.attention.indexer.head_weights.weight /= 64
    assert selections(kit, one, prompt)[0] == selections(kit, other, prompt)[0]


def test_scoring_in_pieces_changes_no_bit(kit, wide, monkeypatch):
    prompt = kit.tokens(15, LENGTH)
    want = kit.runner(wide).feed(prompt, [LENGTH])
    monkeypatch.setattr(indexer, "_PRODUCTS_AT_ONCE", 700)
    assert torch.equal(kit.runner(wide).feed(prompt, [LENGTH]), want)


def test_attending_a_few_rows_at_a_time_changes_no_bit(kit, wide, monkeypatch):
    prompt = kit.tokens(16, LENGTH)
    want = kit.runner(wide).feed(prompt, [LENGTH])
    monkeypatch.setattr(attention, "_GATHERED_AT_ONCE", 0)
    assert torch.equal(kit.runner(wide).feed(prompt, [20, LENGTH - 20]), want)


def test_a_large_sink_silences_attention(kit):
    backbone = kit.load(kit.make_config(), WIDE)
    for layer in backbone.layers:
        layer.attention.sink.fill_(1e3)
    runner = kit.runner(backbone, taps={})
    runner.feed(kit.tokens(11, 20), [20])
    for layer in range(backbone.config.num_hidden_layers):
        assert runner.taps[f"layers.{layer}.attn_out"].abs().max() < 1e-100


def test_an_entry_exists_once_its_group_is_complete(kit, wide):
    runner = kit.runner(wide, taps={})
    prompt = kit.tokens(12, 21)
    counts = []
    for length in (5, 1, 1, 14):
        runner.taps.clear()
        runner.feed(prompt, [length])
        entries = runner.taps.get("layers.1.compress_kv")
        counts.append(0 if entries is None else entries.shape[0])
    assert counts == [2, 1, 0, 7]


def test_only_sources_write_the_global_cache(kit, wide):
    runner = kit.runner(wide)
    prompt = kit.tokens(13, 30)
    batch_rows = runner.rows(0, prompt, 30)
    batch = StepBatch.build([batch_rows], ngram_size=wide.config.engram_max_ngram_size)
    step = wide.start(batch, runner.cache)
    streams, pre_mix = wide.embed(batch)
    writers = []
    for number, layer in enumerate(wide.layers):
        before = runner.cache.blocks.clone()
        streams, pre_mix = layer(streams, pre_mix, step)
        if not torch.equal(before, runner.cache.blocks):
            writers.append(number)
    assert writers == list(wide.config.kv_source_layer_ids)


def test_reuse_layers_read_the_latest_selection(kit, wide):
    chosen = []
    runner = kit.runner(wide)
    rows = runner.rows(0, kit.tokens(14, 40), 40)
    batch = StepBatch.build([rows], ngram_size=wide.config.engram_max_ngram_size)
    step = wide.start(batch, runner.cache)
    streams, pre_mix = wide.embed(batch)
    for layer in wide.layers:
        streams, pre_mix = layer(streams, pre_mix, step)
        chosen.append(step.selection)
    assert chosen[0] is None
    assert chosen[1] is chosen[2]
    assert chosen[3] is chosen[4]
    assert chosen[3] is not chosen[5]
