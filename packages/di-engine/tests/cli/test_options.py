"""Flags are the fields: nothing is missing, nothing is silently ignored."""

from dataclasses import fields

import typer
from typer.testing import CliRunner

from di_engine.cli.app import app
from di_engine.cli.sampling_options import _FLAGS
from di_engine.config import EngineConfig
from di_engine.llm.sampling_params import SamplingParams

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_every_configuration_field_is_a_flag_with_its_default() -> None:
    import di_engine.cli.generate  # noqa: F401  # registers the command

    text = RUNNER.invoke(app, ["generate", "--help"]).output
    for key in EngineConfig.fields():
        name = "model" if key == "model.path" else key.rsplit(".", 1)[-1]
        assert f"--{name.replace('_', '-')}" in text
    assert "default: (tiny)" in text or "default: tiny" in text


def test_sampling_flags_are_fields_with_the_same_defaults() -> None:
    defaults = {field.name: field.default for field in fields(SamplingParams)}
    for name, _, default, *_ in _FLAGS:
        assert name in defaults
        if name != "max_tokens":
            assert default == defaults[name]


def test_flags_override_and_remember_where_they_came_from() -> None:
    from di_engine.cli.engine_options import with_engine_options

    seen: list[EngineConfig] = []
    probe = typer.Typer()

    @probe.command()
    @with_engine_options
    def command(*, config: EngineConfig) -> None:
        seen.append(config)

    result = RUNNER.invoke(
        probe, ["--max-running", "7", "--deterministic"], env={"DI_CACHE__STORAGE": "compute"}
    )
    assert result.exit_code == 0, result.output
    (config,) = seen
    assert (config.scheduler.max_running, config.deterministic) == (7, True)
    assert config.cache.storage == "compute"
    origins = config.origins()
    assert origins["scheduler.max_running"] == "flag"
    assert origins["cache.storage"].startswith("env")
    assert origins["device"] == "default"
