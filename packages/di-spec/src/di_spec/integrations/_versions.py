"""Which engine is installed, and whether its plug-in points are known here."""

import importlib.metadata
import re
from collections.abc import Sequence

from di_spec.errors import UnsupportedEngineError

__all__ = ["require_engine"]


def require_engine(distributions: Sequence[str], supported: Sequence[str]) -> str:
    """The installed version of an engine.

    Args:
        distributions: Names the engine is distributed under.
        supported: Version series, such as "0.33".

    Raises:
        UnsupportedEngineError: If none is installed, or its version is of another series.
    """
    for name in distributions:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        series = re.match(r"\d+\.\d+", version)
        if series is None or series.group() not in supported:
            raise UnsupportedEngineError(
                f"di_spec knows the plug-in points of {name} {', '.join(supported)}: found "
                f"{version}; install one of those, or check the adapter against yours"
            )
        return version
    raise UnsupportedEngineError(
        f"this adapter needs {' or '.join(distributions)} ({', '.join(supported)}), which is not "
        "installed"
    )
