"""Copies to the host that run in the device's own time."""

from __future__ import annotations

import torch

__all__ = ["copy_to_host"]


def copy_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Starts a copy to the host; read it only after an event that was recorded behind it."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
