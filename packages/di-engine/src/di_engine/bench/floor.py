"""The least time that a step can take on this device, from what it must read and compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from di_engine.checkpoint import expected_tensors
from di_engine.config import ModelConfig
from di_engine.platforms import Device

__all__ = ["StepWork", "device_rates", "step_work"]

_READ_BYTES = 128 * 2**20
_MATMUL_WIDTH = 1024
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step cannot avoid.

    Attributes:
        weight_bytes: Weights that must be read once: all but looked-up tables and experts that no
            row is routed to (at best every row picks different ones).
        flops: Multiplications and additions of the matrix products; attention is left out.
    """

    weight_bytes: int
    flops: int

    def floor_s(self, bytes_per_s: float, flops_per_s: float) -> float:
        """Seconds at the given rates, reading and computing at the same time."""
        return max(self.weight_bytes / bytes_per_s, self.flops / flops_per_s)


def step_work(config: ModelConfig, num_rows: int, bytes_per_weight: int) -> StepWork:
    """Work of a step of `num_rows` rows of the text model.

    Args:
        config: The model.
        num_rows: Rows, all of which are projected to the vocabulary.
        bytes_per_weight: Size of a weight as it is kept in memory.
    """
    dense = experts = 0
    for name, spec in expected_tensors(config, parts=("text",)).items():
        if name.startswith("embed.") or spec.group == "Engram tables":
            continue
        if spec.group == "routed experts":
            experts += spec.num_parameters
        else:
            dense += spec.num_parameters
    picked = config.num_experts_per_tok / config.n_routed_experts
    touched = min(1.0, num_rows * picked)
    return StepWork(
        weight_bytes=int((dense + experts * touched) * bytes_per_weight),
        flops=int(2 * num_rows * (dense + experts * picked)),
    )


def device_rates(device: Device, dtype: torch.dtype) -> tuple[float, float]:
    """Measures (bytes read per second, floating point operations per second) with torch.

    The figures are what torch reaches here and now, not the maker's.
    """
    buffer = torch.ones(_READ_BYTES // 4, device=device.torch_device)
    read_s = _best_time(buffer.sum, device)
    left = torch.ones(_MATMUL_WIDTH, _MATMUL_WIDTH, device=device.torch_device, dtype=dtype)
    matmul_s = _best_time(lambda: left @ left, device)
    return _READ_BYTES / read_s, 2 * _MATMUL_WIDTH**3 / matmul_s


def _best_time(work: Callable[[], object], device: Device) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        work()
        device.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best
