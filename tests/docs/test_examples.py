"""Every Python block and every `di` command of the tutorial and the guides runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPOSITORY.glob("docs/tutorial/*.md"), *REPOSITORY.glob("docs/guides/*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
# `hatch run di` and `hatch run demo` both end in `di`: hatch itself is tested by .ci/run.
COMMAND = re.compile(r"(?P<before>.*?)hatch run (?P<name>di|demo) (?P<rest>.+)")


def commands_of(page: Path) -> list[str]:
    """Returns the lines of a page's console blocks that run the engine's command line."""
    lines = "\n".join(CONSOLE.findall(page.read_text(encoding="utf-8"))).splitlines()
    found = []
    for line in lines:
        if match := COMMAND.fullmatch(line.strip()):
            command = "di" if match["name"] == "di" else "di generate"
            found.append(f"{match['before']}{command} {match['rest']}")
    return found


@pytest.mark.parametrize(
    "page", [p for p in PAGES if PYTHON.search(p.read_text("utf-8"))], ids=lambda p: p.stem
)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(PYTHON.findall(page.read_text("utf-8"))), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "command", [c for page in PAGES for c in commands_of(page)], ids=lambda c: c[:60]
)
def test_commands_run(command: str, tmp_path: Path) -> None:
    # `di` is the one beside the running interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_configuration_guide_is_up_to_date() -> None:
    import make_config_docs

    assert make_config_docs.main(["--check"]) == 0
