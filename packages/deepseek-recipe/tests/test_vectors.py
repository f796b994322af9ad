"""Golden cases under `compat="official"`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_cases import VECTORS

FILES = sorted(VECTORS.glob("*.jsonl"))


def test_number_of_cases() -> None:
    lines = [
        line
        for path in FILES
        for line in path.read_text(encoding="utf-8").split("\n")
        if line.strip()
    ]
    assert len(lines) == 747
    assert len({json.loads(line)["id"] for line in lines}) == 747


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_of_a_file(checker: Any, official: Any, path: Path) -> None:
    total, equal, reports = checker.check_file(official, path, limit=10)
    assert total.total() > 0
    assert equal == total, "\n".join(reports)


def test_differences_are_found(checker: Any, official: Any, tmp_path: Path) -> None:
    case = next(json.loads(line) for line in FILES[0].read_text(encoding="utf-8").split("\n"))
    case["expected"] = {"ok": {"model": "another"}}
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps(case), encoding="utf-8")
    total, equal, reports = checker.check_file(official, wrong, limit=1)
    assert (total.total(), equal.total(), len(reports)) == (1, 0, 1)
