import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_and_is_short(capsys):
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    assert len(example.splitlines()) < 15
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([2, 96]) scalar True\n"
