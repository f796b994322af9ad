"""The README's example runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_example_prints_an_array_of_booleans():
    text = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code) == 1
    run = subprocess.run(
        [sys.executable, "-c", code[0]], capture_output=True, text=True, timeout=280, check=True
    )
    assert re.fullmatch(r"\[\s*((true|false)\s*(,\s*(true|false)\s*){0,2})?\]", run.stdout.strip())
