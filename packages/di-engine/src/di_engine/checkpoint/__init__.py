"""Checkpoints: tensor names, shard reading, checks, synthetic weights, download, inspection."""

from di_engine.checkpoint.dummy import DummySource, dummy_source
from di_engine.checkpoint.hub import resolve_model
from di_engine.checkpoint.inspect import GroupSize, Inspection, inspect_checkpoint
from di_engine.checkpoint.load import open_checkpoint
from di_engine.checkpoint.memory import MemoryNeed, Resident, check_memory, weight_memory
from di_engine.checkpoint.names import ALL_PARTS, Part, TensorSpec, expected_tensors
from di_engine.checkpoint.source import ProgressCallback, ShardSource, TensorSource

__all__ = [
    "ALL_PARTS",
    "DummySource",
    "GroupSize",
    "Inspection",
    "MemoryNeed",
    "Part",
    "ProgressCallback",
    "Resident",
    "ShardSource",
    "TensorSource",
    "TensorSpec",
    "check_memory",
    "dummy_source",
    "expected_tensors",
    "inspect_checkpoint",
    "open_checkpoint",
    "resolve_model",
    "weight_memory",
]
