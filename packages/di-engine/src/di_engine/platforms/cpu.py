"""The host processor as a device."""

from __future__ import annotations

import platform as host
from pathlib import Path

import psutil
import torch

from di_engine.platforms.base import Platform

__all__ = ["CpuPlatform"]

_CGROUP = Path("/sys/fs/cgroup")
_CPU_INFO = Path("/proc/cpuinfo")


class CpuPlatform(Platform):
    """CPU: work runs as it is submitted, memory is what the machine or its container may use."""

    name = "cpu"

    def device_count(self) -> int:
        """There is always one."""
        return 1

    def torch_device(self, index: int) -> torch.device:
        """Returns `cpu` without an index, the form torch reports for CPU tensors."""
        return torch.device("cpu")

    def device_name(self, index: int) -> str:
        """Returns the processor model where the system tells it."""
        if _CPU_INFO.is_file():
            for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
        return host.processor() or host.machine()

    def capability(self, index: int) -> str:
        """Returns the instruction set, for example `x86_64`."""
        return host.machine()

    def total_memory(self, index: int) -> int:
        """Returns the memory of the machine, or the container's limit where that is smaller."""
        total: int = psutil.virtual_memory().total
        limit = _cgroup_bytes("memory.max")
        return total if limit is None else min(total, limit)

    def available_memory(self, index: int) -> int:
        """Returns what can be allocated without swapping, inside the container's limit."""
        available: int = psutil.virtual_memory().available
        limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
        if limit is None or used is None:
            return available
        # The page cache counts as used but is given back under pressure.
        return max(0, min(available, limit - used + _cgroup_reclaimable()))


def _cgroup_bytes(file: str) -> int | None:
    """Returns a number of the unified control group, or None without one or without a limit."""
    try:
        return int((_CGROUP / file).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _cgroup_reclaimable() -> int:
    try:
        lines = (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, IndexError):
        return 0
