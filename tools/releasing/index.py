"""Builds wheels of this repository and lays them out as a package index (PEP 503) with hashes.

An index folder holds, for one platform:

    index.html                 links to the projects
    di-spec/index.html         links to the wheels, each with its SHA-256
    di-spec/di_spec-....whl
    constraints.txt            our distributions, each as one wheel by URL and SHA-256

`constraints.txt` is what makes an installation safe. Some of our names belong to other projects on
the public index, and installers choose between indexes by rules of their own (pip: the highest
version anywhere; uv: the first index that knows the name). A constraint that is a URL leaves no
choice: that name is this file with this hash, or the installation fails, while torch and all other
names come from the ordinary index.
"""

import hashlib
import html
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import parse_wheel_filename

from releasing.errors import ReleaseError
from releasing.packages import Package

# Installers replace this, in requirement files, with the environment variable of that name. It
# does not begin with DI_: those variables configure the engine, which refuses unknown ones.
INDEX_VARIABLE = "${WHEEL_INDEX}"
PAGE = """<!DOCTYPE html>
<html>
  <head>
    <meta name="pypi:repository-version" content="1.0">
    <title>{title}</title>
  </head>
  <body>
{links}
  </body>
</html>
"""


def build_wheel(package: Package, out_dir: Path) -> Path:
    """Builds the wheel of one package with its own build backend, in isolation.

    The source distribution comes first and the wheel is built from it, in a folder elsewhere: so
    each release proves that the source distribution needs nothing else of the repository.

    Args:
        package: What to build.
        out_dir: Existing folder that receives the wheel.

    Returns:
        Path of the wheel.

    Raises:
        ReleaseError: The build failed; its output is in the message.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = ["uv", "build", "--out-dir", scratch, str(package.directory)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        sources = sorted(Path(scratch).glob("*.tar.gz"))
        wheels = sorted(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or len(sources) != 1 or len(wheels) != 1:
            raise ReleaseError(
                f"{package.name}: the wheel does not build:\n{result.stderr.strip()}"
            )
        wheel = wheels[0]
        name, version, _, _ = parse_wheel_filename(wheel.name)
        if name != package.name or version != package.version:
            raise ReleaseError(
                f"{package.name}: built {wheel.name}, expected version {package.version}"
            )
        return Path(shutil.copy2(wheel, out_dir / wheel.name))


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def requires_python(wheel: Path) -> str | None:
    """Returns the `Requires-Python` field of a wheel, None when it has none."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        value = HeaderParser().parsestr(archive.read(name).decode("utf-8")).get("Requires-Python")
    return None if value is None else str(value)


def add_wheels(index: Path, wheels: Mapping[str, Path]) -> None:
    """Puts wheels into an index folder and writes its pages and `constraints.txt` anew.

    Wheels of other versions that the folder already holds stay listed; the constraints name, for
    every distribution, the wheel given here, or else the newest one of the folder.

    Args:
        index: The folder, made when missing.
        wheels: Wheel files by normalised distribution name.

    Raises:
        ReleaseError: The folder holds a different wheel of the same name: released files never
            change.
    """
    for name, wheel in wheels.items():
        target = index / name / wheel.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and sha256(target) != sha256(wheel):
            raise ReleaseError(
                f"{target} exists with other contents: raise the version, or use an empty folder"
            )
        if not target.exists():
            shutil.copy2(wheel, target)
    write_pages(index)
    write_constraints(index, {name: index / name / wheel.name for name, wheel in wheels.items()})


def wheels_of(directory: Path) -> list[Path]:
    """Returns the wheels of a project folder, oldest version first."""
    return sorted(directory.glob("*.whl"), key=lambda path: parse_wheel_filename(path.name)[1])


def projects_of(index: Path) -> list[Path]:
    """Returns the project folders of an index, by name."""
    return sorted(path for path in index.iterdir() if path.is_dir() and wheels_of(path))


def write_pages(index: Path) -> None:
    """Writes the HTML pages that installers read."""
    links = [f'    <a href="{path.name}/">{path.name}</a><br>' for path in projects_of(index)]
    write_page(index, "di", links)
    for project in projects_of(index):
        links = []
        for wheel in wheels_of(project):
            python = requires_python(wheel)
            attribute = f' data-requires-python="{html.escape(python)}"' if python else ""
            link = f"{wheel.name}#sha256={sha256(wheel)}"
            links.append(f'    <a href="{link}"{attribute}>{wheel.name}</a><br>')
        write_page(project, project.name, links)


def write_page(directory: Path, title: str, links: Sequence[str]) -> None:
    """Writes `index.html` of one folder."""
    page = PAGE.format(title=html.escape(title), links="\n".join(links))
    (directory / "index.html").write_text(page, encoding="utf-8")


def write_constraints(index: Path, chosen: Mapping[str, Path]) -> None:
    """Writes `constraints.txt`: one line per distribution, a URL with its hash.

    Args:
        index: The index folder.
        chosen: The wheel to name, by distribution; the newest one where nothing is chosen.
    """
    lines = [
        "# Our distributions, each as one wheel by URL and SHA-256. Set WHEEL_INDEX to the URL",
        '# of this folder, then: pip install --constraint "$WHEEL_INDEX/constraints.txt" di-engine',
    ]
    for project in projects_of(index):
        wheel = chosen.get(project.name, wheels_of(project)[-1])
        url = f"{INDEX_VARIABLE}/{project.name}/{wheel.name}#sha256={sha256(wheel)}"
        lines.append(f"{project.name} @ {url}")
    (index / "constraints.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
