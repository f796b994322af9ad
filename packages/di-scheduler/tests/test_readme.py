import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_readme_example_runs_and_prints_every_token(capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 1
    assert examples[0].count("\n") < 15
    exec(compile(examples[0], str(README), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a [9] None"] * 3 + ["a [9] length"]
