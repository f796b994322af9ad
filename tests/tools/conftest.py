"""A repository in miniature: two packages of ours that build offline, in git."""

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

# A build backend in a few lines, so that building needs neither an index nor another package.
BACKEND = """
import base64, hashlib, pathlib, tarfile, tomllib, zipfile

SOURCES = ["pyproject.toml", "backend.py", "src"]

def build_sdist(directory, config_settings=None):
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    root = f"{project['name'].replace('-', '_')}-{project['version']}"
    with tarfile.open(pathlib.Path(directory, f"{root}.tar.gz"), "w:gz") as archive:
        for name in SOURCES:
            archive.add(name, f"{root}/{name}")
        archive.addfile(tarfile.TarInfo(f"{root}/PKG-INFO"))
    return f"{root}.tar.gz"

def build_wheel(directory, config_settings=None, metadata_directory=None):
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info = f"{name}-{version}.dist-info"
    fields = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}"]
    fields += [f"Requires-Dist: {line}" for line in project.get("dependencies", [])]
    files = {
        f"{name}/__init__.py": project.get("description", ""),
        f"{info}/METADATA": "\\n".join(fields) + "\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: toy\\n"
        "Root-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = ""
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, wheel), "w") as archive:
        for path, text in files.items():
            digest = hashlib.sha256(text.encode()).digest()
            value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            record += f"{path},sha256={value},{len(text.encode())}\\n"
            archive.writestr(zipfile.ZipInfo(path), text)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), f"{record}{info}/RECORD,,\\n")
    return wheel
"""


def write_project(
    directory: Path, name: str, version: str, dependencies: list[str], note: str
) -> None:
    """Writes a package that `BACKEND` builds; `note` is what its module contains."""
    directory.mkdir(parents=True)
    requirements = ", ".join(f'"{line}"' for line in dependencies)
    (directory / "backend.py").write_text(BACKEND)
    module = directory / "src" / name.replace("-", "_")
    module.mkdir(parents=True)
    (module / "__init__.py").write_text(f'"""Toy."""\n\n__version__ = "{version}"\n')
    (directory / "pyproject.toml").write_text(
        textwrap.dedent(f"""\
            [build-system]
            requires = []
            build-backend = "backend"
            backend-path = ["."]

            [project]
            # The comment stays when the version changes.
            name = "{name}"
            version = "{version}"
            description = "{note}"
            dependencies = [{requirements}]
            """)
    )


def git(repository: Path, *arguments: str) -> str:
    """Runs git and returns its output."""
    return subprocess.run(
        ["git", *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clean git repository with di-spec 0.1.0 and di-engine 0.1.0, which pins it."""
    root = tmp_path / "repository"
    third_party = "thirdparty>=1.0"
    write_project(root / "packages" / "di-spec", "di-spec", "0.1.0", [], "# ours")
    write_project(
        root / "packages" / "di-engine",
        "di-engine",
        "0.1.0",
        ["di-spec==0.1.0", third_party],
        "# ours",
    )
    for name in ("di-spec", "di-engine"):
        package = root / "packages" / name
        (package / "CHANGELOG.md").write_text(f"# Changelog of {name}\n\nIntroduction.\n")
        (package / "changes").mkdir()
    (root / "packages/di-spec/changes/12.fixed.md").write_text("A fix.\n")
    (root / "packages/di-spec/changes/7.added.md").write_text("A door.\n")
    (root / ".gitignore").write_text("dist/\n")
    git(root, "init", "--quiet")
    git(root, "config", "user.name", "Tester")
    git(root, "config", "user.email", "tester@example.org")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "Begin")
    return root


@pytest.fixture
def run_git(repository: Path) -> Callable[..., str]:
    """Runs git in the repository in miniature."""
    return lambda *arguments: git(repository, *arguments)


@pytest.fixture
def foreign_index(tmp_path: Path) -> Path:
    """An index of strangers: higher versions under our names, and a library that we need."""
    from releasing.index import add_wheels, build_wheel
    from releasing.packages import read_packages

    root = tmp_path / "strangers"
    for name, version in (("di-engine", "9.5.3"), ("di-spec", "9.0.0"), ("thirdparty", "1.2.0")):
        write_project(root / "packages" / name, name, version, [], "# foreign")
    wheels_dir = tmp_path / "foreign-wheels"
    wheels_dir.mkdir()
    packages = read_packages(root)
    wheels = {name: build_wheel(package, wheels_dir) for name, package in packages.items()}
    add_wheels(tmp_path / "foreign-index", wheels)
    return tmp_path / "foreign-index"
