"""The origin check: what it accepts, and every way in which a stranger shows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import check_origin

Install = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An empty site-packages folder."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    return directory


@pytest.fixture
def check(
    repository: Path,
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Runs the tool on `site`, in the repository in miniature."""
    monkeypatch.setattr(check_origin, "REPOSITORY", repository)

    def run(*arguments: str) -> tuple[int, str]:
        code = check_origin.main(["--site-packages", str(site), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture
def install(site: Path) -> Install:
    """Writes the metadata of an installed distribution."""

    def write(name: str, version: str, url: str | None, package: str | None = None) -> Path:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        package = package or name.replace("-", "_")
        (info / "RECORD").write_text(f"{package}/__init__.py,,\n{info.name}/METADATA,,\n")
        if url is not None:
            direct_url = {"url": url, "dir_info": {"editable": True}}
            (info / "direct_url.json").write_text(json.dumps(direct_url))
        return info

    return write


def test_editable_installations_of_the_repository_pass(
    check: Callable[..., tuple[int, str]], install: Install, repository: Path
) -> None:
    for name in ("di-engine", "di-spec"):
        install(name, "0.1.0", (repository / "packages" / name).as_uri())
    code, output = check()
    assert code == 0
    assert output.count("ok  ") == 2


@pytest.mark.parametrize(
    ("version", "url", "words"),
    [
        ("0.5.3", None, "was taken from an index"),
        ("0.1.0", "https://example.org/di_engine-0.1.0-py3-none-any.whl", "must come from"),
        ("0.1.0", "file:///somewhere/else/packages/di-engine", "must come from"),
        ("0.1.0", "{repository}/packages/di-spec", "must come from"),
        ("0.0.9", "{repository}/packages/di-engine", "the repository has version 0.1.0"),
    ],
)
def test_a_stranger_is_named_with_the_reason(
    check: Callable[..., tuple[int, str]],
    install: Install,
    repository: Path,
    version: str,
    url: str | None,
    words: str,
) -> None:
    install("di-spec", "0.1.0", (repository / "packages" / "di-spec").as_uri())
    install("di-engine", version, url and url.format(repository=repository.as_uri()))
    code, output = check()
    assert code == 1
    assert "FAIL di-engine" in output
    assert words in output
    assert "1 of 2 wrong" in output


def test_a_missing_member_is_a_failure_unless_only_others_are_asked_for(
    check: Callable[..., tuple[int, str]], install: Install, repository: Path
) -> None:
    install("di-spec", "0.1.0", (repository / "packages" / "di-spec").as_uri())
    assert check()[0] == 1
    assert check("--only", "di-spec")[0] == 0
    assert check("--absent", "di-engine")[0] == 0


def test_a_foreign_sibling_is_found_although_nobody_asked_for_it(
    check: Callable[..., tuple[int, str]], install: Install, repository: Path
) -> None:
    install("di-spec", "0.1.0", (repository / "packages" / "di-spec").as_uri())
    install("di-engine", "0.5.3", None)
    code, output = check("--only", "di-spec")
    assert code == 1
    assert "FAIL di-engine" in output


def test_a_distribution_that_must_be_absent(
    check: Callable[..., tuple[int, str]], install: Install
) -> None:
    install("deepseek-recipe", "0.1.0", None)
    code, output = check("--only", "di-spec", "--absent", "deepseek-recipe")
    assert code == 1
    assert "deepseek-recipe" in output
    assert "must not be installed here" in output


def test_an_absent_name_is_not_hidden_under_another_distribution(
    check: Callable[..., tuple[int, str]], install: Install
) -> None:
    install("innocent", "1.0", None, package="deepseek_recipe")
    code, output = check("--only", "di-spec", "--absent", "deepseek-recipe")
    assert code == 1
    assert "innocent installed it" in output


def test_two_copies_of_one_distribution_are_a_failure(
    check: Callable[..., tuple[int, str]], install: Install, repository: Path
) -> None:
    url = (repository / "packages" / "di-spec").as_uri()
    install("di-spec", "0.1.0", url)
    install("di-spec", "0.0.9", url)
    code, output = check("--only", "di-spec")
    assert code == 1
    assert "more than once" in output


@pytest.mark.parametrize("name", ["deep-gemm", "deep-ep", "flash-mla"])
def test_placeholder_projects_are_never_accepted(
    check: Callable[..., tuple[int, str]], install: Install, repository: Path, name: str
) -> None:
    install("di-spec", "0.1.0", (repository / "packages" / "di-spec").as_uri())
    install(name, "0.0.1", None, package="unrelated")
    code, output = check("--only", "di-spec")
    assert code == 1
    assert f"FAIL {name}" in output


@pytest.mark.parametrize(
    ("owner", "code"), [("deepinfer-gemm", 0), ("deepinfer-flashmla", 1), ("unrelated", 1)]
)
def test_the_package_of_a_placeholder_comes_from_its_authors_alone(
    check: Callable[..., tuple[int, str]],
    install: Install,
    repository: Path,
    owner: str,
    code: int,
) -> None:
    install("di-spec", "0.1.0", (repository / "packages" / "di-spec").as_uri())
    install(owner, "2.8.2", None, package="deep_gemm")
    found, output = check("--only", "di-spec")
    assert found == code
    assert (f"{owner} installed it" in output) == bool(code)


@pytest.mark.parametrize("arguments", [["--only", "di-sepc"], ["--wheels", "no/such/folder"]])
def test_wrong_use_is_exit_code_2(
    check: Callable[..., tuple[int, str]], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        check(*arguments)
    assert caught.value.code == 2
