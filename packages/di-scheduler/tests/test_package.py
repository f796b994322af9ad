import subprocess
import sys

import di_scheduler


def test_import_needs_numpy_and_nothing_else_of_the_house():
    script = (
        "import sys, di_scheduler, di_scheduler.testing, di_scheduler.bench\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'torch', 'di_engine', 'di_spec', 'di_kernels', 'numpy'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['numpy']"


def test_every_public_name_exists():
    assert sorted(di_scheduler.__all__) == di_scheduler.__all__
    for name in di_scheduler.__all__:
        assert hasattr(di_scheduler, name)
