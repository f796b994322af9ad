"""Builds wheels into a package index with hashes, and releases single packages.

    python tools/release.py                     every wheel, as it is, into dist/index
    python tools/release.py di-spec             di-spec alone: bump, changelog, commit, tag, wheel
    python tools/release.py di-spec --dry-run   says what would happen and changes nothing

Nothing is uploaded: RELEASING.md says what happens to the folder. How to install from it safely is
in `releasing/index.py` and in the README.
"""

import contextlib
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import Version

from releasing.changelog import bump_of, insert_section, read_fragments, section
from releasing.errors import ReleaseError
from releasing.index import add_wheels, build_wheel
from releasing.packages import (
    BUMPS,
    Package,
    bumped,
    dependents_to_update,
    read_packages,
    replace_requirements,
    set_version,
)

REPOSITORY = Path(__file__).resolve().parents[1]


def git(repository: Path, *arguments: str) -> str:
    """Runs git in the repository and returns what it printed.

    Raises:
        ReleaseError: git failed.
    """
    result = subprocess.run(
        ["git", *arguments], cwd=repository, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise ReleaseError(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.rstrip("\n")


def build_index(packages: list[Package], index: Path) -> None:
    """Builds the wheels of `packages` and adds them to an index folder."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels = {}
        for package in packages:
            typer.echo(f"building {package.name} {package.version}", err=True)
            wheels[package.name] = build_wheel(package, Path(scratch))
        add_wheels(index, wheels)
    for name, wheel in wheels.items():
        typer.echo(str(index / name / wheel.name))


def check_releasable(repository: Path, package: Package, version: Version) -> None:
    """Checks that the tree is clean and the version was not released before.

    Raises:
        ReleaseError: With every reason why not.
    """
    problems = []
    if changes := git(repository, "status", "--porcelain"):
        files = "\n  ".join(changes.splitlines()[:10])
        problems.append(f"the working tree is not clean, commit or remove:\n  {files}")
    tag = f"{package.name}-v{version}"
    if git(repository, "tag", "--list", tag):
        problems.append(f"the tag {tag} exists: choose another --bump")
    if not package.changelog.is_file():
        problems.append(f"{package.changelog} is missing")
    if problems:
        raise ReleaseError("\n".join(problems))


@contextlib.contextmanager
def undone_on_error(repository: Path) -> Iterator[None]:
    """Brings a tree that was clean before back to its last commit when the body fails."""
    try:
        yield
    except BaseException:
        git(repository, "reset", "--quiet")
        git(repository, "checkout", "--quiet", "--", ".")
        git(repository, "clean", "--quiet", "-d", "--force", "packages")
        raise


def release_package(
    repository: Path, package: Package, bump: str, date: str, *, dry_run: bool
) -> Package | None:
    """Bumps, compiles the changelog, commits and tags one package.

    Args:
        repository: Root of the repository.
        package: What to release.
        bump: `major`, `minor`, `patch`, `none` (the version stays), or `auto` (by the fragments).
        date: Day of the release, ISO 8601.
        dry_run: Say what would happen and change nothing.

    Returns:
        The package with its new version, None in a dry run.

    Raises:
        ReleaseError: The release is not possible; nothing was changed.
    """
    fragments = read_fragments(package.directory)
    if not fragments:
        raise ReleaseError(f"{package.directory}/changes: no fragment, so nothing to release")
    chosen = bump_of(fragments, package.version) if bump == "auto" else bump
    version = package.version if chosen == "none" else bumped(package.version, chosen)
    packages = read_packages(repository)
    updates = dependents_to_update(packages.values(), package.name, version)
    notes = section(version, date, fragments)

    typer.echo(f"{package.name} {package.version} -> {version} ({chosen})", err=True)
    for dependent, lines in updates.items():
        for old, new in lines:
            typer.echo(f"{dependent}: {old} -> {new}", err=True)
    typer.echo(notes, err=True)
    check_releasable(repository, package, version)
    if dry_run:
        typer.echo(f"dry run: would commit, tag {package.name}-v{version}, build", err=True)
        return None

    with undone_on_error(repository):
        set_version(package, version)
        insert_section(package.changelog, notes)
        for fragment in fragments:
            fragment.path.unlink()
        for dependent, lines in updates.items():
            replace_requirements(packages[dependent], lines)
            add_dependent_fragment(packages[dependent], package.name, version)
        released = read_packages(repository)[package.name]
        with tempfile.TemporaryDirectory() as scratch:
            build_wheel(released, Path(scratch))
        git(repository, "add", "--all", "packages")
        git(repository, "commit", "--quiet", "-m", f"{package.name}: release {version}")
    git(repository, "tag", "--annotate", released.tag, "-m", f"{package.name} {version}")
    typer.echo(f"tagged {released.tag}", err=True)
    return released


def add_dependent_fragment(dependent: Package, name: str, version: Version) -> None:
    """Notes in a dependent's changes that it requires another version now."""
    directory = dependent.directory / "changes"
    directory.mkdir(exist_ok=True)
    numbers = [int(path.name.split(".")[0]) for path in directory.glob("[0-9]*.md")]
    path = directory / f"{max(numbers, default=0) + 1}.changed.md"
    path.write_text(f"Requires {name} {version}.\n", encoding="utf-8")


def main(
    package: Annotated[
        str | None, typer.Argument(help="Release this package; without it, build every wheel.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Index folder.")] = REPOSITORY / "dist" / "index",
    bump: Annotated[
        str, typer.Option(help="major, minor, patch, none, or auto (by the changelog fragments).")
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")
    ] = False,
    repository: Annotated[Path, typer.Option(help="Root of the repository.")] = REPOSITORY,
) -> None:
    """Builds every wheel into an index folder, or releases one package."""
    if bump not in {"auto", "none", *BUMPS}:
        raise typer.BadParameter(f"`{bump}` is none of auto, none, {', '.join(BUMPS)}")
    try:
        packages = read_packages(repository)
        if package is None:
            if dry_run:
                for item in packages.values():
                    typer.echo(f"dry run: would build {item.name} {item.version}", err=True)
                return
            build_index(list(packages.values()), out)
            return
        if package not in packages:
            known = ", ".join(packages)
            raise typer.BadParameter(f"no package `{package}`, this repository has: {known}")
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        released = release_package(repository, packages[package], bump, today, dry_run=dry_run)
        if released is not None:
            build_index([released], out)
    except ReleaseError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
