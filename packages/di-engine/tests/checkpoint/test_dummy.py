"""Synthetic weights: right formats, repeatable, sensible values."""

from __future__ import annotations

import hashlib

import pytest
import torch

from di_engine.checkpoint import ALL_PARTS, dummy_source, expected_tensors
from di_engine.checkpoint.source import TORCH_DTYPES
from di_engine.config import ModelConfig, release_config
from di_engine.errors import CapacityError, CheckpointError


def test_names_shapes_and_formats(config: ModelConfig) -> None:
    specs = expected_tensors(config, ALL_PARTS)
    source = dummy_source(config, parts=ALL_PARTS)
    assert list(source.names()) == list(specs)
    for name, spec in specs.items():
        tensor = source.get(name)
        assert tuple(tensor.shape) == spec.shape, name
        assert tensor.dtype == TORCH_DTYPES[spec.dtypes[0]], name


def test_bits_are_fixed_for_ever(config: ModelConfig) -> None:
    digest = hashlib.sha256()
    source = dummy_source(config)
    for name in ("embed.weight", "layers.0.attn.wq_a.weight", "layers.0.attn.wq_a.scale"):
        digest.update(source.get(name).reshape(-1).view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest()[:16] == "7d5858cd690baf08"


def test_a_tensor_depends_on_seed_and_name_alone(config: ModelConfig) -> None:
    name = "layers.1.ffn.experts.3.w2.weight"
    first = dummy_source(config, seed=5).get(name)
    again = dummy_source(config, seed=5, parts=ALL_PARTS)
    again.get("embed.weight")
    assert torch.equal(again.get(name), first)
    assert not torch.equal(dummy_source(config, seed=6).get(name), first)
    assert not torch.equal(again.get(name.replace("3", "2")), first)


def test_linears_keep_unit_variance(config: ModelConfig) -> None:
    source = dummy_source(config)
    weight = source.get("layers.0.attn.wo_b.weight").float()
    scale = source.get("layers.0.attn.wo_b.scale").float()
    full = weight * scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
    gain = full.std() * full.shape[1] ** 0.5
    assert 0.85 < gain < 1.15
    assert scale.unique().numel() == 2


def test_values_are_finite_and_norms_near_one(config: ModelConfig) -> None:
    source = dummy_source(config)
    for name in source.names():
        values = source.get(name).float()
        assert values.isfinite().all(), name
    assert abs(source.get("norm.weight").float().mean() - 1) < 0.1


def test_one_tensor_of_the_release_without_the_others() -> None:
    source = dummy_source(ModelConfig.from_dict(release_config()))
    assert source.get("layers.39.ffn.experts.383.w1.weight").shape == (2304, 2560)


def test_unknown_name(config: ModelConfig) -> None:
    with pytest.raises(CheckpointError, match="no tensor `x`"):
        dummy_source(config).get("x")


def test_release_does_not_fit_into_a_laptop() -> None:
    config = ModelConfig.from_dict(release_config())
    with pytest.raises(CapacityError, match=r"466\.95 GiB on `cpu`.*available: 16\.00 GiB"):
        dummy_source(config, available_bytes=16 << 30)
