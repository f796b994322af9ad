"""Configurations that differ from a given one in a few fields."""

from __future__ import annotations

from typing import Any

from di_engine.config import EngineConfig

__all__ = ["variant"]


def variant(config: EngineConfig, **fields: Any) -> EngineConfig:
    """Returns `config` with some fields replaced, by their last names.

    Values that were derived from others are derived again.
    """
    origins = config.origins()
    given = {path: v for path, v in config.values().items() if origins[path] != "default"}
    paths = {path.rsplit(".", 1)[-1]: path for path in EngineConfig.fields()}
    given |= {paths[name]: value for name, value in fields.items()}
    return EngineConfig.load(overrides=given, environ={}, override_origin="argument")
