"""What the package brings along, and what it exports."""

import subprocess
import sys

import di_structured


def test_importing_and_making_schemas_loads_neither_torch_nor_xgrammar():
    code = (
        "import sys, di_structured as d\n"
        "d.OutputSchema.tool_calls([{'name': 'a'}]); d.GrammarCompiler(d.Vocabulary([b'a'], "
        "stop_token_ids=[0]))\n"
        "d.MaskBatch(64).fill([('r', None, [])])\n"
        "print([m for m in ('torch', 'xgrammar', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.strip() == "[]"


def test_every_exported_name_exists():
    assert all(hasattr(di_structured, name) for name in di_structured.__all__)
    assert di_structured.__all__ == sorted(di_structured.__all__)
