"""The root conftest: which marked tests run on which machine."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SPEC = importlib.util.spec_from_file_location(
    "root_conftest", Path(__file__).resolve().parents[2] / "conftest.py"
)
assert SPEC is not None
assert SPEC.loader is not None
root_conftest = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(root_conftest)

CPU: tuple[tuple[int, int], ...] = ()
HOPPER = ((9, 0),)
TWO_HOPPERS = ((9, 0), (9, 0))
BLACKWELL = ((10, 0),)


def item(*markers: str, **options: bool) -> Any:
    """A collected test with these markers, under a command line with these switches."""
    given = {"--run-network": False, "--run-benchmark": False}
    given |= {f"--run-{name}": value for name, value in options.items()}
    return SimpleNamespace(
        get_closest_marker=lambda name: name if name in markers else None,
        config=SimpleNamespace(getoption=given.__getitem__),
    )


@pytest.mark.parametrize(
    ("markers", "machine", "words"),
    [
        ((), CPU, None),
        (("slow",), CPU, None),
        (("gpu",), CPU, "no CUDA device"),
        (("gpu",), HOPPER, None),
        (("gpu", "sm90"), HOPPER, None),
        (("sm90",), CPU, "no CUDA device"),
        (("sm90",), BLACKWELL, "compute capability 10.x"),
        (("sm100",), HOPPER, "compute capability 9.x"),
        (("sm100",), BLACKWELL, None),
        (("multi_gpu",), HOPPER, "one CUDA device"),
        (("multi_gpu",), TWO_HOPPERS, None),
        (("network",), TWO_HOPPERS, "--run-network"),
        (("benchmark",), TWO_HOPPERS, "--run-benchmark"),
    ],
)
def test_a_test_runs_where_its_markers_allow(
    monkeypatch: pytest.MonkeyPatch,
    markers: tuple[str, ...],
    machine: tuple[tuple[int, int], ...],
    words: str | None,
) -> None:
    monkeypatch.setattr(root_conftest, "cuda_capabilities", lambda: machine)
    reason = root_conftest.skip_reason(item(*markers))
    assert (reason is None) if words is None else (words in reason)


def test_a_switch_lets_opt_in_tests_run() -> None:
    assert root_conftest.skip_reason(item("network", network=True)) is None
    assert root_conftest.skip_reason(item("benchmark", benchmark=True)) is None
