"""What a checkpoint directory holds, whether it is whole, and what it needs. Reads headers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from di_engine import tiny
from di_engine.checkpoint.header import StoredTensor
from di_engine.checkpoint.memory import Resident, format_bytes, memory_of
from di_engine.checkpoint.names import (
    ALL_PARTS,
    Part,
    TensorSpec,
    expected_tensors,
    part_of_name,
)
from di_engine.checkpoint.shards import ShardListing, list_shards
from di_engine.checkpoint.validate import compare_tensors
from di_engine.config import ModelConfig
from di_engine.errors import CheckpointError, ConfigError
from di_engine.platforms import platforms

__all__ = ["GroupSize", "Inspection", "inspect_checkpoint"]

_RESIDENTS: tuple[Resident, ...] = ("stored", "bfloat16", "float32", "float64")
_UNKNOWN_GROUP = "not in the architecture"


@dataclass(slots=True)
class GroupSize:
    """Sum over a group of tensors: how many, stored bytes, logical parameters."""

    tensors: int = 0
    bytes: int = 0
    parameters: int = 0

    def add(self, tensor: StoredTensor) -> None:
        """Counts one tensor; an FP4 byte is two parameters, a scale byte none."""
        self.tensors += 1
        self.bytes += tensor.num_bytes
        self.parameters += _parameters(tensor)


@dataclass(slots=True)
class Inspection:
    """Result of `inspect_checkpoint`.

    Attributes:
        path: The directory.
        num_tensors: Stored tensors, of every part.
        payload_bytes: Bytes of all tensors, without headers.
        declared_bytes: `metadata.total_size` of the index file, or None.
        num_parameters: Logical parameters.
        num_files: Shards.
        file_bytes: Bytes of the shard files, headers included.
        architecture: Sizes and mechanisms by name; empty when `config.json` is unusable.
        groups: Sizes by group of tensors.
        parts: Sizes by part of the model: text, drafter, vision.
        memory: Bytes of the text weights by format in memory: weights, Engram tables, total.
        cache: Bytes of the cache by record format: per block, per token, per request.
        devices: Memory of every device here, and the weight formats that fit.
        problems: What is wrong: configuration, shards, tensors. Empty for a good checkpoint.
        notes: What is absent without being wrong.
    """

    path: str
    num_tensors: int = 0
    payload_bytes: int = 0
    declared_bytes: int | None = None
    num_parameters: int = 0
    num_files: int = 0
    file_bytes: int = 0
    architecture: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, GroupSize] = field(default_factory=dict)
    parts: dict[str, GroupSize] = field(default_factory=dict)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    cache: dict[str, dict[str, float]] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that can be written as JSON."""
        return asdict(self)


def inspect_checkpoint(path: str | Path) -> Inspection:
    """Inspects a checkpoint directory, or `tiny`.

    A bad configuration or bad shards are listed in the result instead of being raised, so that
    everything is seen at once.

    Raises:
        CheckpointError: There is no such directory.
    """
    directory = tiny.directory() if str(path) == tiny.NAME else Path(path)
    if not directory.is_dir():
        raise CheckpointError(f"`{path}` is not a directory; give a checkpoint directory")
    inspection = Inspection(str(directory))
    config: ModelConfig | None = None
    try:
        config = ModelConfig.from_directory(directory)
    except ConfigError as error:
        inspection.problems.append(str(error))
    expected: dict[str, TensorSpec] = {}
    if config is not None:
        expected = expected_tensors(config)
        inspection.architecture = _architecture(config)
        inspection.memory = _memory(expected)
        inspection.cache = _cache(config)
        inspection.devices = _devices(inspection.memory)
        inspection.notes += [f"`{key}` of `config.json` is ignored" for key in config.unknown_keys]
    try:
        listing = list_shards(directory)
    except CheckpointError as error:
        inspection.problems.append(str(error))
        return inspection
    _count(inspection, listing, expected)
    inspection.problems += listing.problems
    if config is not None:
        _compare(inspection, listing, expected)
    return inspection


def _count(
    inspection: Inspection, listing: ShardListing, expected: Mapping[str, TensorSpec]
) -> None:
    total = GroupSize()
    inspection.groups = {spec.group: GroupSize() for spec in expected.values()}
    for name, tensor in listing.tensors.items():
        spec = expected.get(name)
        group = spec.group if spec else _UNKNOWN_GROUP
        total.add(tensor)
        inspection.groups.setdefault(group, GroupSize()).add(tensor)
        inspection.parts.setdefault(part_of_name(name), GroupSize()).add(tensor)
    inspection.groups = {name: size for name, size in inspection.groups.items() if size.tensors}
    inspection.num_tensors = total.tensors
    inspection.payload_bytes = total.bytes
    inspection.num_parameters = total.parameters
    inspection.num_files = len(listing.files)
    inspection.file_bytes = sum(file.stat().st_size for file in listing.files if file.is_file())
    inspection.declared_bytes = listing.declared_bytes
    if listing.declared_bytes not in (None, total.bytes):
        inspection.problems.append(
            f"the index file declares {listing.declared_bytes} bytes, the tensors have "
            f"{total.bytes}"
        )


def _parameters(tensor: StoredTensor) -> int:
    if tensor.dtype == "F8_E8M0":
        return 0
    return prod(tensor.shape) * (2 if tensor.dtype == "I8" else 1)


def _compare(
    inspection: Inspection, listing: ShardListing, expected: Mapping[str, TensorSpec]
) -> None:
    """Lists tensor problems; a part that is wholly absent is a note, since text runs without it."""
    present: list[Part] = ["text"]
    for part in ALL_PARTS[1:]:
        if part in inspection.parts:
            present.append(part)
        elif any(spec.part == part for spec in expected.values()):
            inspection.notes.append(f"no {part} tensors; the text model runs without them")
    compared = {name: spec for name, spec in expected.items() if spec.part in present}
    for kind, lines in compare_tensors(listing.tensors, compared, tuple(present)).items():
        inspection.problems += [f"{kind}: {line}" for line in lines]


def _architecture(config: ModelConfig) -> dict[str, Any]:
    layers = range(config.num_hidden_layers)
    names = (
        "num_hidden_layers hidden_size vocab_size max_position_embeddings num_attention_heads "
        "head_dim sliding_window n_routed_experts num_experts_per_tok moe_intermediate_size hc_mult"
    )
    return {
        "model_type": "deepseek_v41",
        "formats": "MXFP8 and MXFP4" if config.is_quantized else "BF16 and F32",
        **{name: getattr(config, name) for name in names.split()},
        "layers_by_compress_ratio": {
            str(ratio): sum(config.ratio(layer) == ratio for layer in layers)
            for ratio in sorted({config.ratio(layer) for layer in layers})
        },
        "kv_source_layer_ids": list(config.kv_source_layer_ids),
        "index_source_layer_ids": list(config.index_source_layer_ids),
        "candidate_source_layer_id": config.candidate_source_layer_id,
        "engram_layer_ids": list(config.engram_layer_ids),
        "engram_num_embeddings": list(config.engram_num_embeddings),
        "drafter_blocks": config.num_nextn_predict_layers,
        "vision_tower": config.vision is not None,
        "global_format": config.global_format,
    }


def _memory(expected: Mapping[str, TensorSpec]) -> dict[str, dict[str, int]]:
    text = [spec for spec in expected.values() if spec.part == "text"]
    needs = {resident: memory_of(text, resident) for resident in _RESIDENTS}
    return {
        resident: {
            "weights_bytes": need.weights_bytes,
            "engram_bytes": need.engram_bytes,
            "while_loading_bytes": need.transient_bytes,
            "total_bytes": need.total_bytes,
        }
        for resident, need in needs.items()
    }


def _cache(config: ModelConfig) -> dict[str, dict[str, float]]:
    # The model package imports this one; sizes of caches are needed only here.
    from di_engine.cache import CacheLayout
    from di_engine.model.numerics import GlobalFormat, Numerics

    formats: tuple[GlobalFormat, ...] = ("fp4", "mxfp8")
    sizes: dict[str, dict[str, float]] = {}
    for global_format in formats:
        layout = CacheLayout.from_config(config, Numerics(global_format=global_format))
        sizes[global_format] = {
            "bytes_per_block": layout.bytes_per_block,
            "bytes_per_token": layout.bytes_per_block / layout.block_tokens,
            "bytes_per_request": layout.bytes_per_state_slot,
        }
    return sizes


def _devices(memory: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    devices = {}
    for platform in platforms():
        for index in range(platform.device_count()):
            available = platform.available_memory(index)
            fitting = [name for name, need in memory.items() if need["total_bytes"] <= available]
            devices[f"{platform.name}:{index}"] = {
                "name": platform.device_name(index),
                "total_memory": format_bytes(platform.total_memory(index)),
                "available_memory": format_bytes(available),
                "weights_fit_as": ", ".join(fitting) or "nothing",
            }
    return devices
