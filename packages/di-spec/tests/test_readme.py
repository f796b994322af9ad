import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_example_runs_and_is_short(capsys):
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.S).group(1)
    assert len(block.splitlines()) < 15
    exec(compile(block, str(README), "exec"), {})
    assert "[" in capsys.readouterr().out
