import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run_and_are_short(capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    for example in examples:
        assert len(example.splitlines()) < 15
        exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([2, 96]) scalar True\ntorch.Size([2, 256])\n"
