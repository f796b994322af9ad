"""Engram's compressed vocabulary and hash constants."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from di_engine.errors import ConfigError
from di_engine.model import Backbone, Numerics, build_token_map, placeholder_token_map
from di_engine.model.engram import EngramHasher
from di_kernels import ops


def byte_level(*spellings):
    """A tokenizer whose ids are the given byte-level spellings."""
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(spellings)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_spellings_that_differ_in_case_accents_or_spaces_share_a_number():
    # Ġ is a space, Ċ a line feed, ĉ a tab, Ã© is é, Ãī is É in byte-level spelling.
    spellings = ["The", "Ġthe", "Ġ", "Ċ", "ĠĠ", "ĉ", "e", "Ã©", "Ãī", "theĊ", "x"]
    assert build_token_map(byte_level(*spellings), len(spellings)).tolist() == [
        0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 3,
    ]  # fmt: skip


def test_parts_of_characters_keep_their_own_numbers():
    assert build_token_map(byte_level("Ã", "©", "â"), 3).tolist() == [0, 1, 2]


def test_primes_of_the_release_sum_to_the_published_table_sizes():
    tables = ops.engram_hash_tables((1, 14), 4, 8, 16_000_000, 99_092)
    sums = tables.primes.flatten(1).sum(1).tolist()
    assert sums == [384_006_168, 384_016_682]


def test_a_map_of_another_tokenizer_is_refused(kit):
    config = kit.make_config()
    with pytest.raises(ConfigError, match="`engram_compressed_vocab_size` = 96"):
        EngramHasher(config, np.zeros(96, dtype=np.int64), "cpu")
    with pytest.raises(ConfigError, match="must have `vocab_size` = 96 entries"):
        EngramHasher(config, np.arange(95), "cpu")


def test_a_model_with_engram_needs_a_map(kit):
    config = kit.make_config()
    with pytest.raises(ConfigError, match=r"`token_map` is required.*\[0, 2\]"):
        Backbone.load(config, kit.source(config), Numerics("float32"))


def test_the_placeholder_map_fits_its_configuration(kit):
    config = kit.make_config(engram_compressed_vocab_size=90)
    EngramHasher(config, placeholder_token_map(config), "cpu")


def test_hash_rows_do_not_depend_on_the_cut(kit):
    backbone = kit.load(kit.make_config(), Numerics("float32", "compute"))
    prompt = kit.tokens(30, 20)
    rows = []
    for chunks in ([20], [1] * 20, [3, 1, 1, 15]):
        runner = kit.runner(backbone, taps={})
        seen = []
        for length in chunks:
            runner.feed(prompt, [length])
            seen.append(runner.taps["engram_hash_ids"])
        rows.append(torch.cat(seen))
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
    assert (rows[0] >= 0).all()
