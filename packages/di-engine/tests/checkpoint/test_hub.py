"""Models by directory, built-in name, and pinned hub id, against a hub on 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from di_engine import tiny
from di_engine.checkpoint import hub as hub_module
from di_engine.checkpoint import open_checkpoint, resolve_model
from di_engine.config import ModelConfig
from di_engine.errors import CapacityError, CheckpointError, ConfigError

SHARD = "model.safetensors"
REPOSITORY = "someone/tiny-v41"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def transfers(hub: Any) -> list[str]:
    return [line for line in hub.requests if line.startswith("GET") and "/resolve/" in line]


class TestDirectories:
    def test_directory_and_built_in_name(self, tmp_path: Path) -> None:
        assert resolve_model(str(tmp_path)) == tmp_path
        assert resolve_model("tiny") == tiny.directory()

    def test_revision_of_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"model\.revision.*model\.path.*is a directory"):
            resolve_model(str(tmp_path), REVISION)

    @pytest.mark.parametrize("model", ["no-such-directory", "/a/b/c", "a/b/c", "", "a/../b"])
    def test_neither_directory_nor_hub_id(self, model: str) -> None:
        with pytest.raises(ConfigError, match=r"`model\.path`: .*: no such directory"):
            resolve_model(model, REVISION)

    @pytest.mark.parametrize("revision", [None, "main", "v1.0", "0123abc", REVISION.upper()])
    def test_unpinned_revision(self, revision: str | None) -> None:
        with pytest.raises(ConfigError, match="40 hexadecimal digits"):
            resolve_model(REPOSITORY, revision)


class TestDownload:
    def test_needed_files_arrive_and_load(self, hub: Any, tmp_path: Path) -> None:
        calls: list[tuple[int, int, str]] = []
        directory = resolve_model(
            REPOSITORY,
            REVISION,
            cache_dir=tmp_path,
            endpoint=hub.url,
            progress=lambda *call: calls.append(call),
        )
        names = sorted(file.name for file in directory.iterdir())
        assert names == ["config.json", SHARD, "tokenizer.json"]
        with open_checkpoint(directory, ModelConfig.from_directory(directory)) as source:
            assert source.get("norm.weight").shape == (160,)
        total = sum(len(hub.files[name]) for name in names)
        assert calls[-1] == (total, total, SHARD)

    def test_complete_copy_needs_no_hub(self, hub: Any, tmp_path: Path) -> None:
        first = resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url)
        hub.requests.clear()
        assert resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url) == first
        assert hub.requests == []

    def test_broken_transfer_continues_on_the_next_run(
        self, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 18)
        hub.cut_after[SHARD] = 3_000_000
        with pytest.raises(CheckpointError, match=r"(?s)model\.safetensors.*run again"):
            resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url)
        hub.is_down = False
        hub.requests.clear()
        calls: list[tuple[int, int, str]] = []
        directory = resolve_model(
            REPOSITORY,
            REVISION,
            cache_dir=tmp_path,
            endpoint=hub.url,
            progress=lambda *call: calls.append(call),
        )
        (only,) = transfers(hub)
        begun = int(only.rsplit("bytes=", 1)[1].rstrip("-"))
        assert 2_000_000 < begun <= 3_000_000
        assert calls[0][0] >= begun
        assert (directory / SHARD).read_bytes() == hub.files[SHARD]

    def test_unknown_repository(self, hub: Any, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"other/name.*cannot be listed"):
            resolve_model("other/name", REVISION, cache_dir=tmp_path, endpoint=hub.url)

    @pytest.mark.slow  # the library tries several times
    def test_unreachable_hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # The library tries again after pauses that grow; what is tested is how it ends.
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        with pytest.raises(CheckpointError, match="check the id, the revision and the connection"):
            resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint="http://127.0.0.1:9")

    def test_repository_without_weights(self, hub: Any, tmp_path: Path) -> None:
        del hub.files[SHARD]
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url)


class TestLimits:
    def test_disk_is_checked_before_anything_is_fetched(
        self, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = shutil.disk_usage(tmp_path)._replace(free=100_000_000)
        monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(CapacityError, match=r"MiB of disk .* free: 95\.37 MiB"):
            resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url)
        assert transfers(hub) == []

    def test_memory_is_checked_before_the_first_shard(self, hub: Any, tmp_path: Path) -> None:
        with pytest.raises(CapacityError, match="the weights need"):
            resolve_model(
                REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url, available_bytes=1000
            )
        assert not any(SHARD in line for line in transfers(hub))


class TestLibrarySettings:
    def test_offline_mode_names_what_is_missing(
        self, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(CheckpointError, match=r"offline mode .*`config\.json`"):
            resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url)
        assert hub.requests == []

    def test_offline_mode_uses_a_complete_copy(
        self, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path, endpoint=hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert resolve_model(REPOSITORY, REVISION, cache_dir=tmp_path) == directory

    @pytest.mark.slow
    def test_home_and_endpoint_of_the_environment(self, hub: Any, tmp_path: Path) -> None:
        code = (
            "from di_engine.checkpoint import resolve_model\n"
            f"print(resolve_model({REPOSITORY!r}, {REVISION!r}))"
        )
        environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url}
        for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        assert Path(done.stdout.strip()).is_relative_to(tmp_path / "hub")
