"""The golden cases beside the tests, recorded from DeepSeek's package 0.2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors"


def cases(kind: str) -> Iterator[dict[str, Any]]:
    """Golden cases of a kind."""
    for path in sorted(VECTORS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line and (case := json.loads(line))["kind"] == kind:
                yield case
