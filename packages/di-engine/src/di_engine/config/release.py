"""The `config.json` of the released DeepSeek-V4.1-Flash, as data.

For planning and for tests without the checkpoint. The refreshed release of October has the same
file. Source: the repository `deepseek-ai/DeepSeek-V4.1-Flash`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["release_config"]


def release_config() -> dict[str, Any]:
    """Returns the object of the released `config.json`, a fresh copy on every call."""
    text = (Path(__file__).parent / "release.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values
