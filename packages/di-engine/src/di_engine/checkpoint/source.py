"""`TensorSource`: where the model takes its tensors from, one name at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self

import torch

from di_engine.checkpoint.header import StoredTensor
from di_engine.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TORCH_DTYPES", "ProgressCallback", "ShardSource", "TensorSource"]

ProgressCallback = Callable[[int, int, str], None]
"""Called as `progress(done_bytes, total_bytes, what)` while bytes are read."""

# Bytes per read: large enough for full disk speed, small enough for a moving progress bar.
_CHUNK_BYTES = 64 << 20

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


class TensorSource(Protocol):
    """Tensors by plain name (without `model.`)."""

    def get(self, name: str) -> torch.Tensor:
        """Returns a tensor in its stored dtype and shape, in CPU memory that the caller owns.

        Raises:
            CheckpointError: There is no such tensor, or its bytes cannot be read.
        """
        ...

    def names(self) -> Sequence[str]:
        """Returns the names that `get` knows."""
        ...

    def close(self) -> None:
        """Releases files; `get` must not be called afterwards."""
        ...


class ShardSource:
    """Tensors read from safetensors shards by byte range.

    Files are opened on first use and read with plain reads, never mapped, so memory use is that of
    the tensors handed out. Use it as a context manager or call `close`.

    Args:
        tensors: Where each tensor is stored, by plain name.
        progress: Called while bytes are read; the total counts every tensor once.
    """

    def __init__(
        self, tensors: Mapping[str, StoredTensor], progress: ProgressCallback | None = None
    ) -> None:
        self._tensors = dict(tensors)
        self._progress = progress
        self._files: dict[Path, BinaryIO] = {}
        self._done_bytes = 0
        self._total_bytes = sum(tensor.num_bytes for tensor in tensors.values())

    def names(self) -> Sequence[str]:
        """Returns the names of all tensors."""
        return list(self._tensors)

    def get(self, name: str) -> torch.Tensor:
        """Reads one tensor. See `TensorSource.get`."""
        stored = self._tensors.get(name)
        if stored is None:
            raise CheckpointError(
                f"no tensor `{name}` among the {len(self._tensors)} of this checkpoint"
            )
        flat = torch.empty(stored.num_bytes, dtype=torch.uint8)
        self._read_into(memoryview(flat.numpy().data), stored)
        return flat.view(TORCH_DTYPES[stored.dtype]).reshape(stored.shape)

    def _read_into(self, buffer: memoryview, stored: StoredTensor) -> None:
        position = 0
        try:
            file = self._files.get(stored.path)
            if file is None:
                # Closed by `close`: shards stay open between tensors.
                file = self._files[stored.path] = stored.path.open("rb", buffering=0)
            file.seek(stored.offset)
            while position < stored.num_bytes:
                count = file.readinto(buffer[position : position + _CHUNK_BYTES])  # type: ignore[attr-defined]  # an unbuffered binary file has it
                if not count:
                    raise CheckpointError(
                        f"`{stored.path}` ended inside `{stored.name}`; it changed while being read"
                    )
                position += count
                self._advance(count, stored.path.name)
        except OSError as error:
            raise CheckpointError(
                f"`{stored.path}`: reading `{stored.name}` failed: {error.strerror or error}"
            ) from None

    def _advance(self, count: int, what: str) -> None:
        self._done_bytes += count
        if self._progress is not None:
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes, what)

    def close(self) -> None:
        """Closes the shard files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
