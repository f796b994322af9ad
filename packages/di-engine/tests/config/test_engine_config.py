"""Merging of file, environment and flags; origins; unknown keys; contradictions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from di_engine import tiny
from di_engine.config import EngineConfig, ModelConfig
from di_engine.config.deepinfer_names import DEEPINFER_ARGUMENTS, DEEPINFER_VARIABLES
from di_engine.errors import ConfigError


def load(**sources: Any) -> EngineConfig:
    return EngineConfig.load(**{"environ": {}, **sources})


def problems_of(**sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**sources)
    return str(caught.value)


@pytest.fixture
def model() -> ModelConfig:
    return ModelConfig.from_directory(tiny.directory())


class TestSources:
    def test_defaults_say_so(self) -> None:
        config = load()
        assert set(config.origins().values()) == {"default"}
        assert config.model.path == "tiny"
        assert set(config.values()) == set(config.fields()) == set(config.origins())

    def test_later_sources_win_and_are_named(self, tmp_path: Path) -> None:
        file = tmp_path / "engine.yaml"
        file.write_text(
            "scheduler: {max_running: 3}\ncache: {num_blocks: 4}\ndevice: cuda\nseed: 9\n"
        )
        config = load(
            file=file,
            environ={"DI_SCHEDULER__MAX_RUNNING": "5", "DI_DEVICE": "cpu", "HOME": "/x"},
            overrides={"scheduler.max_running": 7},
        )
        origins = config.origins()
        assert (config.scheduler.max_running, origins["scheduler.max_running"]) == (7, "flag")
        assert (config.device, origins["device"]) == ("cpu", "env DI_DEVICE")
        assert (config.seed, origins["seed"]) == (9, f"file {file}")
        assert (config.cache.num_blocks, origins["cache.storage"]) == (4, "default")

    def test_environment_text_is_read_by_type(self) -> None:
        config = load(
            environ={
                "DI_MODEL__PATH": "123",
                "DI_MODEL__MAX_MODEL_LEN": "none",
                "DI_DETERMINISTIC": "true",
                "DI_CACHE__MEMORY_FRACTION": "0.5",
                "DI_SCHEDULER__CHUNKED_PREFILL": "0",
            }
        )
        assert config.model.path == "123"
        assert config.model.max_model_len is None
        assert config.deterministic is True
        assert config.cache.memory_fraction == 0.5
        assert config.scheduler.chunked_prefill is False

    def test_process_environment_is_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DI_SEED", "11")
        assert EngineConfig.load().seed == 11
        assert EngineConfig.from_flat().seed == 0

    def test_short_names_and_model_path(self) -> None:
        config = EngineConfig.from_flat(model="DIR", max_running=2, cache={"num_blocks": 99})
        assert config.model.path == "DIR"
        assert config.scheduler.max_running == 2
        assert config.cache.num_blocks == 99
        assert config.origins()["scheduler.max_running"] == "argument"

    def test_short_names_are_unique(self) -> None:
        names = [path.rsplit(".", 1)[-1] for path in EngineConfig.fields()]
        assert len(names) == len(set(names))

    def test_unset_flags_are_passed_over(self) -> None:
        assert load(overrides={"max_running": None}).origins()["scheduler.max_running"] == "default"

    def test_empty_section_of_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "engine.yaml"
        file.write_text("cache:\nmodel: DIR\n")
        assert load(file=file).model.path == "DIR"

    def test_every_field_has_help(self) -> None:
        assert all(field.help for field in EngineConfig.fields().values())


class TestProblems:
    def test_unknown_names_are_errors_with_a_suggestion(self, tmp_path: Path) -> None:
        file = tmp_path / "engine.yaml"
        file.write_text("scheduler: {max_runing: 3}\nchache: {}\n")
        text = problems_of(
            file=file, environ={"DI_SHEDULER__MAX_RUNNING": "1"}, overrides={"seeed": 1}
        )
        assert "`scheduler.max_runing`: unknown" in text
        assert "did you mean `scheduler.max_running`" in text
        assert "`chache`: unknown" in text
        assert "`DI_SHEDULER__MAX_RUNNING`: unknown" in text
        assert "`seeed`: unknown (flag), did you mean `seed`" in text

    def test_all_bad_values_are_listed(self) -> None:
        text = problems_of(
            overrides={"scheduler.max_running": 0, "cache.storage": "zip", "device": 3}
        )
        assert "`scheduler.max_running`: 0" in text
        assert "`cache.storage`: 'zip'" in text
        assert "'packed' or 'compute'" in text
        assert "`device`: 3" in text

    def test_constructor_raises_the_same_error(self) -> None:
        with pytest.raises(ConfigError, match="max_running"):
            EngineConfig(scheduler={"max_running": "8"})
        with pytest.raises(ConfigError, match="`modell`: unknown"):
            EngineConfig(modell={})

    @pytest.mark.parametrize("content", ["- 1", "3", "a: [", "\x00"])
    def test_damaged_file(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "engine.yaml"
        file.write_text(content)
        assert "engine.yaml" in problems_of(file=file)

    def test_absent_file(self, tmp_path: Path) -> None:
        assert "cannot be read" in problems_of(file=tmp_path / "none.yaml")

    def test_section_must_be_a_mapping(self) -> None:
        assert "expected a mapping" in problems_of(overrides={"cache": 3})


class TestContradictions:
    @pytest.mark.parametrize(
        ("overrides", "fields", "works"),
        [
            (
                {"max_tokens_per_step": 10, "max_running": 20},
                ("scheduler.max_tokens_per_step", "scheduler.max_running"),
                "at most 10",
            ),
            (
                {"keep_tokens": 140},
                ("prefill.keep_tokens", "prefill.truncation"),
                "mask or compact",
            ),
            (
                {
                    "max_tokens_per_step": 100,
                    "max_running": 2,
                    "max_model_len": 101,
                    "chunked_prefill": False,
                },
                ("scheduler.max_tokens_per_step", "model.max_model_len"),
                "at least 101",
            ),
            (
                {"storage": "compute", "global_format": "fp4"},
                ("cache.global_format", "cache.storage"),
                "packed",
            ),
            (
                {"num_blocks": 10, "memory_fraction": 0.5},
                ("cache.num_blocks", "cache.memory_fraction"),
                "leave one",
            ),
            (
                {"num_draft_tokens": 3},
                ("speculation.num_draft_tokens", "speculation.drafter"),
                "dspark or ngram",
            ),
            (
                {"drafter": "dspark", "verification": "ratio", "deterministic": True},
                ("speculation.verification", "deterministic"),
                "coupled or greedy",
            ),
            (
                {"drafter": "ngram", "overlap": True},
                ("speculation.drafter", "scheduler.overlap"),
                "false",
            ),
            (
                {
                    "drafter": "ngram",
                    "num_draft_tokens": 3,
                    "max_running": 10,
                    "max_tokens_per_step": 39,
                },
                ("scheduler.max_tokens_per_step", "scheduler.max_running"),
                "at least 40",
            ),
        ],
    )
    def test_both_fields_and_a_way_out_are_named(
        self, overrides: dict[str, Any], fields: tuple[str, str], works: str
    ) -> None:
        text = problems_of(overrides=overrides)
        assert all(f"`{field}`" in text for field in fields)
        assert works in text


class TestWithModel:
    def test_defaults_are_filled_from_the_model(self, model: ModelConfig) -> None:
        config = load().with_model(model)
        assert config.model.max_model_len == 4096
        assert config.cache.global_format == "fp4"
        assert config.scheduler.max_tokens_per_step == 4096
        assert config.origins()["model.max_model_len"] == "model"

    def test_drafts_are_filled_from_the_model(self, model: ModelConfig) -> None:
        assert load().with_model(model).speculation.num_draft_tokens == 0
        drafted = load(overrides={"drafter": "dspark"}).with_model(model)
        assert drafted.speculation.num_draft_tokens == model.dspark_block_size
        assert drafted.speculation.verification == "ratio"
        overrides = {"drafter": "ngram", "deterministic": True, "max_running": 1000}
        looked_up = load(overrides=overrides).with_model(model)
        assert looked_up.speculation.num_draft_tokens == 5
        assert looked_up.speculation.verification == "coupled"
        assert looked_up.scheduler.max_tokens_per_step == 6000

    def test_more_drafts_than_the_trained_block(self, model: ModelConfig) -> None:
        most = model.dspark_block_size
        overrides = {"drafter": "dspark", "num_draft_tokens": most + 1}
        with pytest.raises(ConfigError, match=f"at most {most}"):
            load(overrides=overrides).with_model(model)

    def test_a_drafter_that_the_model_does_not_have(self, model: ModelConfig) -> None:
        bare = dataclasses.replace(model, num_nextn_predict_layers=0)
        with pytest.raises(ConfigError, match="num_nextn_predict_layers"):
            load(overrides={"drafter": "dspark"}).with_model(bare)

    def test_given_values_stay_with_their_origin(self, model: ModelConfig) -> None:
        config = load(overrides={"global_format": "mxfp8"}).with_model(model)
        assert config.cache.global_format == "mxfp8"
        assert config.origins()["cache.global_format"] == "flag"

    def test_the_original_is_unchanged(self, model: ModelConfig) -> None:
        config = load()
        config.with_model(model)
        assert config.model.max_model_len is None
        assert config.origins()["model.max_model_len"] == "default"

    def test_length_beyond_the_model(self, model: ModelConfig) -> None:
        with pytest.raises(ConfigError, match="of at most 8192"):
            load(overrides={"max_model_len": 8193}).with_model(model)

    def test_pool_too_small_for_one_request(self, model: ModelConfig) -> None:
        with pytest.raises(ConfigError, match=r"at least 9, or .* of at most 128"):
            load(overrides={"max_model_len": 1024, "num_blocks": 2}).with_model(model)
        load(overrides={"max_model_len": 1024, "num_blocks": 9}).with_model(model)

    def test_kept_tokens_hold_the_window_and_what_is_taken_back(self, model: ModelConfig) -> None:
        least = model.sliding_window + 1
        config = load(overrides={"truncation": "compact"}).with_model(model)
        assert config.prefill.keep_tokens == least
        with pytest.raises(ConfigError, match=f"`sliding_window`.* at least {least}"):
            load(overrides={"truncation": "mask", "keep_tokens": least - 1}).with_model(model)
        assert load().with_model(model).prefill.keep_tokens is None

    def test_truncation_needs_a_decoder_half_without_engram(self, model: ModelConfig) -> None:
        config = load(overrides={"truncation": "mask"})
        late = dataclasses.replace(model, engram_layer_ids=(1, 7))
        with pytest.raises(
            ConfigError, match=r"`engram_layer_ids`: \[7\].*`prefill.truncation`: off"
        ):
            config.with_model(late)
        with pytest.raises(ConfigError, match="no last KV source"):
            config.with_model(dataclasses.replace(model, kv_source_layer_ids=()))


class TestDeepInferNames:
    def test_targets_exist(self) -> None:
        for table in (DEEPINFER_ARGUMENTS, DEEPINFER_VARIABLES):
            for name, counterpart in table.items():
                assert counterpart.field in {None, *EngineConfig.fields()}, name
                assert counterpart.field or counterpart.note, name

    def test_all_variables_are_listed(self) -> None:
        # 59 in DeepInfer's own list, and the one that its example scripts read.
        assert len(DEEPINFER_VARIABLES) == 60
