"""Turns a host that waits for the device into an error, while a step is being enqueued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from di_engine.errors import HostSyncError
from di_engine.platforms import Device

__all__ = ["forbid_host_sync"]

_VALUE_READS = (
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_dim",
)
"""Operations whose result, or the shape of it, the host has to wait for."""

_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operations that first count the set places of an index of booleans."""


class _Guard(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and to skip torch's compiler is to import it (seconds)."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        is_read = name in _VALUE_READS
        if name in _INDEXING:
            is_read = any(index is not None and index.dtype is torch.bool for index in args[1])
        elif name == "aten::repeat_interleave" and func._schema.overload_name != "self_int":
            is_read = (kwargs or {}).get("output_size") is None
        if is_read:
            raise HostSyncError(
                f"`{name}` reads a device value on the host while a step is enqueued: keep it on "
                "the device, or read it when the step is collected"
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def forbid_host_sync(device: Device) -> Iterator[None]:
    """Raises `HostSyncError` where the block reads a device value on the host.

    The operations are the same on every device, so that a CPU run finds most of what would stall a
    GPU; whole tensors that are copied to the host (`tolist`, `cpu`) show only where the platform
    has a check of its own. Slow: for debugging.
    """
    with (
        _Guard(),  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
        device.platform.forbid_synchronize(device.index),
    ):
        yield
