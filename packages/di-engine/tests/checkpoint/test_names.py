"""The tensor list of the release: counts, bytes, parameters, group by group."""

from __future__ import annotations

from collections import Counter

import pytest

from di_engine.checkpoint import ALL_PARTS, expected_tensors
from di_engine.checkpoint.names import part_of_name, plain_name
from di_engine.config import ModelConfig, release_config


@pytest.fixture(scope="module")
def release() -> ModelConfig:
    return ModelConfig.from_dict(release_config())


def test_release_counts_by_group(
    release: ModelConfig, release_groups: dict[str, tuple[int, int, int]]
) -> None:
    tensors: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    for spec in expected_tensors(release).values():
        tensors[spec.group] += 1
        sizes[spec.group] += spec.num_bytes
        parameters[spec.group] += spec.num_parameters
    found = {group: (tensors[group], sizes[group], parameters[group]) for group in tensors}
    assert found == release_groups
    assert tensors.total() == 96_085
    assert sizes.total() == 510_286_023_000
    assert parameters.total() == 763_205_315_794


def test_release_tensors_of_a_layer(release: ModelConfig) -> None:
    layers = Counter(name.split(".")[1] for name in expected_tensors(release) if "layers." in name)
    expected = {"0": 2334, "1": 2340, "2": 2342, "8": 2342, "14": 2348, "20": 2341}
    expected |= dict.fromkeys(("24", "28", "32", "36"), 2337)
    assert layers == {str(layer): expected.get(str(layer), 2334) for layer in range(40)}


def test_release_shapes(release: ModelConfig) -> None:
    specs = expected_tensors(release)
    expected = {
        "layers.3.attn.wo_a.weight": ((8192, 4096), "F8_E4M3"),
        "layers.3.attn.wo_a.scale": ((256, 128), "F8_E8M0"),
        "layers.3.ffn.experts.383.w2.weight": ((5120, 1152), "I8"),
        "layers.3.ffn.experts.383.w2.scale": ((5120, 72), "F8_E8M0"),
        "layers.3.hc_ffn_fn": ((24, 20480), "F32"),
        "layers.14.engram.wkv.weight": ((25600, 6144), "F8_E4M3"),
        "layers.14.engram.embed.scale": ((384016682, 8), "F8_E8M0"),
        "mtp.0.main_proj.weight": ((5120, 15360), "F8_E4M3"),
        "mtp.2.confidence_head.proj.weight": ((1, 5376), "BF16"),
        "vision.blocks.31.mlp.w1.weight": ((5632, 1024), "BF16"),
    }
    for name, (shape, dtype) in expected.items():
        assert (specs[name].shape, specs[name].dtypes) == (shape, (dtype,)), name
    assert "layers.20.attn.compressor.wgate.weight" not in specs
    assert "layers.24.attn.indexer.wk.weight" not in specs


def test_parts_are_disjoint_and_follow_from_the_name(release: ModelConfig) -> None:
    everything = expected_tensors(release, ALL_PARTS)
    by_part = {part: set(expected_tensors(release, (part,))) for part in ALL_PARTS}
    assert sum(len(names) for names in by_part.values()) == len(everything)
    for part, names in by_part.items():
        assert {part_of_name(name) for name in names} == {part}


def test_without_quantisation_there_are_no_scales(release: ModelConfig) -> None:
    values = release_config()
    del values["quantization_config"]
    specs = expected_tensors(ModelConfig.from_dict(values), ("text",))
    assert not any(name.endswith(".scale") for name in specs)
    expert = specs["layers.0.ffn.experts.0.w1.weight"]
    assert (expert.shape, expert.dtypes) == ((2304, 5120), ("BF16", "F32"))
    assert specs["layers.0.hc_attn_fn"].dtypes == ("F32",)
    quantised = expected_tensors(release, ("text",))
    assert sum(s.num_parameters for s in specs.values()) == sum(
        s.num_parameters for s in quantised.values()
    )


def test_prefix_is_optional() -> None:
    assert plain_name("model.layers.0.hc_attn_fn") == plain_name("layers.0.hc_attn_fn")
    assert plain_name("modelx.norm") == "modelx.norm"
