"""The known platforms, and the choice of a device by name."""

from __future__ import annotations

import logging

from di_engine.errors import ConfigError, UnsupportedEnvironmentError
from di_engine.platforms.base import Device, Platform
from di_engine.platforms.cpu import CpuPlatform
from di_engine.platforms.cuda import CudaPlatform

__all__ = ["platforms", "register_platform", "resolve_device", "unregister_platform"]

_log = logging.getLogger(__name__)

AUTO = "auto"

# Filled at import and by `register_platform`: a registry of code, not of request state.
_PLATFORMS: dict[str, Platform] = {}


def register_platform(platform: Platform) -> None:
    """Makes a platform selectable by its name and by `device=auto`.

    Raises:
        ValueError: The name is taken, or is not a plain word.
    """
    if platform.name in _PLATFORMS or platform.name == AUTO or not platform.name.isidentifier():
        raise ValueError(
            f"platform name: {platform.name!r}, expected a word other than {[AUTO, *_PLATFORMS]}"
        )
    _PLATFORMS[platform.name] = platform


def unregister_platform(name: str) -> None:
    """Removes a platform; unknown names are a `KeyError`."""
    del _PLATFORMS[name]


def platforms() -> tuple[Platform, ...]:
    """Returns the known platforms, the most preferred first."""
    return tuple(sorted(_PLATFORMS.values(), key=lambda p: -p.priority))


def resolve_device(device: str = AUTO) -> Device:
    """Returns the device that a name stands for, and logs the choice.

    Args:
        device: `auto` for the first device of the most preferred available platform, a platform
            name for its first device, or `NAME:INDEX`.

    Raises:
        ConfigError: The name is not that of a platform, or the index is not a number.
        UnsupportedEnvironmentError: The platform or the index does not exist on this machine.
    """
    if device == AUTO:
        platform = next(p for p in platforms() if p.device_count() > 0)
        index = 0
    else:
        platform, index = _parse(device)
    count = platform.device_count()
    if count == 0:
        raise UnsupportedEnvironmentError(
            f"`device`: {device}: {platform.unavailable_reason()}; use `device`: cpu, or `auto`"
        )
    if index >= count:
        raise UnsupportedEnvironmentError(
            f"`device`: {device}: this machine has {count} `{platform.name}` device(s), allowed "
            f"indices: 0 to {count - 1}"
        )
    chosen = Device(platform, index, platform.torch_device(index), platform.device_name(index))
    _log.info(
        "device: %s -> %s (%s, %s)",
        device,
        chosen.torch_device,
        chosen.name,
        platform.capability(index),
    )
    return chosen


def _parse(device: str) -> tuple[Platform, int]:
    name, colon, number = device.partition(":")
    platform = _PLATFORMS.get(name)
    is_index = number.isascii() and number.isdigit()
    if platform is None or (colon and not is_index):
        names = ", ".join([AUTO, *(f"{p.name}[:INDEX]" for p in platforms())])
        raise ConfigError(f"`device`: {device}, allowed: {names}")
    return platform, int(number) if colon else 0


for _platform in (CpuPlatform(), CudaPlatform()):
    register_platform(_platform)
