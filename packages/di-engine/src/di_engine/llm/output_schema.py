"""The package that knows output schemas, `di_structured`, which is optional."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

from di_engine.errors import UnsupportedEnvironmentError

__all__ = ["import_structured", "is_output_schema"]


def is_output_schema(value: object) -> bool:
    """Whether a value may stand for an output schema; what it holds is judged later."""
    if isinstance(value, Mapping):
        return True
    try:
        structured = import_structured()
    except UnsupportedEnvironmentError:
        return False
    return isinstance(value, structured.OutputSchema)


def import_structured() -> ModuleType:
    """The package, without torch and without xgrammar.

    Raises:
        UnsupportedEnvironmentError: If it is not installed.
    """
    try:
        return importlib.import_module("di_structured")
    except ImportError:
        raise UnsupportedEnvironmentError(
            "`output_schema` needs the package `di-structured` of this project: install its wheel, "
            "or `di-engine[structured]`, from the project's own index"
        ) from None
