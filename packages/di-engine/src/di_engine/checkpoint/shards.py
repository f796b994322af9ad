"""Which safetensors files a checkpoint consists of, and every tensor in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from di_engine.checkpoint.header import StoredTensor, read_header
from di_engine.checkpoint.names import plain_name
from di_engine.errors import CheckpointError

__all__ = ["INDEX_FILE", "ShardListing", "list_shards"]

INDEX_FILE = "model.safetensors.index.json"
_PATTERN = "*.safetensors"


@dataclass(frozen=True, slots=True)
class ShardListing:
    """The tensors of a checkpoint directory.

    Attributes:
        tensors: Every tensor by plain name; the first one where a name occurs twice.
        files: The shards, sorted by name.
        problems: Unreadable shards, duplicates, and disagreement with the index file.
        declared_bytes: `metadata.total_size` of the index file, or None.
    """

    tensors: dict[str, StoredTensor]
    files: tuple[Path, ...]
    problems: tuple[str, ...]
    declared_bytes: int | None

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def list_shards(directory: Path) -> ShardListing:
    """Reads the header of every shard of a checkpoint directory.

    With an index file, the shards are those it names; without one, every `*.safetensors` file.

    Raises:
        CheckpointError: The directory holds no shard, or the index file is unusable. Problems of
            single shards are listed in the result instead, so that all are seen at once.
    """
    index_path = directory / INDEX_FILE
    if not directory.is_dir():
        raise CheckpointError(f"`{directory}` is not a directory; give a checkpoint directory")
    weight_map, declared = _read_index(index_path) if index_path.is_file() else (None, None)
    if weight_map is None:
        files = sorted(directory.glob(_PATTERN))
    else:
        files = [directory / name for name in sorted(set(weight_map.values()))]
    if not files:
        raise CheckpointError(
            f"`{directory}` holds no `{_PATTERN}` file; use `load_format=dummy` to run without "
            "weights"
        )
    problems: list[str] = []
    tensors: dict[str, StoredTensor] = {}
    unreadable: set[str] = set()
    for file in files:
        try:
            stored = read_header(file)
        except CheckpointError as error:
            problems.append(str(error))
            unreadable.add(file.name)
            continue
        for tensor in stored:
            _add(tensor, tensors, problems)
    if weight_map is not None:
        problems += _compare_with_index(weight_map, tensors, unreadable)
    return ShardListing(tensors, tuple(files), tuple(problems), declared)


def _add(tensor: StoredTensor, tensors: dict[str, StoredTensor], problems: list[str]) -> None:
    name = plain_name(tensor.name)
    first = tensors.setdefault(name, tensor)
    if first is not tensor:
        problems.append(
            f"`{name}`: stored twice: as `{first.name}` in `{first.path.name}` and as "
            f"`{tensor.name}` in `{tensor.path.name}`"
        )


def _read_index(path: Path) -> tuple[dict[str, str], int | None]:
    """Returns the tensor-to-file map and the declared byte count of an index file."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        weight_map = index["weight_map"]
        declared = index.get("metadata", {}).get("total_size")
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"`{path}` is not an index of safetensors shards (an object with `weight_map`): "
            f"{type(error).__name__}: {error}"
        ) from None
    names_files = isinstance(weight_map, dict) and all(
        isinstance(file, str) for file in weight_map.values()
    )
    if not names_files or not weight_map:
        raise CheckpointError(f"`{path}`: `weight_map` does not map tensor names to file names")
    outside = sorted(file for file in set(weight_map.values()) if not _is_plain_file_name(file))
    if outside:
        raise CheckpointError(
            f"`{path}`: shard names {outside}, expected plain `{_PATTERN}` names in the same "
            "directory"
        )
    if not isinstance(declared, int):
        declared = None
    return weight_map, declared


def _is_plain_file_name(name: str) -> bool:
    # A name with a separator would let an index read files outside its directory.
    path = PurePosixPath(name)
    return name == path.name and "\\" not in name and path.match(_PATTERN)


def _compare_with_index(
    weight_map: dict[str, str], tensors: dict[str, StoredTensor], unreadable: set[str]
) -> list[str]:
    problems = []
    for name, file in weight_map.items():
        stored = tensors.get(plain_name(name))
        if stored is None:
            if file not in unreadable:
                problems.append(f"`{name}`: `{INDEX_FILE}` places it in `{file}`, which lacks it")
        elif stored.path.name != file:
            problems.append(
                f"`{name}`: `{INDEX_FILE}` places it in `{file}`, it is in `{stored.path.name}`"
            )
    listed = {plain_name(name) for name in weight_map}
    problems += [
        f"`{name}`: in `{tensor.path.name}`, absent from `{INDEX_FILE}`"
        for name, tensor in tensors.items()
        if name not in listed
    ]
    return problems
