"""Compiled grammars in memory, limited by bytes, and on disk if asked for."""

import contextlib
import hashlib
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Generic, Protocol, TypeVar

__all__ = ["ByteLimitedCache", "DiskCache"]


class HasSize(Protocol):
    """Something that knows its memory."""

    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=HasSize)


class ByteLimitedCache(Generic[T]):
    """A mapping that forgets what was used longest ago once its values pass a number of bytes.

    Not thread-safe: the owner holds a lock.

    Args:
        limit_bytes: The most bytes of all values together; a value larger than this is not kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Starts empty."""
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.evictions = 0
        self._values: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        """Number of values."""
        return len(self._values)

    def get(self, key: str) -> T | None:
        """Returns a value and marks it as used."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: str, value: T) -> None:
        """Keeps a value, and forgets others for it."""
        self.discard(key)
        if value.size_bytes > self.limit_bytes:
            return
        self._values[key] = value
        self.size_bytes += value.size_bytes
        while self.size_bytes > self.limit_bytes:
            self.discard(next(iter(self._values)))
            self.evictions += 1

    def discard(self, key: str) -> None:
        """Forgets a value, if it is there."""
        value = self._values.pop(key, None)
        if value is not None:
            self.size_bytes -= value.size_bytes

    def clear(self) -> None:
        """Forgets everything."""
        self._values.clear()
        self.size_bytes = 0


class DiskCache:
    """Serialised grammars as files, shared by the processes of one machine.

    The directory must be writable by trusted users only. It has no size limit; files may be deleted
    at any time.

    Args:
        directory: Made if it is missing.
        scope: What all entries depend on: the vocabulary's fingerprint and xgrammar's versions.
    """

    def __init__(self, directory: Path, scope: str) -> None:
        """Makes the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._scope = scope

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(f"{self._scope}\n{key}".encode()).hexdigest()
        return self._directory / f"{digest}.json"

    def read(self, key: str) -> str | None:
        """Returns a serialised grammar, or None."""
        try:
            return self._path(key).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def write(self, key: str, serialized: str) -> None:
        """Keeps a serialised grammar. A reader never sees half a file; a full disk is no error."""
        with contextlib.suppress(OSError):
            descriptor, name = tempfile.mkstemp(dir=self._directory, suffix=".part")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(serialized)
                Path(name).replace(self._path(key))
            finally:
                Path(name).unlink(missing_ok=True)

    def discard(self, key: str) -> None:
        """Deletes an entry that turned out to be of no use."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)
