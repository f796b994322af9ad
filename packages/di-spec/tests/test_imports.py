import subprocess
import sys


def test_everything_but_tensors_loads_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import di_spec, di_spec.sampling, di_spec.simulation, di_spec.__main__\n"
        "import di_spec.testing.toy\n"
        "import di_spec.integrations._corpus, di_spec.integrations._contract\n"
        "assert [m for m in sys.modules if m.startswith('torch.')] == []"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_exist():
    import di_spec
    from di_spec import sampling

    for module in (di_spec, sampling):
        assert all(hasattr(module, name) for name in module.__all__)
