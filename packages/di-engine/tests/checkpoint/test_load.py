"""Opening of checkpoints: everything readable is read exactly, everything wrong is listed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from di_engine import tiny
from di_engine.checkpoint import (
    ALL_PARTS,
    check_memory,
    dummy_source,
    expected_tensors,
    open_checkpoint,
    weight_memory,
)
from di_engine.config import ModelConfig, release_config
from di_engine.errors import CapacityError, CheckpointError

Tensors = dict[str, torch.Tensor]
Write = Callable[..., Path]

ROUTER = "layers.3.ffn.gate.weight"


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(
        left.contiguous().reshape(-1).view(torch.uint8),
        right.contiguous().reshape(-1).view(torch.uint8),
    )


def problems_of(directory: Path, config: ModelConfig) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(directory, config)
    return str(caught.value)


class TestReading:
    def test_every_tensor_equals_the_library_s(self, tmp_path: Path) -> None:
        config = ModelConfig.from_directory(tiny.directory())
        reference = safetensors.torch.load_file(tiny.directory() / "model.safetensors")
        with open_checkpoint(tiny.directory(), config, parts=ALL_PARTS) as source:
            assert set(source.names()) == set(reference)
            for name in source.names():
                assert same_bits(source.get(name), reference[name]), name

    def test_text_model_leaves_other_parts_alone(
        self, config: ModelConfig, tensors: Tensors, write: Write, caplog: pytest.LogCaptureFixture
    ) -> None:
        tensors["vision.norm.weight"] = torch.zeros(3)
        tensors["aligner.w9.weight"] = torch.zeros(3)
        tensors["image_start"] = torch.zeros(3)
        tensors["mtp.0.something"] = torch.zeros(3)
        with (
            caplog.at_level(logging.INFO, "di_engine.checkpoint"),
            open_checkpoint(write(tensors), config) as source,
        ):
            assert set(source.names()) == set(expected_tensors(config, ("text",)))
        drafter = len(expected_tensors(config, ("drafter",)))
        assert f"{drafter + 4} tensors" in caplog.text

    def test_prefix_and_shards_with_index(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        names = list(tensors)
        first = {f"model.{name}": tensors[name] for name in names[::2]}
        second = {f"model.{name}": tensors[name] for name in names[1::2]}
        with open_checkpoint(write(first, second), config) as source:
            assert same_bits(source.get(ROUTER), tensors[ROUTER])

    def test_shards_without_index(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        names = list(tensors)
        directory = write(
            {name: tensors[name] for name in names[::2]},
            {name: tensors[name] for name in names[1::2]},
        )
        (directory / "model.safetensors.index.json").unlink()
        with open_checkpoint(directory, config) as source:
            assert same_bits(source.get(names[1]), tensors[names[1]])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_unquantised_checkpoint(self, write: Write, dtype: torch.dtype) -> None:
        values = json.loads((tiny.directory() / "config.json").read_text())
        del values["quantization_config"]
        values["text_config"].update(n_routed_experts=4)
        config = ModelConfig.from_dict(values)
        made = dummy_source(config)
        specs = expected_tensors(config, ("text",))
        tensors = {
            name: made.get(name).to(dtype) if "BF16" in specs[name].dtypes else made.get(name)
            for name in made.names()
        }
        with open_checkpoint(write(tensors), config) as source:
            assert source.get("embed.weight").dtype == dtype
            assert source.get("layers.0.attn.attn_sink").dtype == torch.float32

    def test_progress_counts_bytes_up_to_the_total(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        calls: list[tuple[int, int, str]] = []
        total = sum(spec.num_bytes for spec in expected_tensors(config, ("text",)).values())
        with open_checkpoint(
            write(tensors), config, progress=lambda *call: calls.append(call)
        ) as source:
            assert calls == []
            for name in source.names():
                source.get(name)
        done = [call[0] for call in calls]
        assert done == sorted(done)
        assert calls[-1] == (total, total, "model-00000.safetensors")

    def test_unknown_name(self, config: ModelConfig, tensors: Tensors, write: Write) -> None:
        with (
            open_checkpoint(write(tensors), config) as source,
            pytest.raises(CheckpointError, match=r"no tensor `mtp\.0"),
        ):
            source.get("mtp.0.attn_norm.weight")

    def test_file_that_shrinks_while_open(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        directory = write(tensors)
        with open_checkpoint(directory, config) as source:
            path = directory / "model-00000.safetensors"
            path.write_bytes(path.read_bytes()[:100_000])
            with pytest.raises(CheckpointError, match="ended inside"):
                [source.get(name) for name in source.names()]


class TestProblems:
    def test_all_kinds_are_listed_in_one_error(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        del tensors["norm.weight"]
        del tensors["layers.3.ffn.experts.2.w1.scale"]
        tensors["layers.0.attn.q_scale"] = torch.zeros(2)
        tensors["hc_head_fn"] = torch.zeros(2)
        tensors[ROUTER] = tensors[ROUTER][:, :-1].contiguous()
        tensors["layers.1.hc_attn_fn"] = tensors["layers.1.hc_attn_fn"].bfloat16()
        tensors["embed.weight"] = tensors["embed.weight"].half()
        text = problems_of(write(tensors), config)
        for line in (
            "2 missing:",
            "`norm.weight` [160] BF16",
            "`layers.3.ffn.experts.2.w1.scale` [32, 5] F8_E8M0",
            "2 unexpected:",
            "`hc_head_fn` [2] F32 in `model-00000.safetensors`",
            "1 misshaped:",
            f"`{ROUTER}`: [4, 159], expected [4, 160]",
            "2 wrong dtype:",
            "`layers.1.hc_attn_fn`: BF16, expected F32",
            "`embed.weight`: F16, expected BF16",
        ):
            assert line in text

    def test_quantised_checkpoint_for_a_plain_configuration(
        self, tensors: Tensors, write: Write
    ) -> None:
        directory = write(tensors)
        values = json.loads((directory / "config.json").read_text())
        del values["quantization_config"]
        text = problems_of(directory, ModelConfig.from_dict(values))
        assert "wrong dtype" in text
        assert "unexpected" in text
        assert "F8_E4M3, expected BF16 or F32" in text

    def test_long_lists_say_how_much_they_omit(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        text = problems_of(write({"embed.weight": tensors["embed.weight"]}), config)
        missing = len(expected_tensors(config, ("text",))) - 1
        assert f"{missing} missing:" in text
        assert f"... and {missing - 50} more" in text

    def test_duplicates_across_shards_and_prefixes(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        again = {"model.norm.weight": tensors["norm.weight"]}
        directory = write(tensors, again)
        text = problems_of(directory, config)
        assert "`norm.weight`: stored twice: as `norm.weight` in `model-00000" in text
        assert "as `model.norm.weight` in `model-00001" in text

    def test_truncated_and_absent_shards_are_listed_together(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        names = list(tensors)
        thirds = [{name: tensors[name] for name in names[start::3]} for start in range(3)]
        directory = write(*thirds)
        cut = directory / "model-00001.safetensors"
        cut.write_bytes(cut.read_bytes()[:-10])
        (directory / "model-00002.safetensors").unlink()
        text = problems_of(directory, config)
        assert "model-00001.safetensors`: damaged header" in text
        assert "truncated" in text
        assert "model-00002.safetensors` cannot be read" in text

    def test_index_that_disagrees_with_the_shards(
        self, config: ModelConfig, tensors: Tensors, write: Write
    ) -> None:
        index = dict.fromkeys(tensors, "model-00000.safetensors")
        index["ghost"] = "model-00000.safetensors"
        del index["norm.weight"]
        text = problems_of(write(tensors, index=index), config)
        assert "`ghost`: `model.safetensors.index.json` places it in" in text
        assert "`norm.weight`: in `model-00000.safetensors`, absent from" in text

    @pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
    def test_index_must_not_leave_its_directory(
        self, config: ModelConfig, tensors: Tensors, write: Write, name: str
    ) -> None:
        directory = write(tensors, index={"norm.weight": name})
        assert "plain `*.safetensors` names" in problems_of(directory, config)

    @pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
    def test_damaged_index(
        self, config: ModelConfig, tensors: Tensors, write: Write, text: str
    ) -> None:
        directory = write(tensors)
        (directory / "model.safetensors.index.json").write_text(text)
        assert "model.safetensors.index.json" in problems_of(directory, config)

    def test_empty_directory_suggests_dummy_weights(
        self, config: ModelConfig, tmp_path: Path
    ) -> None:
        assert "load_format=dummy" in problems_of(tmp_path, config)

    def test_absent_directory(self, config: ModelConfig, tmp_path: Path) -> None:
        assert "not a directory" in problems_of(tmp_path / "none", config)


class TestMemory:
    def test_release_as_stored(self) -> None:
        need = weight_memory(ModelConfig.from_dict(release_config()), "stored", ALL_PARTS)
        assert need.total_bytes == 510_286_023_000
        assert need.engram_bytes == 202_758_032_400

    def test_widening_counts_parameters_not_scales(self, config: ModelConfig) -> None:
        specs = expected_tensors(config, ("text",))
        kept = specs.pop("embed.weight").num_bytes
        others = sum(s.num_parameters for s in specs.values() if s.group != "Engram tables")
        assert weight_memory(config, "float32").weights_bytes == 4 * others + kept
        assert weight_memory(config, "float64").weights_bytes == 8 * others + kept

    def test_refusal_has_the_numbers(self, config: ModelConfig) -> None:
        need = weight_memory(config)
        check_memory(need, need.total_bytes, "cpu")
        with pytest.raises(CapacityError, match=r"MiB on `cpu` .* available: 1\.00 MiB"):
            check_memory(need, 1 << 20, "cpu")

    def test_memory_is_checked_before_files_are_touched(
        self, config: ModelConfig, tmp_path: Path
    ) -> None:
        with pytest.raises(CapacityError):
            open_checkpoint(tmp_path / "none", config, available_bytes=1000)
