"""The text model against golden vectors of the official reference, and the tool that compares."""

import shutil
from pathlib import Path

import pytest
import typer
from rich.console import Console
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import check_model_vectors
from check_model_vectors import ConfigFolder, Result, as_table

VECTORS = Path(__file__).parent / "vectors" / "model"


def check(folder: Path) -> list[Result]:
    return list(ConfigFolder(folder).check(lambda prompt: prompt == "p0"))


def report(results: list[Result]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(as_table(results))
    return capture.get()


@pytest.fixture
def run_tool():
    app = typer.Typer()
    app.command()(check_model_vectors.main)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
@pytest.mark.parametrize("config", ["a-window-ratio2", "c-candidates"])
def test_the_model_computes_what_the_reference_computes(config):
    results = check(VECTORS / config)
    assert all(result.ok for result in results), report(results)
    # fp32 and kvqdq in one step, token by token and for every prefix; native by layer and whole.
    assert sum(result.error is not None for result in results) == 8, report(results)


@pytest.fixture
def copied(tmp_path):
    folder = tmp_path / "c-candidates"
    shutil.copytree(VECTORS / "c-candidates", folder)
    for name in ("p0.kvqdq", "p0.native", "p0.fp32"):
        (folder / "expected" / f"{name}.safetensors").unlink()
    return folder


@pytest.mark.parametrize("name", ["multipliers", "primes", "token_map"])
def test_a_wrong_table_is_a_miss(copied, run_tool, name):
    file = copied / "expected" / "engram_tables.safetensors"
    tables = load_file(file)
    tables[name].view(-1)[0] += 1
    save_file(tables, file)
    outcome = run_tool(copied.parent, "--json")
    assert outcome.exit_code == 1
    assert '"mismatches": 1' in outcome.stdout


@pytest.mark.slow
def test_the_drafter_drafts_what_the_reference_drafts():
    results = check(VECTORS / "d-dspark")
    assert all(result.ok for result in results), report(results)
    # Wide and with quantised caches, the prompt in one step and in several.
    assert sum(result.mismatches == 0 for result in results) == 4, report(results)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), [("draft_ids", (3, 2)), ("confidence", (2, 4))])
def test_a_wrong_draft_is_a_miss(tmp_path, name, place):
    folder = tmp_path / "d-dspark"
    shutil.copytree(VECTORS / "d-dspark", folder)
    (folder / "expected" / "p0.dspark.kvqdq.safetensors").unlink()
    file = folder / "expected" / "p0.dspark.fp32.safetensors"
    expected = load_file(file)
    expected[name].view(8, -1)[place] += 1
    save_file(expected, file)
    assert not any(result.ok for result in check(folder))


def test_unknown_files_are_listed_and_no_miss(copied, run_tool):
    tables = copied / "expected" / "engram_tables.safetensors"
    shutil.copy(tables, copied / "expected" / "p0.vision.fp32.safetensors")
    outcome = run_tool(copied.parent)
    assert outcome.exit_code == 0, outcome.output
    assert "not run" in outcome.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row"), [("logits", 3), ("layers.2.topk_positions", 30), ("greedy_ids", 0)]
)
def test_a_wrong_value_is_a_miss(copied, name, row):
    expected = load_file(VECTORS / "c-candidates" / "expected" / "p0.fp32.safetensors")
    if name == "logits":
        expected[name][row, 0] += 1e-3
    else:
        expected[name].view(expected[name].shape[0], -1)[row, 0] = 0
    save_file(expected, copied / "expected" / "p0.fp32.safetensors")
    results = check(copied)
    assert not all(result.ok for result in results), report(results)


def test_a_folder_without_configurations_is_wrong_use(tmp_path, run_tool):
    assert run_tool(tmp_path).exit_code == 2
