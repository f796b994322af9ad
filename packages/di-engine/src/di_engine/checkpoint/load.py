"""Opening of a checkpoint directory: everything is checked before a weight is read."""

from __future__ import annotations

import logging
from pathlib import Path

from di_engine.checkpoint.memory import Resident, check_memory, format_bytes, weight_memory
from di_engine.checkpoint.names import Part, expected_tensors, part_of_name
from di_engine.checkpoint.shards import list_shards
from di_engine.checkpoint.source import ProgressCallback, ShardSource
from di_engine.checkpoint.validate import compare_tensors, format_problems
from di_engine.config import ModelConfig
from di_engine.errors import CheckpointError

__all__ = ["open_checkpoint"]

_log = logging.getLogger(__name__)


def open_checkpoint(
    directory: str | Path,
    config: ModelConfig,
    *,
    parts: tuple[Part, ...] = ("text",),
    resident: Resident = "stored",
    available_bytes: int | None = None,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
) -> ShardSource:
    """Checks a checkpoint against its configuration and returns its tensors.

    Headers alone are read here; `get` of the result reads the bytes. Tensors of parts that are not
    asked for (`mtp.*`, `vision.*`, `aligner.*`, `image_*` for the text model) are counted in the
    log and left alone.

    Args:
        directory: Checkpoint directory with safetensors shards, with or without an index file.
        config: Its configuration.
        parts: Parts of the model to read.
        resident: Format the weights will have in memory; see `weight_memory`.
        available_bytes: Free memory of the device; None skips the memory check.
        device: Name of the device for messages.
        progress: Called with bytes read, total bytes and the file name.

    Returns:
        A source of the tensors of `parts`. The caller closes it.

    Raises:
        CapacityError: The weights do not fit into `available_bytes`.
        CheckpointError: Listing every damaged shard and every duplicate, missing, unexpected,
            misshaped or wrongly typed tensor.
    """
    if available_bytes is not None:
        check_memory(weight_memory(config, resident, parts), available_bytes, device)
    listing = list_shards(Path(directory))
    expected = expected_tensors(config, parts)
    problems = compare_tensors(listing.tensors, expected, parts)
    if listing.problems or problems:
        raise CheckpointError(
            f"`{directory}` does not match its configuration:\n  "
            + format_problems(problems, listing.problems)
        )
    others = [t for name, t in listing.tensors.items() if part_of_name(name) not in parts]
    if others:
        size = format_bytes(sum(tensor.num_bytes for tensor in others))
        _log.info("%d tensors (%s) of parts that are not loaded", len(others), size)
    return ShardSource({name: listing.tensors[name] for name in expected}, progress)
