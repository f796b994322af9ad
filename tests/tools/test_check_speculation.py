"""Drafts change no token of the built-in model, and the tool that says so would notice."""

import json

import pytest
import typer
from typer.testing import CliRunner

import check_speculation


@pytest.fixture
def run_tool():
    app = typer.Typer()
    app.command()(check_speculation.main)
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments), "--json"])


SMALL = ("--num-tokens", 7, "--prompt-len", 450, "--batch", 4, "--num-blocks", 9)


@pytest.mark.slow
def test_the_model_says_the_same_with_drafts(run_tool):
    outcome = run_tool(*SMALL, "--draft-lengths", 4)
    assert outcome.exit_code == 0, outcome.output
    together, alone = map(json.loads, outcome.stdout.splitlines())
    assert (together["num_tokens"], alone["num_tokens"]) == (28, 7)
    assert together["counters"]["cache_hits"] > 0
    assert together["speculation"]["rows_histogram"][2:] != [0] * 4
    assert sum(together["speculation"]["accepted_histogram"][1:]) > 0


@pytest.mark.slow
def test_a_changed_token_is_reported(run_tool, monkeypatch):
    def run_mix(engine, mix):
        received = honest(engine, mix)
        if engine.scheduler.config.num_draft_tokens:
            received["r0"].token_ids[2] += 1
        return received

    honest = check_speculation.run_mix
    monkeypatch.setattr(check_speculation, "run_mix", run_mix)
    outcome = run_tool(
        "--num-tokens", 4, "--prompt-len", 4, "--batch", 1, "--num-blocks", 9, "--draft-lengths", 1
    )
    assert outcome.exit_code == 1
    runs = map(json.loads, outcome.stdout.splitlines())
    wrong = [{"request": "r0", "kind": "right", "first": 2}]
    assert [run["differences"] for run in runs] == [wrong] * 2
