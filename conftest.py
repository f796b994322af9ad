"""Pytest settings of the whole repository: hypothesis profile, opt-in markers, hardware markers."""

import functools
import importlib.util
import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the switches for the tests that never run by default."""
    group = parser.getgroup("di")
    group.addoption("--run-network", action="store_true", help="run tests marked `network`")
    group.addoption("--run-benchmark", action="store_true", help="run tests marked `benchmark`")


def pytest_configure(config: pytest.Config) -> None:
    """Sets hypothesis up: no deadlines (machines are shared), a blob that reproduces a failure.

    Test processes share the cores: each starts that many threads less. They inherit the setting
    from here, before any of them imports torch.
    """
    if num_processes := len(getattr(config.option, "tx", None) or ()):
        cores = os.cpu_count() or 1
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // num_processes))
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import settings

        settings.register_profile("di", deadline=None, print_blob=True)
        settings.load_profile("di")


@functools.cache
def cuda_capabilities() -> tuple[tuple[int, int], ...]:
    """Returns the compute capability of every visible CUDA device, empty without torch or CUDA."""
    if importlib.util.find_spec("torch") is None:
        return ()
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))


def skip_reason(item: pytest.Item) -> str | None:
    """Returns why `item` cannot run here, or None when it can."""
    for name in ("network", "benchmark"):
        if item.get_closest_marker(name) and not item.config.getoption(f"--run-{name}"):
            return f"marked `{name}`: add --run-{name}"
    hardware = [m for m in ("gpu", "sm90", "sm100", "multi_gpu") if item.get_closest_marker(m)]
    if not hardware:
        return None
    capabilities = cuda_capabilities()
    if not capabilities:
        return f"marked `{hardware[0]}`: no CUDA device here"
    major = capabilities[0][0]
    if "sm90" in hardware and major != 9:
        return f"marked `sm90`: this device has compute capability {major}.x"
    if "sm100" in hardware and major != 10:
        return f"marked `sm100`: this device has compute capability {major}.x"
    if "multi_gpu" in hardware and len(capabilities) < 2:
        return "marked `multi_gpu`: one CUDA device here"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips, with the reason, what this machine or this command line does not allow."""
    for item in items:
        if reason := skip_reason(item):
            item.add_marker(pytest.mark.skip(reason=reason))
