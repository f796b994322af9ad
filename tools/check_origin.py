"""Proves that the distributions of this repository were installed from this repository.

Two of our names belong to other people on the public index (`di-engine` is another project,
`deepseek-recipe` is DeepSeek's own), and the rest could be registered by anybody. An installer
that is asked in the wrong way takes those without a word. So every environment is checked after
it was made (`C` is short for `python tools/check_origin.py`):

    C                                       an environment of hatch: all editable, from here
    C --absent deepseek-recipe              the demo environment
    C --wheels dist/index --only di-spec    installed from wheels that tools/release.py built
    C --site-packages DIR ...               an environment of another interpreter

Only the standard library is used, because this runs inside the environment that it checks,
whatever that contains. Exit codes: 0 all ours, 1 something is not, 2 wrong use.
"""

import argparse
import dataclasses
import hashlib
import json
import re
import sys
import tomllib
import urllib.parse
import urllib.request
import zipfile
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# Names on the public index that hold a place for other projects: never in an environment of ours.
# What they seem to be comes from distributions of other names, which may bring the package.
PLACEHOLDERS = {
    "deep-ep": "deepinfer-ep",
    "deep-gemm": "deepinfer-gemm",
    "flash-mla": "deepinfer-flashmla",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A distribution of this repository.

    Attributes:
        name: Normalised distribution name, `di-spec`.
        version: Version in its `pyproject.toml`; None when its backend reads it elsewhere.
        directory: Its folder.
    """

    name: str
    version: str | None
    directory: Path

    @property
    def import_name(self) -> str:
        """Name of the package it installs."""
        return self.name.replace("-", "_")


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one distribution.

    Attributes:
        name: Distribution name.
        version: Installed version, `-` when it is not installed.
        origin: Where it came from, in words.
        problem: What is wrong, None when nothing is.
    """

    name: str
    version: str
    origin: str
    problem: str | None = None


def normalise(name: str) -> str:
    """Returns a distribution name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_members(repository: Path) -> dict[str, Member]:
    """Reads the distributions of the repository from `packages/*/pyproject.toml`.

    Returns:
        Members by normalised name.
    """
    members = {}
    for file in sorted(repository.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name = normalise(project["name"])
        members[name] = Member(name, project.get("version"), file.parent)
    return members


def installed_distributions(
    site_packages: Sequence[Path] | None,
) -> dict[str, list[metadata.Distribution]]:
    """Returns the installed distributions by normalised name, two entries for one found twice."""
    found: dict[str, list[metadata.Distribution]] = {}
    distributions = (
        metadata.distributions(path=[str(path) for path in site_packages])
        if site_packages
        else metadata.distributions()
    )
    seen = set()
    for distribution in distributions:
        name = distribution.metadata["Name"]
        key = (name, distribution.version, str(distribution.locate_file("")))
        # A folder that is on the path twice gives its distributions twice.
        if key in seen:
            continue
        seen.add(key)
        found.setdefault(normalise(name), []).append(distribution)
    return found


def path_of_url(url: str) -> Path | None:
    """Returns the local path of a `file:` URL, None for any other URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        return None
    return Path(urllib.request.url2pathname(parts.path)).resolve()


def check_editable(member: Member, distribution: metadata.Distribution) -> Finding:
    """Checks a distribution that must be an installation of the folder `member.directory`."""
    version = distribution.version
    text = distribution.read_text("direct_url.json")
    if text is None:
        return Finding(member.name, version, "an index", "was taken from an index, not from here")
    url = str(json.loads(text).get("url", ""))
    path = path_of_url(url)
    if path != member.directory.resolve():
        return Finding(member.name, version, url, f"must come from {member.directory}")
    if member.version is not None and member.version != version:
        problem = f"the repository has version {member.version}: make the environment again"
        return Finding(member.name, version, url, problem)
    return Finding(member.name, version, url)


def find_wheels(directory: Path, member: Member) -> list[Path]:
    """Returns the wheels of `member` anywhere under `directory`."""
    prefix = f"{member.import_name}-"
    return sorted(path for path in directory.rglob("*.whl") if path.name.startswith(prefix))


def wheel_file_hashes(wheel: Path) -> dict[str, str]:
    """Returns the SHA-256 (hex) of every file in a wheel, its metadata's RECORD left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if not name.endswith((".dist-info/RECORD", "/"))
        }


def recorded_hash(record: metadata.FileHash | None) -> str | None:
    """Returns the SHA-256 (hex) that RECORD states for a file, None without one."""
    if record is None or record.mode != "sha256":
        return None
    value = record.value + "=" * (-len(record.value) % 4)
    return urlsafe_b64decode(value).hex()


def check_wheel(member: Member, distribution: metadata.Distribution, wheels: Path) -> Finding:
    """Checks that an installed distribution is, file by file, one of our wheels.

    An installer leaves a `direct_url.json` only when it was given a file or URL, so a wheel that
    came from an index is recognised by what it holds: every file of the wheel is installed, with
    the same bytes.
    """
    version = distribution.version
    candidates = [
        wheel for wheel in find_wheels(wheels, member) if wheel.name.split("-")[1] == version
    ]
    if not candidates:
        return Finding(member.name, version, "?", f"no wheel of this version under {wheels}")
    installed = {str(file): file for file in distribution.files or ()}
    differing: list[str] = []
    for wheel in candidates:
        differing = []
        for name, expected in wheel_file_hashes(wheel).items():
            file = installed.get(name)
            path = Path(str(file.locate())) if file is not None else None
            actual = (
                hashlib.sha256(path.read_bytes()).hexdigest()
                if path is not None and path.is_file()
                else None
            )
            if actual != expected or (file and recorded_hash(file.hash) not in {None, expected}):
                differing.append(name)
        if not differing:
            return Finding(member.name, version, f"{wheel.name}, every file equal")
    problem = f"differs from {candidates[-1].name} in {', '.join(differing[:3])}"
    return Finding(member.name, version, "?", problem)


def check_members(
    members: Iterable[Member],
    installed: dict[str, list[metadata.Distribution]],
    wheels: Path | None,
) -> list[Finding]:
    """Checks that each member is installed, once, from the repository or from our wheels."""
    findings = []
    for member in members:
        distributions = installed.get(member.name, [])
        if not distributions:
            findings.append(Finding(member.name, "-", "-", "is not installed"))
        elif len(distributions) > 1:
            versions = ", ".join(distribution.version for distribution in distributions)
            findings.append(Finding(member.name, versions, "?", "is installed more than once"))
        elif wheels is None:
            findings.append(check_editable(member, distributions[0]))
        else:
            findings.append(check_wheel(member, distributions[0], wheels))
    return findings


def check_absent(
    names: Iterable[str],
    installed: dict[str, list[metadata.Distribution]],
    owners: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Checks that no distribution of these names is installed, nor the package they bring.

    Args:
        names: Normalised names that must be absent.
        installed: Installed distributions by name.
        owners: By such a name, the distribution that may bring its package.
    """
    packages = {
        package: name
        for name, distributions in installed.items()
        for distribution in distributions
        for package in _packages_of(distribution)
    }
    findings = []
    for name in names:
        if distributions := installed.get(name):
            version = distributions[0].version
            findings.append(Finding(name, version, "?", "must not be installed here"))
        elif (owner := packages.get(name.replace("-", "_"))) and (
            owners is None or owner != owners.get(name)
        ):
            problem = f"its package must not be here, {owner} installed it"
            findings.append(Finding(name, "-", "?", problem))
        else:
            findings.append(Finding(name, "-", "absent, as it must be"))
    return findings


def _packages_of(distribution: metadata.Distribution) -> set[str]:
    """Folders at the top of a distribution; read as text, for some list ten thousands of files."""
    record = distribution.read_text("RECORD") or ""
    return {line.partition("/")[0] for line in record.splitlines() if "/" in line}


def parse_arguments(arguments: Sequence[str] | None, names: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `names` are the distributions that may be named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--absent", nargs="+", default=[], metavar="NAME", help="must not be installed"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="expect these alone (default: all)"
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="installed from the wheels under DIR, not editable",
    )
    parser.add_argument(
        "--site-packages",
        type=Path,
        action="append",
        metavar="DIR",
        help="check this folder instead of the running interpreter",
    )
    options = parser.parse_args(arguments)
    for name in options.only or []:
        if normalise(name) not in names:
            parser.error(f"unknown distribution `{name}`, this repository has: {', '.join(names)}")
    for directory in [options.wheels, *(options.site_packages or [])]:
        if directory is not None and not directory.is_dir():
            parser.error(f"no such folder: {directory}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks an environment and prints one line per distribution.

    Returns:
        0 when every distribution is ours, 1 otherwise.
    """
    members = read_members(REPOSITORY)
    options = parse_arguments(arguments, list(members))
    absent = [normalise(name) for name in options.absent]
    expected = [normalise(name) for name in options.only or members]
    # With --only, a sibling that came along must be ours too.
    installed = installed_distributions(options.site_packages)
    alongside = [name for name in members if name in installed and name not in expected]
    checked = [
        members[name] for name in dict.fromkeys([*expected, *alongside]) if name not in absent
    ]
    findings = check_members(checked, installed, options.wheels)
    findings += check_absent(absent, installed)
    findings += [
        finding
        for finding in check_absent(PLACEHOLDERS, installed, PLACEHOLDERS)
        if finding.problem is not None
    ]
    for finding in findings:
        state = "ok  " if finding.problem is None else "FAIL"
        print(
            f"{state} {finding.name:<16} {finding.version:<8} {finding.problem or finding.origin}"
        )
    failures = [finding for finding in findings if finding.problem is not None]
    if failures:
        print(
            f"{len(failures)} of {len(findings)} wrong: remove the environment "
            "(`hatch env remove NAME`) and make it again from the root of the repository",
            file=sys.stderr,
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
