"""The built-in checkpoint: small, in the release formats, with every mechanism switched on.

It is made by `tools/make_tiny.py`. Its weights are random: it shows that everything runs, and says
nothing sensible.
"""

from pathlib import Path

__all__ = ["NAME", "directory"]

NAME = "tiny"
"""What `model.path` calls it."""


def directory() -> Path:
    """Returns the directory of the built-in checkpoint."""
    return Path(__file__).parent / "checkpoint"
