"""Devices: one small module per kind, one registry, one way to choose."""

from di_engine.platforms.base import Device, Event, Graph, HostEvent, Platform, Stream
from di_engine.platforms.registry import (
    platforms,
    register_platform,
    resolve_device,
    unregister_platform,
)

__all__ = [
    "Device",
    "Event",
    "Graph",
    "HostEvent",
    "Platform",
    "Stream",
    "platforms",
    "register_platform",
    "resolve_device",
    "unregister_platform",
]
