"""Reading of safetensors headers, and of damaged ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from di_engine.checkpoint.header import read_header
from di_engine.errors import CheckpointError

GOOD: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "BF16", "shape": [3, 1], "data_offsets": [8, 14]},
}


def file_of(tmp_path: Path, header: bytes | dict[str, Any], payload: int = 14) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "shard.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(payload))
    return path


def problem_of(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert path.name in str(caught.value)
    return str(caught.value)


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**GOOD, name: {**GOOD[name], **fields}}


def test_agrees_with_the_library(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        "one": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(3, dtype=torch.int64),
    }
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    stored = {tensor.name: tensor for tensor in read_header(path)}
    assert {name: t.shape for name, t in stored.items()} == {
        name: tuple(t.shape) for name, t in tensors.items()
    }
    data = path.read_bytes()
    one = stored["one"]
    assert data[one.offset : one.offset + one.num_bytes] == tensors["one"].numpy().tobytes()


def test_good_header_and_metadata(tmp_path: Path) -> None:
    stored = read_header(file_of(tmp_path, {"__metadata__": {"format": "pt"}, **GOOD}))
    assert [(t.name, t.dtype, t.shape, t.num_bytes) for t in stored] == [
        ("a", "F32", (2,), 8),
        ("b", "BF16", (3, 1), 6),
    ]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (changed("a", dtype="F99"), "dtype 'F99'"),
        (changed("a", dtype=None), "dtype None"),
        (changed("a", shape=[-2]), "shape [-2]"),
        (changed("a", shape=[True, 2]), "non-negative integers"),
        (changed("a", shape=3), "shape 3"),
        (changed("a", data_offsets=[8, 0]), "expected [begin, end]"),
        (changed("a", data_offsets=[0]), "expected [begin, end]"),
        (changed("a", data_offsets=[0, 7]), "7 bytes, shape [2] of F32 needs 8"),
        (changed("b", data_offsets=[7, 13]), "overlaps"),
        (changed("b", data_offsets=[9, 15]), "leaves a hole"),
        ({"a": 3}, "not an object"),
        (b"[]", "not a JSON object"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"a": {}, "a": {}}', "names given twice: a"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_damaged_header(tmp_path: Path, header: Any, expected: str) -> None:
    assert expected in problem_of(file_of(tmp_path, header))


def test_all_bad_entries_are_listed(tmp_path: Path) -> None:
    header = {**changed("a", dtype="F99"), "b": 3}
    text = problem_of(file_of(tmp_path, header))
    assert "`a`" in text
    assert "`b`" in text


@pytest.mark.parametrize(
    ("payload", "expected"),
    [(13, "truncated"), (0, "truncated"), (15, "1 bytes belong to none")],
)
def test_file_length(tmp_path: Path, payload: int, expected: str) -> None:
    assert expected in problem_of(file_of(tmp_path, GOOD, payload))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 40])
def test_file_cut_inside_the_header(tmp_path: Path, size: int) -> None:
    path = file_of(tmp_path, GOOD)
    path.write_bytes(path.read_bytes()[:size])
    assert "truncated" in problem_of(path)


def test_absurd_header_length_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    assert "not a safetensors file" in problem_of(path)


def test_absent_file(tmp_path: Path) -> None:
    assert "cannot be read" in problem_of(tmp_path / "none.safetensors")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 150), value=st.integers(0, 255))
def test_any_changed_byte_gives_a_header_or_a_checkpoint_error(
    tmp_path: Path, position: int, value: int
) -> None:
    path = file_of(tmp_path, GOOD)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    path.write_bytes(bytes(data))
    try:
        stored = read_header(path)
    except CheckpointError:
        return
    assert all(t.offset + t.num_bytes <= len(data) for t in stored)
