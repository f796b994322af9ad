"""The release tool: what it changes, what it refuses, what it leaves behind."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from typer.testing import CliRunner

import release
from releasing.changelog import bump_of, insert_section, read_fragments, section
from releasing.errors import ReleaseError
from releasing.packages import Package, bumped, dependents_to_update, range_for, read_packages

DATE = re.compile(r"\d{4}-\d\d-\d\d")


def invoke(repository: Path, *arguments: str) -> tuple[int, str]:
    """Runs the tool; returns its exit code and everything it printed."""
    app = typer.Typer()
    app.command()(release.main)
    command = [*arguments, "--repository", str(repository)]
    result = CliRunner().invoke(app, [*command, "--out", str(repository / "dist" / "index")])
    return result.exit_code, result.output


def test_release_bumps_tags_and_builds_one_package_alone(
    repository: Path, run_git: Callable[..., str]
) -> None:
    code, output = invoke(repository, "di-spec")
    assert code == 0, output
    packages = read_packages(repository)
    assert packages["di-spec"].version == Version("0.2.0")
    assert run_git("tag", "--list").split() == ["di-spec-v0.2.0"]
    assert run_git("status", "--porcelain") == ""
    assert run_git("log", "-1", "--format=%s").strip() == "di-spec: release 0.2.0"
    module = repository / "packages/di-spec/src/di_spec/__init__.py"
    assert module.read_text() == '"""Toy."""\n\n__version__ = "0.2.0"\n'
    assert "The comment stays" in packages["di-spec"].project_file.read_text()
    wheels = sorted(path.name for path in (repository / "dist").rglob("*.whl"))
    assert wheels == ["di_spec-0.2.0-py3-none-any.whl"]


def test_release_compiles_and_removes_the_fragments(repository: Path) -> None:
    invoke(repository, "di-spec")
    text = (repository / "packages/di-spec/CHANGELOG.md").read_text()
    assert DATE.sub("DAY", text) == (
        "# Changelog of di-spec\n\nIntroduction.\n\n"
        "## 0.2.0 (DAY)\n\n### Added\n\n- A door.\n\n### Fixed\n\n- A fix.\n"
    )
    assert list((repository / "packages/di-spec").glob("changes/*")) == []


def test_release_moves_the_exact_pin_of_a_dependent_and_notes_it(repository: Path) -> None:
    invoke(repository, "di-spec")
    engine = read_packages(repository)["di-engine"]
    assert engine.dependencies == ("di-spec==0.2.0", "thirdparty>=1.0")
    assert engine.version == Version("0.1.0")
    note = engine.directory / "changes" / "1.changed.md"
    assert note.read_text() == "Requires di-spec 0.2.0.\n"


def test_release_again_goes_above_the_older_section(
    repository: Path, run_git: Callable[..., str]
) -> None:
    invoke(repository, "di-spec")
    changes = repository / "packages/di-spec/changes"
    changes.mkdir(exist_ok=True)
    (changes / "20.fixed.md").write_text("Two lines,\none entry.\n")
    run_git("add", "--all")
    run_git("commit", "--quiet", "-m", "Fix")
    code, output = invoke(repository, "di-spec")
    assert code == 0, output
    text = (repository / "packages/di-spec/CHANGELOG.md").read_text()
    assert text.index("## 0.2.1") < text.index("## 0.2.0")
    assert "- Two lines,\n  one entry.\n\n## 0.2.0" in text


def test_dry_run_says_everything_and_changes_nothing(
    repository: Path, run_git: Callable[..., str]
) -> None:
    code, output = invoke(repository, "di-spec", "--dry-run")
    assert code == 0
    assert "di-spec 0.1.0 -> 0.2.0 (minor)" in output
    assert "di-engine: di-spec==0.1.0 -> di-spec==0.2.0" in output
    assert "- A door." in output
    assert run_git("status", "--porcelain") == ""
    assert run_git("tag", "--list") == ""
    assert not (repository / "dist").exists()


def test_a_tree_that_is_not_clean_is_refused(repository: Path, run_git: Callable[..., str]) -> None:
    (repository / "stray.txt").write_text("x")
    code, output = invoke(repository, "di-spec")
    assert code == 1
    assert "not clean" in output
    assert "stray.txt" in output
    assert run_git("tag", "--list") == ""


def test_a_build_that_fails_leaves_the_tree_as_it_was(
    repository: Path, run_git: Callable[..., str]
) -> None:
    (repository / "packages/di-spec/backend.py").write_text("raise RuntimeError('broken backend')")
    run_git("commit", "--quiet", "-a", "-m", "Break")
    before = run_git("rev-parse", "HEAD")
    code, output = invoke(repository, "di-spec")
    assert code == 1
    assert "does not build" in output
    assert "broken backend" in output
    assert run_git("status", "--porcelain") == ""
    assert run_git("rev-parse", "HEAD") == before
    assert run_git("tag", "--list") == ""
    assert (repository / "packages/di-spec/changes/7.added.md").exists()


def test_a_source_distribution_that_needs_the_repository_is_refused(
    repository: Path, run_git: Callable[..., str]
) -> None:
    backend = repository / "packages/di-spec/backend.py"
    backend.write_text(backend.read_text().replace(', "backend.py"', ""))
    run_git("commit", "--quiet", "-a", "-m", "Forget a file")
    code, output = invoke(repository, "di-spec")
    assert code == 1
    assert "does not build" in output
    assert run_git("tag", "--list") == ""


def test_a_version_is_never_tagged_twice(repository: Path, run_git: Callable[..., str]) -> None:
    run_git("tag", "di-spec-v0.2.0")
    code, output = invoke(repository, "di-spec")
    assert code == 1
    assert "di-spec-v0.2.0 exists" in output


def test_bump_none_releases_the_version_that_stands(
    repository: Path, run_git: Callable[..., str]
) -> None:
    code, output = invoke(repository, "di-spec", "--bump", "none")
    assert code == 0, output
    assert run_git("tag", "--list").split() == ["di-spec-v0.1.0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["di-sepc"], "no package `di-sepc`, this repository has: di-engine, di-spec"),
        (["di-spec", "--bump", "huge"], "`huge` is none of"),
    ],
)
def test_wrong_use_is_exit_code_2(repository: Path, arguments: list[str], words: str) -> None:
    code, output = invoke(repository, *arguments)
    assert code == 2
    assert words in re.sub(r"[\s│]+", " ", output)


def test_nothing_to_release_without_fragments(repository: Path) -> None:
    code, output = invoke(repository, "di-engine")
    assert code == 1
    assert "no fragment" in output


def test_index_lists_every_wheel_with_its_hash(repository: Path) -> None:
    code, output = invoke(repository)
    assert code == 0, output
    index = repository / "dist" / "index"
    assert 'href="di-engine/"' in (index / "index.html").read_text()
    wheel = index / "di-spec" / "di_spec-0.1.0-py3-none-any.whl"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert f'href="{wheel.name}#sha256={digest}"' in (index / "di-spec/index.html").read_text()
    constraints = (index / "constraints.txt").read_text().splitlines()
    assert f"di-spec @ ${{WHEEL_INDEX}}/di-spec/{wheel.name}#sha256={digest}" in constraints


def test_index_keeps_older_wheels_and_constrains_to_the_newest(repository: Path) -> None:
    invoke(repository)
    invoke(repository, "di-spec")
    page = (repository / "dist/index/di-spec/index.html").read_text()
    assert page.index("di_spec-0.1.0") < page.index("di_spec-0.2.0")
    constraints = (repository / "dist/index/constraints.txt").read_text()
    assert "di_spec-0.2.0" in constraints
    assert "di_spec-0.1.0" not in constraints


def test_index_refuses_other_contents_under_a_name_it_holds(repository: Path) -> None:
    invoke(repository)
    project = repository / "packages/di-spec/pyproject.toml"
    project.write_text(project.read_text().replace("# ours", "# changed"))
    code, output = invoke(repository)
    assert code == 1
    assert "exists with other contents" in output


@pytest.mark.parametrize("name", ["added.md", "3.new.md", "3.added.txt", "x.fixed.md"])
def test_a_fragment_with_a_wrong_name_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / name).write_text("Text.")
    (tmp_path / "changes" / "1.fixed.md").write_text("  \n")
    with pytest.raises(ReleaseError, match=re.escape(name)) as caught:
        read_fragments(tmp_path)
    assert "1.fixed.md: is empty" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "kinds", "expected"),
    [
        ("0.3.1", ["fixed"], "patch"),
        ("0.3.1", ["fixed", "security"], "patch"),
        ("0.3.1", ["fixed", "added"], "minor"),
        ("1.2.0", ["changed"], "minor"),
        ("1.2.0", ["removed", "fixed"], "major"),
    ],
)
def test_bump_follows_semantic_versioning(
    tmp_path: Path, version: str, kinds: list[str], expected: str
) -> None:
    (tmp_path / "changes").mkdir()
    for number, kind in enumerate(kinds):
        (tmp_path / "changes" / f"{number}.{kind}.md").write_text("Text.")
    assert bump_of(read_fragments(tmp_path), Version(version)) == expected


def test_a_removal_before_1_0_says_how_to_migrate(tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    fragment = tmp_path / "changes" / "1.removed.md"
    fragment.write_text("The old door is gone.")
    with pytest.raises(ReleaseError, match="Migration:"):
        bump_of(read_fragments(tmp_path), Version("0.1.0"))
    fragment.write_text("The old door is gone.\nMigration: use the new one.")
    assert bump_of(read_fragments(tmp_path), Version("0.1.0")) == "minor"


def test_security_comes_first_in_the_notes(tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    for kind in ("fixed", "added", "security"):
        (tmp_path / "changes" / f"1.{kind}.md").write_text(kind)
    text = section(Version("1.0.0"), "2030-01-02", read_fragments(tmp_path))
    assert re.findall(r"### (\w+)", text) == ["Security", "Added", "Fixed"]


def test_insert_section_into_an_empty_changelog(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n")
    insert_section(changelog, "## 1.0.0\n")
    assert changelog.read_text() == "# Changelog\n\n## 1.0.0\n"


@pytest.mark.parametrize(
    ("bump", "expected"), [("major", "2.0.0"), ("minor", "1.5.0"), ("patch", "1.4.8")]
)
def test_bumped(bump: str, expected: str) -> None:
    assert bumped(Version("1.4.7"), bump) == Version(expected)


@pytest.mark.parametrize(
    ("specifier", "version", "expected"),
    [
        ("==0.1.0", "0.2.0", "==0.2.0"),
        (">=0.1,<0.2", "0.2.0", ">=0.2.0,<0.3"),
        (">=1.1,<2", "2.0.0", ">=2.0.0,<3.0"),
    ],
)
def test_range_for_keeps_the_kind_of_a_requirement(
    specifier: str, version: str, expected: str
) -> None:
    assert range_for(SpecifierSet(specifier), Version(version)) == expected


def test_a_dependent_that_admits_the_new_version_is_left_alone(tmp_path: Path) -> None:
    lines = ("di-spec>=0.1,<0.3", "other==1.0", 'di-spec[x]==0.1.0 ; python_version < "4"')
    engine = Package("di-engine", Version("0.1.0"), tmp_path, lines)
    updates = dependents_to_update([engine], "di-spec", Version("0.2.0"))
    assert updates == {
        "di-engine": [(lines[2], 'di-spec[x]==0.2.0 ; python_version < "4"')],
    }
