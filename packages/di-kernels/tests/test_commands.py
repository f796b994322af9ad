import itertools
import json
import re
import subprocess
import sys
from collections import Counter

import pytest
import torch

from di_kernels import op_names
from di_kernels.__main__ import main
from di_kernels.cases import SMALL, all_cases
from di_kernels.check import why_no_kernels
from di_kernels.tile.toolchain import missing_tools


@pytest.mark.slow
def test_check_passes_for_every_op_and_backend(capsys):
    assert main(["check", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    passed = Counter(r["op"] for r in results if r["status"] == "pass")
    assert set(passed) == set(op_names())
    assert {r["backend"] for r in results if r["status"] == "pass"} == {
        "reference", "numpy", "scalar",
    }  # fmt: skip


@pytest.mark.parametrize("num_rows", [1, 63, 64, 65])
@pytest.mark.slow
def test_awkward_numbers_of_rows(num_rows):
    for case in all_cases(SMALL, "cpu", dtypes=(torch.float32,), rows=(num_rows,)):
        for part in case.run(case.all_rows):
            assert part.shape[0] in (num_rows, SMALL.lora)


def test_check_fails_when_an_answer_differs(monkeypatch, capsys):
    monkeypatch.setattr("di_kernels.ops.norm.widen", lambda x: x.float() * 1.5 + 0.1)
    assert main(["check", "--op", "rms_norm"]) == 1
    out = capsys.readouterr().out
    assert "FAIL rms_norm[1x96" in out
    assert "worst at" in out


def broken(*_):
    raise ImportError("no name `CLUSTER`")


def test_a_kernel_that_raises_fails_its_checks_and_hides_no_other(monkeypatch, capsys):
    monkeypatch.setattr("di_kernels.ops.norm.widen", broken)
    assert main(["check", "--op", "rms_norm", "--op", "swiglu"]) == 1
    out = capsys.readouterr().out
    assert "reference: ImportError: no name `CLUSTER`" in out
    assert re.search(r"swiglu +[1-9]\d* passed", out)


def test_a_case_that_cannot_be_built_fails_the_check(monkeypatch, capsys):
    def cases(*_, **__):
        yield from itertools.islice(all_cases(SMALL, "cpu"), 1)
        broken()

    monkeypatch.setattr("di_kernels.check.all_cases", cases)
    assert main(["check"]) == 1
    assert "the next case cannot be built -: ImportError" in capsys.readouterr().out


def test_bench_reports_floor_and_ratio(capsys):
    assert main(["bench", "--op", "swiglu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ceilings"]["copy_bytes_per_s"] > 0
    for result in document["results"]:
        assert result["op"] == "swiglu"
        assert result["num_bytes"] > 0
        assert result["ratio"] == pytest.approx(result["floor_us"] / result["median_us"])


def test_list_names_the_serving_backend(capsys):
    assert main(["list", "--op", "hc_sinkhorn"]) == 0
    assert capsys.readouterr().out.startswith("hc_sinkhorn                scalar")


def test_list_prints_where_beside_torch(capsys):
    assert main(["list", "--op", "draw_tokens"]) == 0
    assert "beside torch: 256 greedy rows, no mask: argmax 47.8 us, tilelang 53.8 us" in (
        capsys.readouterr().out
    )
    assert main(["list", "--op", "draw_tokens", "--json"]) == 0
    (service,) = json.loads(capsys.readouterr().out)
    assert len(service["beside_torch"]) == 1


def test_wrong_use_has_its_own_exit_codes(capsys):
    assert main(["check", "--op", "nope"]) == 2
    assert "unknown op: nope" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["check", "--device", "cuda"]) == 3
        assert "device `cuda` cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        (["router_topk"], "no kernel serves `cuda`: `router_topk` backend `tilelang` needs compute"
         " capability 9.0, this device has: 8.0\nthe references serve there"),
        ([], "more like it): `apply_rope` backend `tilelang` needs compute capability 9.0"),
        (["swiglu"], "no backend but the reference: swiglu"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "bench"])
def test_a_gpu_without_kernels_is_no_success(command, ops, reason, monkeypatch, capsys):
    monkeypatch.setattr("di_kernels.check.compute_capability_of", lambda device: (8, 0))
    monkeypatch.setattr(torch, "empty", lambda *args, **options: None)
    named = [part for op in ops for part in ("--op", op)]
    assert main([command, "--device", "cuda", "--shapes", "kernels", *named]) == 3
    assert reason in capsys.readouterr().err


def test_a_gpu_without_a_compiler_is_no_success(monkeypatch):
    monkeypatch.setattr("di_kernels.check.compute_capability_of", lambda device: (9, 0))
    missing_tools.cache_clear()
    monkeypatch.setattr("di_kernels.tile.toolchain.find_nvcc", lambda: None)
    monkeypatch.setattr("di_kernels.tile.toolchain.importlib.util.find_spec", lambda name: name)
    try:
        reason = why_no_kernels("cuda", ["router_topk"])
    finally:
        missing_tools.cache_clear()
    assert "no CUDA compiler" in reason
    assert "pip install 'di-kernels[tilelang]'" in reason


@pytest.mark.slow
def test_import_loads_no_accelerator_library():
    code = "import sys, di_kernels; print({'triton', 'tilelang', 'deep_gemm'} & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert loaded.stdout.strip() == "set()"
