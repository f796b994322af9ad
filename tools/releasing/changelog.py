"""Changelog fragments: one sentence per change, compiled into `CHANGELOG.md` at a release.

A fragment is `packages/<name>/changes/<number>.<kind>.md`. The number is that of the pull request
or issue; it keeps two changes apart and sorts them, nothing else.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from releasing.errors import ReleaseError

# In the order in which release notes name them: what concerns safety comes first.
KINDS = ("security", "added", "changed", "deprecated", "removed", "fixed")
PATCH_KINDS = frozenset({"security", "fixed"})


@dataclasses.dataclass(frozen=True, slots=True)
class Fragment:
    """One change.

    Attributes:
        path: The file.
        number: Number in its name.
        kind: One of `KINDS`.
        text: What it says, without surrounding blanks.
    """

    path: Path
    number: int
    kind: str
    text: str


def read_fragments(package_dir: Path) -> list[Fragment]:
    """Reads the fragments of a package, by kind and number.

    Raises:
        ReleaseError: A file has a wrong name or is empty; all of them are listed.
    """
    fragments = []
    problems = []
    directory = package_dir / "changes"
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if path.name.startswith("."):
            continue
        match = re.fullmatch(rf"(\d+)\.({'|'.join(KINDS)})\.md", path.name)
        text = path.read_text(encoding="utf-8").strip()
        if match is None:
            problems.append(f"{path}: the name must be <number>.<{'|'.join(KINDS)}>.md")
        elif not text:
            problems.append(f"{path}: is empty")
        else:
            fragments.append(Fragment(path, int(match[1]), match[2], text))
    if problems:
        raise ReleaseError("\n".join(problems))
    return sorted(fragments, key=lambda item: (KINDS.index(item.kind), item.number))


def bump_of(fragments: Sequence[Fragment], version: Version) -> str:
    """Returns the bump that the fragments ask for by semantic versioning.

    Fixes alone are a patch. A removal breaks: from 1.0 on that is a major version, before it a
    minor one, which must then say how to migrate.

    Raises:
        ReleaseError: A removal before 1.0 has no line that starts with `Migration:`.
    """
    if all(fragment.kind in PATCH_KINDS for fragment in fragments):
        return "patch"
    removals = [fragment for fragment in fragments if fragment.kind == "removed"]
    if removals and version.major >= 1:
        return "major"
    silent = [str(f.path) for f in removals if not re.search(r"^Migration:", f.text, re.MULTILINE)]
    if silent:
        raise ReleaseError(
            "a removal must say how to migrate, in a line that starts with `Migration:`: "
            + ", ".join(silent)
        )
    return "minor"


def section(version: Version, date: str, fragments: Sequence[Fragment]) -> str:
    """Returns the changelog section of a release.

    Args:
        version: The released version.
        date: Day of the release, ISO 8601.
        fragments: What changed, by kind.
    """
    lines = [f"## {version} ({date})"]
    for kind in KINDS:
        texts = [fragment.text for fragment in fragments if fragment.kind == kind]
        if texts:
            lines += ["", f"### {kind.capitalize()}", ""]
            lines += [f"- {indented(text)}" for text in texts]
    return "\n".join(lines) + "\n"


def indented(text: str) -> str:
    """Returns a text whose second and later lines stand under a list item."""
    return text.replace("\n", "\n  ")


def insert_section(changelog: Path, text: str) -> None:
    """Puts a section before the newest one of a changelog, after its introduction."""
    current = changelog.read_text(encoding="utf-8")
    match = re.search(r"^## ", current, re.MULTILINE)
    at = match.start() if match else len(current)
    head, tail = current[:at].rstrip("\n"), current[at:]
    changelog.write_text(f"{head}\n\n{text}" + (f"\n{tail}" if tail else ""), encoding="utf-8")
