"""The packages of the repository: their versions, and what they require of each other."""

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import tomlkit
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from releasing.errors import ReleaseError

BUMPS = ("major", "minor", "patch")


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """One folder under `packages/`.

    Attributes:
        name: Normalised distribution name, `di-spec`.
        version: Version in the working tree.
        directory: Its folder.
        dependencies: Requirements of `project.dependencies` and all extras, as written.
    """

    name: str
    version: Version
    directory: Path
    dependencies: tuple[str, ...]

    @property
    def project_file(self) -> Path:
        """Its `pyproject.toml`."""
        return self.directory / "pyproject.toml"

    @property
    def changelog(self) -> Path:
        """Its `CHANGELOG.md`."""
        return self.directory / "CHANGELOG.md"

    @property
    def tag(self) -> str:
        """Git tag of its version."""
        return f"{self.name}-v{self.version}"


def read_packages(repository: Path) -> dict[str, Package]:
    """Reads `packages/*/pyproject.toml`.

    Returns:
        Packages by normalised name, in alphabetical order.

    Raises:
        ReleaseError: A package has no static version.
    """
    packages: dict[str, Package] = {}
    for file in sorted(repository.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name = canonicalize_name(project["name"])
        if "version" not in project:
            raise ReleaseError(f"{file}: needs a static `project.version`")
        extras = project.get("optional-dependencies", {}).values()
        dependencies = [
            *project.get("dependencies", []),
            *(line for lines in extras for line in lines),
        ]
        packages[name] = Package(
            name, Version(project["version"]), file.parent, tuple(dependencies)
        )
    return packages


def bumped(version: Version, bump: str) -> Version:
    """Returns the next version.

    Args:
        version: A version of the form X.Y.Z.
        bump: `major`, `minor` or `patch`.
    """
    major, minor, patch = version.major, version.minor, version.micro
    if bump == "major":
        return Version(f"{major + 1}.0.0")
    if bump == "minor":
        return Version(f"{major}.{minor + 1}.0")
    return Version(f"{major}.{minor}.{patch + 1}")


def set_version(package: Package, version: Version) -> None:
    """Writes a new version wherever a package states it.

    That is `pyproject.toml`, `__version__` in its top-level module, and for a Rust extension its
    `Cargo.toml`.
    """
    document = tomlkit.parse(package.project_file.read_text(encoding="utf-8"))
    document["project"]["version"] = str(version)
    package.project_file.write_text(tomlkit.dumps(document), encoding="utf-8")
    module = package.directory / "src" / package.name.replace("-", "_") / "__init__.py"
    if module.is_file():
        text = module.read_text(encoding="utf-8")
        stated = re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', text, flags=re.M)
        module.write_text(stated, encoding="utf-8")
    cargo_file = package.directory / "Cargo.toml"
    if cargo_file.is_file():
        cargo = tomlkit.parse(cargo_file.read_text(encoding="utf-8"))
        crate = cargo.get("package", {})
        if isinstance(crate.get("version"), str):
            crate["version"] = str(version)
            cargo_file.write_text(tomlkit.dumps(cargo), encoding="utf-8")


def range_for(specifier: SpecifierSet, version: Version) -> str:
    """Returns a specifier of the same kind that admits `version`: an exact pin, or a range.

    A range names the lowest tested version and the next one that may break: below 1.0 that is the
    next minor, from 1.0 on the next major.
    """
    if any(item.operator in {"==", "==="} for item in specifier):
        return f"=={version}"
    following = bumped(version, "minor" if version.major == 0 else "major")
    return f">={version},<{following.major}.{following.minor}"


def dependents_to_update(
    packages: Iterable[Package], name: str, version: Version
) -> dict[str, list[tuple[str, str]]]:
    """Finds the requirements on `name` that would not admit `version`.

    Returns:
        For each dependent package, pairs of the requirement as written and as it must become.
    """
    updates: dict[str, list[tuple[str, str]]] = {}
    for package in packages:
        for line in package.dependencies:
            requirement = Requirement(line)
            if canonicalize_name(requirement.name) != name:
                continue
            if requirement.specifier.contains(version, prereleases=True):
                continue
            replacement = range_for(requirement.specifier, version)
            requirement.specifier = SpecifierSet(replacement)
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            new_line = f"{requirement.name}{extras}{replacement}{marker}"
            updates.setdefault(package.name, []).append((line, new_line))
    return updates


def replace_requirements(package: Package, updates: Iterable[tuple[str, str]]) -> None:
    """Replaces requirements in a `pyproject.toml`, leaving everything else as it is written."""
    text = package.project_file.read_text(encoding="utf-8")
    for old, new in updates:
        found = [quote for quote in "'\"" if f"{quote}{old}{quote}" in text]
        if not found:
            raise ReleaseError(f"{package.project_file}: cannot find the requirement `{old}`")
        for quote in found:
            text = text.replace(f"{quote}{old}{quote}", f"{quote}{new}{quote}")
    package.project_file.write_text(text, encoding="utf-8")
