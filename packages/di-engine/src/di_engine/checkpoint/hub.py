"""Where a model's files are: a directory, the built-in checkpoint, or a repository of the hub.

A hub id needs a pinned revision (a commit), so that the same command means the same weights
tomorrow. Files are fetched through `huggingface_hub`, which honours `HF_HOME`, `HF_ENDPOINT` and
`HF_HUB_OFFLINE`; partial downloads are resumed; disk and memory are checked before the first shard.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.hf_api import RepoFile

from di_engine import tiny
from di_engine.checkpoint.memory import Resident, check_memory, format_bytes, weight_memory
from di_engine.checkpoint.shards import INDEX_FILE
from di_engine.checkpoint.source import ProgressCallback
from di_engine.checkpoint.transfer import download_file, partial_bytes
from di_engine.config import ModelConfig
from di_engine.errors import CapacityError, CheckpointError, ConfigError

__all__ = ["resolve_model"]

_log = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIG_FILE = "config.json"
_SINGLE_SHARD = "model.safetensors"
_SMALL_FILES = (_CONFIG_FILE, "tokenizer.json", "tokenizer_config.json", INDEX_FILE)
_SHARDS = "*.safetensors"
# Room left on the disk for everything else.
_DISK_RESERVE_BYTES = 256 << 20


def resolve_model(
    model: str,
    revision: str | None = None,
    *,
    cache_dir: str | Path | None = None,
    endpoint: str | None = None,
    resident: Resident = "stored",
    available_bytes: int | None = None,
    progress: ProgressCallback | None = None,
) -> Path:
    """Returns the local directory of a model, downloading it first where it comes from the hub.

    Args:
        model: A checkpoint directory, `tiny`, or a hub id `OWNER/NAME`. A directory wins over a hub
            id; write `./tiny` for a directory of that name.
        revision: Commit of a hub id, 40 hexadecimal digits. Must be None for a directory.
        cache_dir: Hub cache; the library's default (`HF_HOME`) when None.
        endpoint: Address of the hub; the library's default when None.
        resident: Format the weights will have in memory; see `weight_memory`.
        available_bytes: Memory for the weights, checked before they are downloaded; None skips it.
        progress: Called with bytes done, total bytes and the file name.

    Raises:
        ConfigError: `model` is none of the three, or the revision is missing or out of place.
        CapacityError: The disk or the memory is too small; the message has the numbers.
        CheckpointError: The repository cannot be reached, or lacks the files.
    """
    path = Path(model).expanduser()
    if model == tiny.NAME or (model and path.is_dir()):
        if revision is not None:
            raise ConfigError(
                f"`model.revision`: {revision} with `model.path`: {model}, which is a directory; "
                "leave the revision out"
            )
        return tiny.directory() if model == tiny.NAME else path
    if path.exists() or not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"`model.path`: {model}: no such directory; give a checkpoint directory, "
            f"`{tiny.NAME}`, or a hub id `OWNER/NAME` with `model.revision`"
        )
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"`model.revision`: {revision} with the hub id `model.path`: {model}, allowed: a "
            "commit of 40 hexadecimal digits (a branch or tag may move)"
        )
    repository = _Repository(model, revision, cache_dir, endpoint)
    return _fetch(repository, resident, available_bytes, progress)


@dataclass(frozen=True, slots=True)
class _Repository:
    """A pinned repository and the cache its files go to."""

    name: str
    revision: str
    cache_dir: str | Path | None
    endpoint: str | None

    def cached(self, file: str) -> Path | None:
        """Returns the path of a completely downloaded file, or None."""
        found = huggingface_hub.try_to_load_from_cache(
            self.name, file, cache_dir=self.cache_dir, revision=self.revision
        )
        return Path(found) if isinstance(found, str) else None

    def missing_offline(self) -> list[str]:
        """Returns the files that a usable local copy lacks, as far as it can be told locally."""
        missing = [file for file in (_CONFIG_FILE,) if self.cached(file) is None]
        index = self.cached(INDEX_FILE)
        shards = {_SINGLE_SHARD}
        if index is not None:
            try:
                shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError):
                return []  # a damaged index is reported by the loader, with its name
        return missing + sorted(file for file in shards if self.cached(file) is None)

    def remote_sizes(self) -> dict[str, int]:
        """Returns the needed files of the repository with their bytes, small files first.

        Raises:
            CheckpointError: The hub cannot be asked, or the repository has no checkpoint.
        """
        api = huggingface_hub.HfApi(endpoint=self.endpoint)
        try:
            tree = list(api.list_repo_tree(self.name, revision=self.revision))
        except Exception as error:  # re-raised; the library's network errors share no base class
            raise self.error("cannot be listed", error) from error
        sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
        small = [file for file in _SMALL_FILES if file in sizes]
        shards = sorted(file for file in sizes if fnmatch(file, _SHARDS))
        if _CONFIG_FILE not in sizes or not shards:
            raise CheckpointError(
                f"`{self.name}` at {self.revision} has no `{_CONFIG_FILE}` or no `{_SHARDS}` file; "
                "it is not a checkpoint in the Hugging Face layout"
            )
        return {file: sizes[file] for file in (*small, *shards)}

    def download(self, file: str, bar: type[_ByteBar]) -> Path:
        """Downloads one file, resuming a partial copy.

        Raises:
            CheckpointError: The transfer failed; what has arrived is kept.
        """
        try:
            return download_file(
                self.name,
                file,
                self.revision,
                cache_dir=self.cache_dir,
                endpoint=self.endpoint,
                bar=bar,
            )
        except Exception as error:  # re-raised; the library's network errors share no base class
            raise self.error(f"lacks `{file}` or the transfer failed", error) from error

    def error(self, what: str, error: Exception) -> CheckpointError:
        """Returns an error that says what was tried and how to go on."""
        return CheckpointError(
            f"`{self.name}` at {self.revision} {what}: {type(error).__name__}: {error}; check the "
            "id, the revision and the connection, then run again: finished parts are kept"
        )


def _fetch(
    repository: _Repository,
    resident: Resident,
    available_bytes: int | None,
    progress: ProgressCallback | None,
) -> Path:
    missing = repository.missing_offline()
    if missing and constants.HF_HUB_OFFLINE:
        raise CheckpointError(
            f"`{repository.name}` at {repository.revision}: offline mode (`HF_HUB_OFFLINE`), and "
            f"the cache lacks {', '.join(f'`{file}`' for file in missing)}; run once online"
        )
    if missing:
        _download(repository, resident, available_bytes, progress)
    config = repository.cached(_CONFIG_FILE)
    if config is None:
        raise CheckpointError(
            f"`{repository.name}` at {repository.revision}: `{_CONFIG_FILE}` is not in the cache "
            "after the download; remove the cache of this repository and run again"
        )
    return config.parent


def _download(
    repository: _Repository,
    resident: Resident,
    available_bytes: int | None,
    progress: ProgressCallback | None,
) -> None:
    sizes = repository.remote_sizes()
    wanted = {file: size for file, size in sizes.items() if repository.cached(file) is None}
    _check_disk(repository, wanted)
    counter = _Counter(sum(wanted.values()), progress)
    for file, size in wanted.items():
        if fnmatch(file, _SHARDS) and available_bytes is not None:
            directory = repository.download(_CONFIG_FILE, counter.bar(_CONFIG_FILE)).parent
            need = weight_memory(ModelConfig.from_directory(directory), resident)
            check_memory(need, available_bytes, "this machine")
            available_bytes = None  # checked once, before the first shard
        _log.info("fetching `%s` (%s)", file, format_bytes(size))
        repository.download(file, counter.bar(file))


def _check_disk(repository: _Repository, wanted: dict[str, int]) -> None:
    place = Path(repository.cache_dir or constants.HF_HUB_CACHE).expanduser().absolute()
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    begun = partial_bytes(repository.name, repository.cache_dir)
    needed = max(0, sum(wanted.values()) - begun) + _DISK_RESERVE_BYTES
    if needed > free:
        raise CapacityError(
            f"`{repository.name}`: {len(wanted)} files to fetch need {format_bytes(needed)} of "
            f"disk (with {format_bytes(_DISK_RESERVE_BYTES)} reserve) at `{place}`, free: "
            f"{format_bytes(free)}; make room or set `HF_HOME` to a larger disk"
        )


class _Counter:
    """Adds the bytes of all files of a download and passes them on."""

    def __init__(self, total_bytes: int, progress: ProgressCallback | None) -> None:
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._progress = progress

    def add(self, count: int, file: str) -> None:
        """Counts bytes of a file; a negative count takes back bytes of a restarted transfer."""
        self._done_bytes += count
        if self._progress is not None:
            done = min(max(self._done_bytes, 0), self._total_bytes)
            self._progress(done, self._total_bytes, file)

    def bar(self, file: str) -> type[_ByteBar]:
        """Returns a progress bar class for the library that counts into this counter."""
        counter = self

        class Bar(_ByteBar):
            def update(self, n: float | None = 1) -> None:
                counter.add(int(n or 0), file)

        return Bar


class _ByteBar:
    """The part of a tqdm bar that `huggingface_hub` uses for one file."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.total = options.get("total")
        self.n = options.get("initial") or 0
        if self.n:
            self.update(self.n)  # bytes of a resumed transfer

    def update(self, n: float | None = 1) -> None:
        """Counts bytes."""

    def close(self) -> None:
        """Nothing is shown here."""

    def refresh(self) -> None:
        """Nothing is shown here."""

    def set_postfix_str(self, text: str = "", refresh: bool = True) -> None:
        """Nothing is shown here."""

    def set_description(self, text: str | None = None, refresh: bool = True) -> None:
        """Nothing is shown here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
