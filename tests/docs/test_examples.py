"""Every Python block and every `di` command of the README, the tutorial and the guides runs.

They run inside this process, because importing torch takes longer than most of them; that `hatch
run` finds the command is what .ci/run tests.
"""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

import make_config_docs
from di_engine.cli import main

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md"]
PAGES += sorted([*REPOSITORY.glob("docs/tutorial/*.md"), *REPOSITORY.glob("docs/guides/*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"""(?:pip\ install\ hatch\ &&\ )?
        (?:echo\ "(?P<stdin>[^"]*)"\ \|\ )?
        (?P<variables>(?:DI_\w+=\S+\ )*)
        hatch\ run\ (?P<name>di|demo)(?P<arguments>\ [^\#]*)?(?:\#.*)?""",
    re.VERBOSE,
)


def commands_of(page: Path) -> list[re.Match[str]]:
    """Returns the lines of a page's console blocks that run the engine's command line."""
    lines = "\n".join(CONSOLE.findall(page.read_text("utf-8"))).splitlines()
    found = [(line, COMMAND.fullmatch(line.strip())) for line in lines]
    unread = [line for line, match in found if match is None and "hatch run d" in line]
    assert [line for line in unread if "hatch run docs" not in line] == []
    return [match for _, match in found if match is not None]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if PYTHON.search(page.read_text("utf-8"))], ids=lambda p: p.stem
)
def test_python_blocks_run_in_order(page: Path) -> None:
    code = "\n".join(PYTHON.findall(page.read_text("utf-8")))
    namespace = {"__name__": "__main__"}
    exec(compile(code, str(page), "exec"), namespace)
    assert len(namespace) > 2


# By text: pages repeat the first command.
COMMANDS = {match[0].strip(): match for page in PAGES for match in commands_of(page)}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_run(
    command: re.Match[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = ["di"] if command["name"] == "di" else ["di", "generate"]
    monkeypatch.setattr(sys, "argv", [*head, *shlex.split(command["arguments"] or "")])
    monkeypatch.setattr(sys, "stdin", io.StringIO(command["stdin"] or ""))
    for assignment in command["variables"].split():
        name, _, value = assignment.partition("=")
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        main()
    output = capsys.readouterr()
    assert not caught.value.code, output.err
    assert output.out.strip()


def test_the_configuration_guide_is_up_to_date() -> None:
    assert make_config_docs.main(["--check"]) == 0
