"""Reading of safetensors headers with plain file reads.

A safetensors file is an 8-byte little-endian header length, a JSON header, and the tensor bytes.
The reference library maps the whole file, which fails with ENOMEM for a 101 GB shard on a machine
with less memory; a header needs a few hundred kilobytes, so it is read as such. The checks are
those of the format document (offsets in range, byte counts that follow from shape and dtype, no
overlap, no hole, nothing after the last tensor), because a header is input from outside.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from di_engine.checkpoint.names import DTYPE_BITS
from di_engine.errors import CheckpointError

__all__ = ["StoredTensor", "read_header"]

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # limit of the format document
_METADATA_KEY = "__metadata__"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in one file.

    Attributes:
        name: Name as stored.
        dtype: Safetensors dtype name.
        shape: Stored shape.
        path: File that holds it.
        offset: First byte, counted from the start of the file.
        num_bytes: Payload bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    num_bytes: int


def read_header(path: Path) -> list[StoredTensor]:
    """Returns the tensors of one safetensors file, in file order.

    Raises:
        CheckpointError: The file is absent, truncated, longer than its header says, or its header
            is damaged; all problems of the header are listed.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            header = _read_json(file.read(_LENGTH_BYTES), file, path, size)
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error.strerror or error}") from None
    length, entries = header
    data_start = _LENGTH_BYTES + length
    problems: list[str] = []
    tensors = []
    for name, entry in entries.items():
        if name == _METADATA_KEY:
            continue
        problem = _check_entry(entry)
        if problem:
            problems.append(f"`{name}`: {problem}")
            continue
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        tensors.append(
            StoredTensor(name, entry["dtype"], shape, path, data_start + begin, end - begin)
        )
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    problems = problems or list(_check_layout(tensors, data_start, size))
    if problems:
        raise CheckpointError(f"`{path}`: damaged header:\n  " + "\n  ".join(problems))
    return tensors


def _read_json(prefix: bytes, file: Any, path: Path, size: int) -> tuple[int, dict[str, Any]]:
    """Returns the header length and the parsed header."""
    if len(prefix) < _LENGTH_BYTES:
        raise CheckpointError(
            f"`{path}`: truncated: {size} bytes, a safetensors file starts with an 8-byte length"
        )
    (length,) = struct.unpack("<Q", prefix)
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(
            f"`{path}`: header length {length}, the format allows up to {_MAX_HEADER_BYTES} bytes; "
            "this is not a safetensors file"
        )
    if _LENGTH_BYTES + length > size:
        raise CheckpointError(
            f"`{path}`: truncated: {size} bytes, the header alone needs {_LENGTH_BYTES + length}; "
            "fetch the file again"
        )
    try:
        header = json.loads(file.read(length), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}`: the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"`{path}`: the header is not a JSON object")
    return length, header


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = sorted(key for key, count in counts.items() if count > 1)
        raise ValueError(f"names given twice: {', '.join(repeated)}")
    return values


def _check_entry(entry: object) -> str | None:
    """Returns what is wrong with one header entry, or None."""
    if not isinstance(entry, dict):
        return "the entry is not an object"
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return f"dtype {dtype!r}, known: {', '.join(DTYPE_BITS)}"
    if not _are_counts(shape):
        return f"shape {shape!r}, expected a list of non-negative integers"
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"data_offsets {offsets!r}, expected [begin, end]"
    needed = prod(shape) * DTYPE_BITS[dtype] // 8
    if offsets[1] - offsets[0] != needed:
        return f"{offsets[1] - offsets[0]} bytes, shape {shape} of {dtype} needs {needed}"
    return None


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _check_layout(tensors: list[StoredTensor], data_start: int, size: int) -> Iterable[str]:
    """Yields holes and overlaps between tensors, and a file size that does not fit."""
    position = data_start
    for tensor in tensors:
        if tensor.offset != position:
            kind = "overlaps the tensor before it" if tensor.offset < position else "leaves a hole"
            yield f"`{tensor.name}`: starts at byte {tensor.offset}, expected {position}: {kind}"
        position = max(position, tensor.offset + tensor.num_bytes)
    if position > size:
        yield f"truncated: {size} bytes, the tensors end at {position}; fetch the file again"
    elif position < size:
        yield f"{size} bytes, the tensors end at {position}: {size - position} bytes belong to none"
