"""Measured times for which an op stays a torch op, or for which torch is the better choice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimedPair:
    """Two measured times of one case in which a torch call is faster than the kernel, or serves.

    Args:
        case: Sizes in words.
        torch_call: What was called.
        torch_us: Its median time, microseconds.
        other: What it was compared with: a backend, or `floor`, the least time for the bytes, where
            torch is so near it that no kernel was made.
        other_us: Median time of that, microseconds.
        device: On which, and when.
    """

    case: str
    torch_call: str
    torch_us: float
    other: str
    other_us: float
    device: str

    def __str__(self) -> str:
        return (
            f"{self.case}: {self.torch_call} {self.torch_us:g} us, "
            f"{self.other} {self.other_us:g} us ({self.device})"
        )
