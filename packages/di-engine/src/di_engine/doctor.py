"""What this machine offers to the engine: device, versions, kernels, configuration."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

import di_kernels
from di_engine.config import EngineConfig
from di_engine.errors import UnsupportedEnvironmentError
from di_engine.platforms import platforms, resolve_device

__all__ = ["ConfigValue", "Diagnosis", "diagnose", "package_versions"]

_PACKAGES = (
    "di-engine",
    "di-kernels",
    "di-scheduler",
    "di-spec",
    "di-structured",
    "di-parallel",
    "deepseek-recipe",
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "huggingface-hub",
    "pydantic",
    "tilelang",
    "deepinfer-gemm",
    "deepinfer-flashmla",
    "xgrammar",
)


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One configuration value and where it came from."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `di doctor` prints.

    Attributes:
        device: Facts about the chosen device by name; empty if there is a problem with it.
        device_problem: Why the configured device cannot be used; empty if it can.
        platforms: Usable devices of every known platform.
        versions: Version by distribution; None if it is not installed.
        host: Python, operating system, cores.
        kernels: One entry per op: serving backend and why not the others.
        config: Every configuration value.
    """

    device: dict[str, str | int]
    device_problem: str
    platforms: dict[str, int]
    versions: dict[str, str | None]
    host: dict[str, str | int]
    kernels: list[dict[str, Any]]
    config: list[ConfigValue]

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON values."""
        return asdict(self)


def diagnose(config: EngineConfig) -> Diagnosis:
    """Looks at the machine under a configuration. Loads no model and launches no kernel."""
    device: dict[str, str | int] = {}
    problem, kernels_on = "", torch.device("cpu")
    try:
        chosen = resolve_device(config.device)
    except UnsupportedEnvironmentError as error:
        problem = str(error)
    else:
        kernels_on = chosen.torch_device
        device = {
            "torch_device": str(chosen.torch_device),
            "name": chosen.name,
            "capability": chosen.platform.capability(chosen.index),
            "total_bytes": chosen.platform.total_memory(chosen.index),
            "available_bytes": chosen.available_memory(),
        }
    origins = config.origins()
    return Diagnosis(
        device=device,
        device_problem=problem,
        platforms={known.name: known.device_count() for known in platforms()},
        versions=package_versions(),
        host={
            "python": platform.python_version(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cores": os.cpu_count() or 1,
            "torch_threads": torch.get_num_threads(),
        },
        kernels=[asdict(service) for service in di_kernels.describe(kernels_on)],
        config=[ConfigValue(k, v, origins[k]) for k, v in config.values().items()],
    )


def package_versions() -> dict[str, str | None]:
    """Installed version of each distribution that matters; None if it is absent."""
    versions: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
