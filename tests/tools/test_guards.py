"""The guards that run before a commit: files, fragments, README examples."""

import re
import tomllib
from pathlib import Path

import pytest

import check_files
import check_fragments
import check_wheels
from releasing.errors import ReleaseError
from releasing.packages import read_packages

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", b"x = [1", "does not parse"),
        ("a.yaml", b"a: [1", "does not parse"),
        ("b.yml", b"a: b: c", "does not parse"),
        ("c.txt", b"-----BEGIN RSA PRIVATE" + b" KEY-----\n", "private key"),
        ("d.py", b"x = 1\n" + b"<" * 7 + b" HEAD\n", "merge conflict"),
        ("e.bin", b"\0" * 1_000_001, "1,000,001 bytes, the limit here is 1,000,000"),
    ],
)
def test_a_bad_file_is_named_with_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    words: str,
) -> None:
    monkeypatch.setattr(check_files, "REPOSITORY", tmp_path)
    (tmp_path / name).write_bytes(content)
    assert check_files.main([name]) == 1
    output = capsys.readouterr().err
    assert output.startswith(f"{name}: ")
    assert words in output


def test_good_files_pass_and_missing_ones_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_files, "REPOSITORY", tmp_path)
    (tmp_path / "a.toml").write_text("x = 1")
    (tmp_path / "b.yml").write_text("emoji: !!python/name:material.extensions.emoji.twemoji")
    (tmp_path / "c.bin").write_bytes(b"\0" * 1_000_000)
    assert check_files.main(["a.toml", "b.yml", "c.bin", "deleted.py"]) == 0


def test_the_built_in_checkpoint_may_be_larger() -> None:
    tiny = "packages/di-engine/src/di_engine/tiny/model.safetensors"
    assert check_files.max_bytes(tiny) == 8_000_000
    assert check_files.max_bytes("docs/index.md") == 1_000_000


def test_a_changed_package_needs_a_fragment(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_fragments, "REPOSITORY", repository)
    assert check_fragments.main(["packages/di-spec/src/di_spec/verify.py"]) == 0
    assert check_fragments.main(["packages/di-engine/README.md", "docs/index.md"]) == 0
    assert check_fragments.main(["packages/di-engine/src/di_engine/x.py"]) == 1
    assert "packages/di-engine: its sources changed" in capsys.readouterr().err


def test_a_misnamed_fragment_is_found_in_any_package(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_fragments, "REPOSITORY", repository)
    (repository / "packages/di-spec/changes/new-door.md").write_text("x")
    assert check_fragments.main([]) == 1
    assert "new-door.md" in capsys.readouterr().err


def test_the_first_python_block_of_a_readme_is_its_example(repository: Path) -> None:
    package = read_packages(repository)["di-spec"]
    readme = package.directory / "README.md"
    readme.write_text("# T\n\n```console\nls\n```\n\n```python\na = 1\n```\n\n```python\nb\n```\n")
    assert check_wheels.readme_example(package) == "a = 1\n"
    readme.write_text("# T\n")
    with pytest.raises(ReleaseError, match="no ```python block"):
        check_wheels.readme_example(package)


@pytest.mark.parametrize("package", read_packages(REPOSITORY).values(), ids=lambda p: p.name)
def test_every_package_is_complete(package: check_wheels.Package) -> None:
    module = package.directory / "src" / package.name.replace("-", "_")
    needed = [package.directory / name for name in ("README.md", "CHANGELOG.md", "LICENSE")]
    needed += [module / "py.typed", package.directory / "tests"]
    assert [str(path) for path in needed if not path.exists()] == []
    stated = re.search(r'^__version__ = "(.*)"$', (module / "__init__.py").read_text(), re.M)
    assert stated is None or stated[1] == str(package.version)
    example = check_wheels.readme_example(package).strip()
    assert len(example.splitlines()) < 15


@pytest.mark.parametrize("package", read_packages(REPOSITORY).values(), ids=lambda p: p.name)
def test_every_package_is_known_to_the_house(package: check_wheels.Package) -> None:
    module = package.name.replace("-", "_")
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
    linter = settings["importlinter"]
    assert module in linter["root_packages"]
    if package.name != "di-engine":
        for contract in linter["contracts"][:2]:
            assert module in contract.get("modules", []) + contract.get("source_modules", [])
    assert module in settings["ruff"]["lint"]["isort"]["known-first-party"]
    for page in ("README.md", "CHANGELOG.md", "docs/architecture.md", "mkdocs.yml"):
        assert package.name in (REPOSITORY / page).read_text(), page
