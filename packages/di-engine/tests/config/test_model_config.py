"""Parsing of `config.json`: the release's values, defaults, and refusals that name everything."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from di_engine import tiny
from di_engine.config import ModelConfig, engram_primes, release_config
from di_engine.errors import ConfigError


@pytest.fixture
def values() -> dict[str, Any]:
    """A valid configuration to spoil."""
    return json.loads((tiny.directory() / "config.json").read_text(encoding="utf-8"))


def problems_of(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(values)
    return str(caught.value)


class TestRelease:
    def test_release_values_parse_without_a_leftover_key(self) -> None:
        config = ModelConfig.from_dict(release_config())
        assert config.unknown_keys == ()
        assert config.rms_norm_eps == 1e-20
        assert config.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20 + (0,) * 3
        assert config.rope_scaling.original_max_position_embeddings == 65536
        assert config.quantization is not None
        assert config.vision is not None
        assert config.vision.max_wh_ratio is None
        assert config.global_format == "fp4"
        assert config.engram_columns == 24
        assert config.nope_head_dim == 448

    @pytest.mark.parametrize(
        ("layer", "ratio", "kv", "index"),
        [
            (0, 0, None, None),
            (1, 0, None, None),
            (2, 2, 2, 2),
            (7, 2, 2, 2),
            (8, 2, 8, 8),
            (19, 2, 14, 14),
            (20, 1, 20, 20),
            (23, 1, 20, 20),
            (24, 1, 20, 24),
            (39, 1, 20, 36),
        ],
    )
    def test_release_topology(self, layer: int, ratio: int, kv: int, index: int) -> None:
        config = ModelConfig.from_dict(release_config())
        assert config.ratio(layer) == ratio
        assert config.kv_source(layer) == kv
        assert config.index_source(layer) == index

    def test_release_roles_of_layers(self) -> None:
        config = ModelConfig.from_dict(release_config())
        layers = range(config.num_hidden_layers)
        assert [x for x in layers if config.is_kv_source(x)] == [2, 8, 14, 20]
        assert [x for x in layers if config.is_index_source(x)] == [2, 8, 14, 20, 24, 28, 32, 36]
        assert [x for x in layers if config.uses_candidates(x)] == [24, 28, 32, 36]
        assert [x for x in layers if config.is_candidate_source(x)] == [20]
        assert [x for x in layers if config.has_engram(x)] == [1, 14]
        assert config.engram_index(14) == 1

    def test_engram_primes_of_the_release(self) -> None:
        primes = engram_primes(2, 4, 16_000_000, 8)
        assert [sum(layer) for layer in primes] == [384006168, 384016682]
        assert primes[0][:3] == (16000057, 16000079, 16000081)
        assert primes[1][-1] == 16000889
        assert len({prime for layer in primes for prime in layer}) == 48


class TestOptional:
    def test_sixth_quantization_key_is_accepted(self, values: dict[str, Any]) -> None:
        values["quantization_config"]["fmt"] = "e4m3"
        assert ModelConfig.from_dict(values).is_quantized

    def test_no_quantization_config_means_plain_tensors(self, values: dict[str, Any]) -> None:
        del values["quantization_config"]
        assert ModelConfig.from_dict(values).quantization is None

    def test_no_vision_config_is_allowed(self, values: dict[str, Any]) -> None:
        assert "vision_config" not in values
        assert ModelConfig.from_dict(values).vision is None

    def test_record_format_of_the_checkpoint(self, values: dict[str, Any]) -> None:
        values["text_config"]["use_fp4_sparse_kv"] = False
        assert ModelConfig.from_dict(values).global_format == "mxfp8"

    def test_null_candidate_source_means_none(self, values: dict[str, Any]) -> None:
        text = values["text_config"]
        text.update(candidate_source_layer_id=None, candidate_topk_blocks=0, candidate_block_size=0)
        config = ModelConfig.from_dict(values)
        assert config.candidate_source_layer_id == -1
        assert not any(config.uses_candidates(layer) for layer in range(10))

    def test_sizes_of_absent_mechanisms_may_be_absent(self, values: dict[str, Any]) -> None:
        text = values["text_config"]
        for key in [key for key in text if key.startswith(("engram_", "dspark_"))]:
            del text[key]
        text.update(engram_layer_ids=[], num_nextn_predict_layers=0)
        text["compress_ratios"] = text["compress_ratios"][:10]
        config = ModelConfig.from_dict(values)
        assert config.engram_layer_ids == ()
        assert config.num_nextn_predict_layers == 0

    def test_values_that_never_differ_may_be_absent(self, values: dict[str, Any]) -> None:
        expected = ModelConfig.from_dict(values)
        for key in ("attention_dropout", "attention_bias", "hidden_act", "tie_word_embeddings"):
            del values["text_config"][key]
        assert ModelConfig.from_dict(values) == expected

    def test_groups_may_be_narrower_than_a_scale_tile(self, values: dict[str, Any]) -> None:
        values["text_config"].update(o_groups=2, o_lora_rank=16)
        assert ModelConfig.from_dict(values).o_lora_rank == 16
        values["text_config"]["o_lora_rank"] = 8
        assert "`o_groups` x `o_lora_rank`: 16" in problems_of(values)

    def test_unknown_keys_are_reported_and_harmless(
        self, values: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        values["text_config"]["future_size"] = 3
        with caplog.at_level(logging.WARNING, "di_engine.config"):
            config = ModelConfig.from_dict(values)
        assert config.unknown_keys == ("text_config.future_size",)
        assert "text_config.future_size" in caplog.text


class TestRefusals:
    def test_every_problem_is_listed_with_value_and_what_is_supported(
        self, values: dict[str, Any]
    ) -> None:
        values["model_type"] = "deepseek_v4"
        values["dtype"] = "float16"
        del values["text_config"]["hidden_size"]
        values["text_config"]["hc_shifted"] = False
        values["text_config"]["sliding_window"] = "wide"
        text = problems_of(values)
        assert "5 problems" in text
        assert '`model_type`: "deepseek_v4", supported: "deepseek_v41"' in text
        assert '`dtype`: "float16", supported: "bfloat16"' in text
        assert "`text_config.hidden_size`: missing, supported: an integer of at least 1" in text
        assert "`text_config.hc_shifted`: false, supported: true" in text
        assert '`text_config.sliding_window`: "wide"' in text

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("num_key_value_heads", 2, "`text_config.num_key_value_heads`: 2, supported: 1"),
            ("attention_bias", True, "supported: false"),
            ("attention_bias", 0, "`text_config.attention_bias`: 0, supported: false"),
            ("scoring_func", "softmax", '"softmax", supported: "sqrtsoftplus"'),
            ("rms_norm_eps", 0, "`text_config.rms_norm_eps`: 0, supported: a number above 0"),
            ("rms_norm_eps", 10**400, "`text_config.rms_norm_eps`: 1000"),
            ("rope_theta", float("nan"), "`text_config.rope_theta`: NaN"),
            ("engram_n_heads", 10**9, "up to 4096 together"),
            ("num_hidden_layers", True, "`text_config.num_hidden_layers`: true"),
            ("num_hidden_layers", 10.5, "`text_config.num_hidden_layers`: 10.5"),
            ("index_k_source_layer_ids", [2, 4], "`kv_source_layer_ids`: [2, 4, 6]"),
            ("compress_ratios", [0, 0, 2, 2, 2, 2, 1, 1, 1, 1], "10 entries, supported: 12"),
            ("compress_ratios", [0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 0, 0], "[4] among the entries"),
            ("compress_ratios", [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0], "drafter blocks"),
            ("compress_ratios", [0, 0, 2, 1, 2, 2, 1, 1, 1, 1, 0, 0], "one ratio per KV segment"),
            ("compress_ratios", [0, 1, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0], "no layer up to 1"),
            ("compress_ratios", [0, 0, 0, 2, 2, 2, 1, 1, 1, 1, 0, 0], "have `compress_ratios` 0"),
            ("kv_source_layer_ids", [2, 6, 4], "ascending layer ids"),
            ("index_source_layer_ids", [2, 6, 8], "lacks layer 4"),
            ("index_source_layer_ids", [2, 4, 6, 80], "below `num_hidden_layers`: 10"),
            ("candidate_source_layer_id", 7, "-1 or one of `index_source_layer_ids`"),
            ("candidate_source_layer_id", 4, "equal ratios"),
            ("candidate_source_layer_id", 99, "`num_hidden_layers`: 10"),
            ("candidate_topk_blocks", 3, "= 24 entries, supported: at least `index_topk`: 32"),
            ("head_dim", 48, "multiples of 32"),
            ("qk_rope_head_dim", 96, "even numbers up to 64"),
            ("o_groups", 3, "divides the heads"),
            ("hidden_size", 100, "multiples of 32"),
            ("num_experts_per_tok", 17, "1 to `n_routed_experts`: 16"),
            ("engram_num_embeddings", [1, 2], "prime table sizes"),
            ("engram_layer_ids", [1, 1], "different layer ids"),
            ("engram_pad_token_id", 5000, "0 to 3839"),
            ("engram_compressed_vocab_size", 4000, "1 to `vocab_size`: 3840"),
            ("dspark_target_layer_ids", [], "at least one layer id"),
            ("dspark_target_layer_ids", [9, 12], "below `num_hidden_layers`: 10"),
            ("dspark_noise_token_id", 3840, "0 to 3839"),
            ("dspark_num_experts_per_tok", 9, "1 to `dspark_n_routed_experts`: 8"),
        ],
    )
    def test_text_field(self, values: dict[str, Any], key: str, value: Any, expected: str) -> None:
        values["text_config"][key] = value
        text = problems_of(values)
        assert expected in text
        assert key in text

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("quant_method", "awq"),
            ("weight_block_size", [128, 128]),
            ("scale_fmt", None),
            ("expert_dtype", "fp8"),
            ("activation_scheme", "static"),
            ("fmt", "e5m2"),
        ],
    )
    def test_other_quantization_is_refused(
        self, values: dict[str, Any], key: str, value: Any
    ) -> None:
        values["quantization_config"][key] = value
        assert f"`quantization_config.{key}`" in problems_of(values)

    def test_extra_rope_key_would_change_the_rotation(self, values: dict[str, Any]) -> None:
        values["text_config"]["rope_scaling"]["mscale"] = 1.0
        text = problems_of(values)
        assert "`text_config.rope_scaling.mscale`: 1.0, supported: absent" in text

    def test_token_id_outside_the_vocabulary(self, values: dict[str, Any]) -> None:
        values["eos_token_id"] = 3840
        assert "`eos_token_id`: 3840, supported: 0 to 3839" in problems_of(values)

    def test_several_architectures_are_refused(self, values: dict[str, Any]) -> None:
        values["architectures"] = ["DeepseekV41ForCausalLM", "Other"]
        assert "`architectures`" in problems_of(values)

    @pytest.mark.parametrize("text_config", [None, [], "x"])
    def test_missing_or_wrong_text_config(self, values: dict[str, Any], text_config: Any) -> None:
        values["text_config"] = text_config
        assert "`text_config`" in problems_of(values)

    def test_wrong_vision_size(self) -> None:
        values = deepcopy(release_config())
        values["vision_config"]["num_attention_heads"] = 15
        assert "multiples of `vision_config.num_attention_heads`: 15" in problems_of(values)


class TestFiles:
    def test_absent_file_names_the_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no `config.json`"):
            ModelConfig.from_directory(tmp_path)

    @pytest.mark.parametrize("content", ["{", "[]", "3", '{"a": NaN', "[" * 100_000])
    def test_damaged_file(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=r"config\.json"):
            ModelConfig.from_directory(tmp_path)
