"""The built-in checkpoint: complete, small, with every mechanism on, and described."""

from __future__ import annotations

import numpy as np
import pytest

from di_engine import tiny
from di_engine.checkpoint import inspect_checkpoint
from di_engine.config import ModelConfig
from di_engine.model.token_map import build_token_map
from di_engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_directory(tiny.directory())


@pytest.fixture(scope="module")
def tokenizer(config: ModelConfig) -> Tokenizer:
    return Tokenizer.from_directory(tiny.directory(), config)


def test_it_is_whole_and_below_8_mb() -> None:
    inspection = inspect_checkpoint(tiny.NAME)
    assert inspection.problems == []
    assert inspection.notes == []
    assert sum(file.stat().st_size for file in tiny.directory().iterdir()) < 8_000_000


def test_every_mechanism_is_on(config: ModelConfig) -> None:
    layers = range(config.num_hidden_layers)
    assert {config.ratio(layer) for layer in layers} == {0, 1, 2}
    assert any(config.kv_source(layer) not in (None, layer) for layer in layers)
    assert any(config.is_index_source(x) and not config.is_kv_source(x) for x in layers)
    assert any(config.uses_candidates(layer) for layer in layers)
    assert len(config.engram_layer_ids) == 2
    assert config.engram_max_ngram_size == 4
    assert config.hc_mult == 4
    assert config.is_quantized
    assert config.num_nextn_predict_layers == 2
    assert config.dspark_n_routed_experts != config.n_routed_experts
    assert config.o_groups > 1


def test_markup_of_the_release_is_in_the_vocabulary(
    config: ModelConfig, tokenizer: Tokenizer
) -> None:
    named = {
        "<｜begin▁of▁sentence｜>": config.bos_token_id,
        "<｜end▁of▁sentence｜>": config.eos_token_id,
        "<｜▁pad▁｜>": config.pad_token_id,
        "<｜System｜>": config.dspark_noise_token_id,
        "<｜deepseek_image｜>": config.image_token_id,
    }
    assert {text: tokenizer.token_id(text) for text in named} == named
    for text in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<|EOT|>"):
        assert tokenizer.token_id(text) is not None, text


def test_compressed_vocabulary_fits_the_tokenizer(
    config: ModelConfig, tokenizer: Tokenizer
) -> None:
    token_map = build_token_map(tokenizer.backend, config.vocab_size)
    assert np.unique(token_map).size == config.engram_compressed_vocab_size
    assert config.engram_compressed_vocab_size < config.vocab_size


def test_numbers_are_cut_into_three_digits(tokenizer: Tokenizer) -> None:
    pieces = [tokenizer.decode([token_id]) for token_id in tokenizer.encode("1234567")]
    assert max(map(len, pieces)) <= 3


def test_the_card_names_every_source_and_its_licence() -> None:
    card = (tiny.directory() / "README.md").read_text(encoding="utf-8")
    for licence in ("PSF-2.0", "BSD-3-Clause", "WordNet-3.0", "Apache-2.0"):
        assert licence in card
    for section in ("Data", "Training", "Held-out bits per byte", "Experts", "Drafter"):
        assert f"## {section}" in card
