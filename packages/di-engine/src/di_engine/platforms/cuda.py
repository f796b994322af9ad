"""NVIDIA GPUs through torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from di_engine.platforms.base import Event, Graph, Platform, Stream

__all__ = ["CudaPlatform"]


class _CudaEvent:
    def __init__(self, index: int) -> None:
        with torch.cuda.device(index):
            self._event = torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self._event.record()

    def query(self) -> bool:
        return bool(self._event.query())

    def synchronize(self) -> None:
        self._event.synchronize()

    def elapsed_ms(self, earlier: Event) -> float:
        if not isinstance(earlier, _CudaEvent):
            raise TypeError(f"expected an event of the same platform, got {type(earlier).__name__}")
        return float(earlier._event.elapsed_time(self._event))


class _CudaStream:
    def __init__(self, index: int) -> None:
        self.stream = torch.cuda.Stream(device=index)

    def wait_event(self, event: Event) -> None:
        if not isinstance(event, _CudaEvent):
            raise TypeError(f"expected an event of the same platform, got {type(event).__name__}")
        self.stream.wait_event(event._event)

    def synchronize(self) -> None:
        self.stream.synchronize()


class CudaPlatform(Platform):
    """CUDA devices; preferred by `device=auto` over the CPU."""

    name = "cuda"
    priority = 10
    supports_graphs = True

    def device_count(self) -> int:
        """Returns the number of visible GPUs."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def unavailable_reason(self) -> str:
        """Tells a torch build without CUDA from a machine without a GPU."""
        if torch.version.cuda is None:
            return "this torch build has no CUDA support"
        return "torch sees no CUDA device (driver or GPU missing)"

    def device_name(self, index: int) -> str:
        """Returns the product name."""
        return torch.cuda.get_device_name(index)

    def capability(self, index: int) -> str:
        """Returns the compute capability, for example `9.0`."""
        major, minor = torch.cuda.get_device_capability(index)
        return f"{major}.{minor}"

    def total_memory(self, index: int) -> int:
        """Returns the memory of the GPU."""
        return int(torch.cuda.mem_get_info(index)[1])

    def available_memory(self, index: int) -> int:
        """Returns free memory, including what torch has reserved and does not use."""
        free = int(torch.cuda.mem_get_info(index)[0])
        unused = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        return free + int(unused)

    def peak_memory(self, index: int) -> int:
        """Returns the high-water mark of torch's allocator."""
        return int(torch.cuda.max_memory_allocated(index))

    def synchronize(self, index: int) -> None:
        """Waits for all streams of the GPU."""
        torch.cuda.synchronize(index)

    @contextmanager
    def forbid_synchronize(self, index: int) -> Iterator[None]:
        """Turns torch's check of synchronising calls on; it raises a `RuntimeError`."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def stream(self, index: int) -> Stream:
        """Returns a new CUDA stream."""
        return _CudaStream(index)

    def use_stream(self, stream: Stream | None) -> AbstractContextManager[object]:
        """Returns a context in which torch work goes to `stream`."""
        if stream is None:
            return nullcontext()
        if not isinstance(stream, _CudaStream):
            raise TypeError(f"expected a stream of the same platform, got {type(stream).__name__}")
        return torch.cuda.stream(stream.stream)

    def event(self, index: int) -> Event:
        """Returns a CUDA event with timing."""
        return _CudaEvent(index)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in page-locked host memory."""
        return tensor.pin_memory()

    def capture(self, index: int, work: Callable[[], object]) -> Graph:
        """Captures a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(index), torch.cuda.graph(graph):
            work()
        return graph
