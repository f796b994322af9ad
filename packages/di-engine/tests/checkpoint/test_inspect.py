"""`inspect_checkpoint`: sizes of the release from headers alone, problems without an exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from di_engine.checkpoint import inspect_checkpoint
from di_engine.config import release_config
from di_engine.errors import CheckpointError

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The header-only copy of the release, 510 GB of sparse files."""
    tool = pytest.importorskip("make_fake_checkpoint", reason="a tool of the repository")
    directory = tmp_path_factory.mktemp("fake")
    tool.write_fake(release_config(), directory, 48)
    return directory


@pytest.mark.slow
def test_the_whole_release(fake: Path, release_groups: dict[str, tuple[int, int, int]]) -> None:
    inspection = inspect_checkpoint(fake)
    assert inspection.problems == []
    assert inspection.num_tensors == 96_085
    assert inspection.payload_bytes == inspection.declared_bytes == 510_286_023_000
    assert inspection.num_parameters == 763_205_315_794
    assert inspection.num_files == 48
    groups = {
        name: (group.tensors, group.bytes, group.parameters)
        for name, group in inspection.groups.items()
    }
    assert groups == release_groups
    assert inspection.cache["fp4"]["bytes_per_block"] == 114_048
    assert inspection.memory["stored"]["engram_bytes"] == 202_758_032_400
    assert inspection.devices["cpu:0"]["weights_fit_as"] in {"nothing", "stored"}


@pytest.mark.slow
def test_problems_of_a_fake_shard(fake: Path, tmp_path: Path) -> None:
    for file in fake.iterdir():
        (tmp_path / file.name).symlink_to(file)
    broken = tmp_path / "model-00007-of-00048.safetensors"
    broken.unlink()
    broken.write_bytes((fake / broken.name).open("rb").read(1000))
    inspection = inspect_checkpoint(tmp_path)
    assert any("model-00007" in line and "truncated" in line for line in inspection.problems)
    assert any(line.startswith("missing: ") for line in inspection.problems)


def test_result_is_plain_json(tmp_path: Path) -> None:
    values = json.loads(json.dumps(inspect_checkpoint("tiny").to_dict()))
    assert values["problems"] == []
    assert values["architecture"]["engram_layer_ids"] == [1, 4]
    assert values["architecture"]["layers_by_compress_ratio"] == {"0": 2, "1": 4, "2": 4}
    assert set(values["parts"]) == {"text", "drafter"}


def test_absent_part_is_a_note_and_a_partial_one_a_problem(
    write: Write, tensors: dict[str, torch.Tensor]
) -> None:
    text_only = {name: t for name, t in tensors.items() if not name.startswith("mtp.")}
    inspection = inspect_checkpoint(write(text_only))
    assert inspection.problems == []
    assert inspection.notes == ["no drafter tensors; the text model runs without them"]
    some = {**text_only, "mtp.0.attn_norm.weight": tensors["mtp.0.attn_norm.weight"]}
    problems = inspect_checkpoint(write(some)).problems
    assert any(line.startswith("missing: `mtp.1.") for line in problems)


def test_bad_configuration_and_bad_shards_are_both_seen(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "x.safetensors").write_bytes(b"no")
    problems = inspect_checkpoint(tmp_path).problems
    assert any("model_type" in line for line in problems)
    assert any("truncated" in line for line in problems)


def test_absent_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a directory"):
        inspect_checkpoint(tmp_path / "none")
