"""The built-in checkpoint: small, in the release formats, with every mechanism switched on.

It is trained by `tools/train_tiny.py` on documentation, program text and generated chats, for a
few minutes: it writes what looks like English and Python, and what it says is not true. Its
model card, `checkpoint/README.md`, tells the data, the licences and what was measured.
"""

from pathlib import Path

__all__ = ["NAME", "directory"]

NAME = "tiny"
"""What `model.path` calls it."""


def directory() -> Path:
    """Returns the directory of the built-in checkpoint."""
    return Path(__file__).parent / "checkpoint"
