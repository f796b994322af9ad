"""Choice of a device, the CPU platform, and a third kind of device that nobody knew of."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import di_engine
from di_engine.errors import ConfigError, UnsupportedEnvironmentError
from di_engine.platforms import (
    Event,
    HostEvent,
    Platform,
    Stream,
    platforms,
    register_platform,
    resolve_device,
    unregister_platform,
)
from di_engine.platforms.cuda import CudaPlatform


class StubStream:
    """Runs nothing; remembers what it was asked to wait for."""

    def __init__(self) -> None:
        self.waited: list[Event] = []
        self.is_synchronized = False

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)

    def synchronize(self) -> None:
        self.is_synchronized = True


class StubGraph:
    """Runs the captured work again."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


class StubPlatform(Platform):
    """Two accelerators whose tensors live in host memory."""

    name = "npu"
    priority = 5
    supports_graphs = True

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def device_count(self) -> int:
        return self.count

    def device_name(self, index: int) -> str:
        return f"Stub {index}"

    def capability(self, index: int) -> str:
        return "950"

    def total_memory(self, index: int) -> int:
        return 64 << 30

    def available_memory(self, index: int) -> int:
        return (60 - index) << 30

    def torch_device(self, index: int) -> torch.device:
        return torch.device("cpu")

    def stream(self, index: int) -> Stream:
        return StubStream()

    def capture(self, index: int, work: Callable[[], object]) -> StubGraph:
        work()
        return StubGraph(work)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubPlatform]:
    """The stub, registered, on a machine without a GPU."""
    monkeypatch.setattr(CudaPlatform, "device_count", lambda self: 0)
    platform = StubPlatform()
    register_platform(platform)
    yield platform
    unregister_platform(platform.name)


class TestThirdDevice:
    def test_auto_prefers_it_to_the_cpu(
        self, stub: StubPlatform, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "di_engine.platforms"):
            device = resolve_device("auto")
        assert (device.platform, device.index, device.name) == (stub, 0, "Stub 0")
        assert caplog.messages == ["device: auto -> cpu (Stub 0, 950)"]

    def test_it_is_named_with_an_index(self, stub: StubPlatform) -> None:
        device = resolve_device("npu:1")
        assert device.name == "Stub 1"
        assert device.available_memory() == 59 << 30

    def test_index_out_of_range(self, stub: StubPlatform) -> None:
        with pytest.raises(UnsupportedEnvironmentError, match=r"npu:2.*allowed indices: 0 to 1"):
            resolve_device("npu:2")

    def test_absent_hardware_falls_back(self, stub: StubPlatform) -> None:
        stub.count = 0
        assert resolve_device("auto").platform.name == "cpu"
        with pytest.raises(UnsupportedEnvironmentError, match="no `npu` device is usable"):
            resolve_device("npu")

    def test_streams_events_pinning_and_graphs(self, stub: StubPlatform) -> None:
        stream, event = stub.stream(0), stub.event(0)
        event.record()
        stream.wait_event(event)
        tensor = torch.ones(2)
        with stub.use_stream(stream):
            assert stub.pin(tensor) is tensor
        graph = stub.capture(0, lambda: tensor.add_(1))
        graph.replay()
        assert tensor.tolist() == [3, 3]

    def test_names_are_unique(self, stub: StubPlatform) -> None:
        for name in ("npu", "cpu", "auto", "a b", ""):
            other = StubPlatform()
            other.name = name
            with pytest.raises(ValueError, match="platform name"):
                register_platform(other)
        assert [platform.name for platform in platforms()] == ["cuda", "npu", "cpu"]


class TestCpu:
    def test_it_is_always_there(self) -> None:
        device = resolve_device("cpu")
        assert device.torch_device == torch.device("cpu")
        assert device.name
        assert device.platform.capability(0)
        total = device.platform.total_memory(0)
        assert 0 < device.available_memory() <= total
        device.synchronize()

    def test_events_are_time_stamps(self) -> None:
        platform = resolve_device("cpu").platform
        first, second = platform.event(0), platform.event(0)
        first.record()
        second.record()
        assert second.query()
        assert second.elapsed_ms(first) >= 0
        assert isinstance(first, HostEvent)
        with pytest.raises(TypeError, match="same platform"):
            first.elapsed_ms(object())  # type: ignore[arg-type]  # the point of the test

    def test_no_graphs_and_one_queue(self) -> None:
        platform = resolve_device("cpu").platform
        assert not platform.supports_graphs
        assert platform.stream(0) is None
        with pytest.raises(NotImplementedError, match="`cpu` has no graphs"):
            platform.capture(0, lambda: None)

    @pytest.mark.parametrize(
        ("limit", "expected"), [("max", 10**12), (str(8 << 30), 6 << 30), (str(1), 0)]
    )
    def test_container_limits_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
    ) -> None:
        from di_engine.platforms import cpu

        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(str(3 << 30))
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 30}\n")
        monkeypatch.setattr(cpu, "_CGROUP", tmp_path)
        memory = cpu.psutil.virtual_memory()._replace(total=10**12, available=10**12)
        monkeypatch.setattr(cpu.psutil, "virtual_memory", lambda: memory)
        assert cpu.CpuPlatform().available_memory(0) == expected


class TestNames:
    @pytest.mark.parametrize("device", ["gpu", "cpu:", "cpu:x", "cpu:-1", "cuda:²", "", ":0"])
    def test_unknown_names_list_the_known_ones(self, device: str) -> None:
        with pytest.raises(ConfigError, match=r"allowed: auto, cuda\[:INDEX\], cpu\[:INDEX\]"):
            resolve_device(device)

    def test_cuda_says_why_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UnsupportedEnvironmentError, match="use `device`: cpu"):
            resolve_device("cuda:0")


@pytest.mark.gpu
def test_cuda_device_streams_events_and_graphs() -> None:
    device = resolve_device("cuda:0")
    platform, index = device.platform, device.index
    assert 0 < device.available_memory() <= platform.total_memory(index)
    assert platform.pin(torch.ones(2)).is_pinned()
    stream, before, after = platform.stream(index), platform.event(index), platform.event(index)
    value = torch.zeros(4, device=device.torch_device)
    device.synchronize()
    with platform.use_stream(stream):
        before.record()
        value.add_(1)
        after.record()
    after.synchronize()
    assert after.query()
    assert after.elapsed_ms(before) >= 0
    graph = platform.capture(index, lambda: value.add_(1))
    graph.replay()
    device.synchronize()
    assert value.tolist() == [2.0] * 4


def test_only_the_platform_module_talks_to_devices() -> None:
    """Streams, events, graphs and device queries stay in `platforms`."""
    root = Path(di_engine.__file__).parent
    offenders = []
    for file in root.rglob("*.py"):
        if file.is_relative_to(root / "platforms"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_torch = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "torch"
            if is_torch and node.attr in {"cuda", "npu", "accelerator"}:
                offenders.append(f"{file.relative_to(root)}:{node.lineno}")
    assert offenders == []


def test_only_the_configuration_reads_the_environment() -> None:
    root = Path(di_engine.__file__).parent
    readers = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
        if getattr(node.value, "id", "") == "os"
    }
    assert readers == {"config/engine_config.py"}
