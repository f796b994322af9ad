"""How much memory the weights of a configuration take, known before a byte is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Literal

from di_engine.checkpoint.names import DTYPE_BITS, Part, TensorSpec, expected_tensors
from di_engine.config import ModelConfig
from di_engine.errors import CapacityError

__all__ = ["MemoryNeed", "Resident", "check_memory", "format_bytes", "memory_of", "weight_memory"]

Resident = Literal["stored", "bfloat16", "float32", "float64"]

_RESIDENT_BYTES: dict[str, int] = {"bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that loaded weights take.

    Attributes:
        weights_bytes: Everything but the Engram tables, in the resident format.
        engram_bytes: The Engram tables, which stay in their stored format.
        transient_bytes: Largest stored tensor, held while it is converted; 0 without conversion.
    """

    weights_bytes: int
    engram_bytes: int
    transient_bytes: int

    @property
    def total_bytes(self) -> int:
        """Peak of loading."""
        return self.weights_bytes + self.engram_bytes + self.transient_bytes


def weight_memory(
    config: ModelConfig, resident: Resident = "stored", parts: tuple[Part, ...] = ("text",)
) -> MemoryNeed:
    """Returns the memory that the weights of the given parts take.

    Args:
        config: The model configuration.
        resident: `stored` keeps checkpoint formats; a dtype name means that weights are widened to
            it once, scales being folded in.
        parts: Parts of the model that are loaded.
    """
    return memory_of(expected_tensors(config, parts).values(), resident)


def memory_of(specs: Iterable[TensorSpec], resident: Resident) -> MemoryNeed:
    """Returns the memory that given tensors take; see `weight_memory`."""
    weights = engram = largest = 0
    for spec in specs:
        if spec.group == "Engram tables":
            engram += spec.num_bytes
            continue
        weights += _resident_bytes(spec, resident)
        largest = max(largest, spec.num_bytes)
    return MemoryNeed(weights, engram, 0 if resident == "stored" else largest)


def _resident_bytes(spec: TensorSpec, resident: Resident) -> int:
    if resident == "stored" or spec.name == "embed.weight":
        return spec.num_bytes  # a step reads a few rows of the embedding; it is never widened
    if spec.dtypes == ("F32",):
        # Tensors that must be F32 are not narrowed.
        return prod(spec.shape) * max(_RESIDENT_BYTES[resident], DTYPE_BITS["F32"] // 8)
    return spec.num_parameters * _RESIDENT_BYTES[resident]


def check_memory(need: MemoryNeed, available_bytes: int, device: str) -> None:
    """Checks that the weights fit.

    Args:
        need: Result of `weight_memory`.
        available_bytes: Free memory of the device.
        device: Name of the device for the message.

    Raises:
        CapacityError: They do not; the message has the numbers.
    """
    if need.total_bytes <= available_bytes:
        return
    raise CapacityError(
        f"the weights need {format_bytes(need.total_bytes)} on `{device}` (weights "
        f"{format_bytes(need.weights_bytes)}, Engram tables {format_bytes(need.engram_bytes)}, "
        f"while loading {format_bytes(need.transient_bytes)}), available: "
        f"{format_bytes(available_bytes)}; use a device with more memory or a smaller checkpoint, "
        "and see `di inspect` for the sizes"
    )


def format_bytes(count: int) -> str:
    """Returns a byte count in the largest binary unit that keeps it at 1 or more."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
