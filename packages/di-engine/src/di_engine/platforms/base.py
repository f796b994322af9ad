"""What the engine needs from a device, whatever it is.

Streams, events, pinned memory, graphs, memory sizes and device names are asked for here and nowhere
else, so that a further device is one `Platform` and one `register_platform` call.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Device", "Event", "Graph", "HostEvent", "Platform", "Stream"]


class Stream(Protocol):
    """A queue of device work."""

    def wait_event(self, event: Event) -> None:
        """Makes later work of this stream wait for an event."""
        ...

    def synchronize(self) -> None:
        """Blocks the host until the queue is empty."""
        ...


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> None:
        """Marks the present end of the current stream."""
        ...

    def query(self) -> bool:
        """Whether the work before the mark is done."""
        ...

    def synchronize(self) -> None:
        """Blocks the host until the work before the mark is done."""
        ...

    def elapsed_ms(self, earlier: Event) -> float:
        """Returns milliseconds between an earlier event and this one, both done."""
        ...


class Graph(Protocol):
    """Captured device work."""

    def replay(self) -> None:
        """Queues the captured work again, on the memory it was captured with."""
        ...


class Platform(ABC):
    """One kind of device.

    Attributes:
        name: Name before the colon of a device string, for example `cuda`.
        priority: `device=auto` takes the available platform with the highest priority.
        supports_graphs: Whether `capture` works.
    """

    name: str
    priority: int = 0
    supports_graphs: bool = False

    @abstractmethod
    def device_count(self) -> int:
        """Returns the number of usable devices; 0 where the platform is absent."""

    @abstractmethod
    def device_name(self, index: int) -> str:
        """Returns the product name of a device."""

    @abstractmethod
    def capability(self, index: int) -> str:
        """Returns the architecture that kernels are chosen by, for example `9.0` or `x86_64`."""

    @abstractmethod
    def total_memory(self, index: int) -> int:
        """Returns the memory of a device in bytes."""

    @abstractmethod
    def available_memory(self, index: int) -> int:
        """Returns the bytes of a device that can be allocated now."""

    def peak_memory(self, index: int) -> int | None:
        """Returns the most bytes that tensors of this process took, or None if nobody counts."""
        return None

    def torch_device(self, index: int) -> torch.device:
        """Returns the torch device of an index."""
        return torch.device(self.name, index)

    def unavailable_reason(self) -> str:
        """Returns why `device_count` is 0, for a message."""
        return f"no `{self.name}` device is usable"

    # Work queues. The defaults serve devices that run work as it is submitted.

    def synchronize(self, index: int) -> None:  # noqa: B027  # nothing is pending by default
        """Blocks the host until all work of a device is done."""

    def forbid_synchronize(self, index: int) -> AbstractContextManager[object]:
        """Returns a context in which the platform raises where the host waits for a device.

        Platforms without such a check return a context that does nothing.
        """
        return nullcontext()

    def stream(self, index: int) -> Stream | None:
        """Returns a new work queue, or None where the platform has one implicit queue."""
        return None

    def use_stream(self, stream: Stream | None) -> AbstractContextManager[object]:
        """Returns a context in which work goes to `stream`."""
        return nullcontext()

    def event(self, index: int) -> Event:
        """Returns a new event."""
        return HostEvent()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in memory that device copies can read without the host."""
        return tensor

    def capture(self, index: int, work: Callable[[], object]) -> Graph:
        """Records the work a function submits, for replay.

        Raises:
            NotImplementedError: The platform has no graphs (`supports_graphs` is False).
        """
        raise NotImplementedError(f"platform `{self.name}` has no graphs")


class HostEvent:
    """An event of a device that finishes work as it is submitted: a time stamp."""

    def __init__(self) -> None:
        self._time_s = 0.0

    def record(self) -> None:
        """Takes the time."""
        self._time_s = time.perf_counter()

    def query(self) -> bool:
        """Always done."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def elapsed_ms(self, earlier: Event) -> float:
        """Returns milliseconds since `earlier`."""
        if not isinstance(earlier, HostEvent):
            raise TypeError(f"expected an event of the same platform, got {type(earlier).__name__}")
        return (self._time_s - earlier._time_s) * 1e3


@dataclass(frozen=True, slots=True)
class Device:
    """A device that was chosen.

    Attributes:
        platform: Its platform.
        index: Its number on the platform.
        torch_device: For tensor creation.
        name: Product name.
    """

    platform: Platform
    index: int
    torch_device: torch.device
    name: str

    def available_memory(self) -> int:
        """Returns the bytes that can be allocated now."""
        return self.platform.available_memory(self.index)

    def synchronize(self) -> None:
        """Blocks the host until all work of the device is done."""
        self.platform.synchronize(self.index)
