"""Relative links outside the documentation site, which mkdocs checks itself, lead somewhere."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("packages/*/*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
# Words of machines and registries have no place in a text about the project.
FOREIGN = re.compile(r"(?<![\w.])/(?:root|work|tmp|home)/|pypi\.org/simple|localhost:\d+/simple")


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_relative_links_exist(file: Path) -> None:
    targets = LINK.findall(file.read_text(encoding="utf-8"))
    assert [target for target in targets if not (file.parent / target).exists()] == []


@pytest.mark.parametrize(
    "file",
    [*FILES, *sorted(REPOSITORY.glob("docs/**/*.md"))],
    ids=lambda path: str(path.relative_to(REPOSITORY)),
)
def test_texts_speak_of_no_machine(file: Path) -> None:
    assert FOREIGN.findall(file.read_text(encoding="utf-8")) == []
