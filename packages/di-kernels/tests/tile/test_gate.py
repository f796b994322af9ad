"""The compile gate: its exit codes, what it faults, and a few kernels where the tools are there."""

import sys
import types

import pytest

from di_kernels.__main__ import main
from di_kernels.tile import gate, toolchain
from di_kernels.tile.catalogue import kernels
from di_kernels.tile.gate import run_gate


@pytest.fixture(autouse=True)
def fresh_tools():
    toolchain.missing_tools.cache_clear()
    yield
    toolchain.missing_tools.cache_clear()


def test_unknown_names_are_wrong_use(capsys):
    assert main(["compile", "--arch", "sm_70"]) == 2
    assert "unknown architecture: sm_70\nhint: one of sm_80" in capsys.readouterr().err
    assert main(["compile", "--kernel", "nope"]) == 2
    assert "unknown kernel: nope" in capsys.readouterr().err
    assert main(["compile", "--op", "swiglu"]) == 2
    assert "unknown op with kernels: swiglu\nhint: one of apply_rope" in capsys.readouterr().err


def test_an_op_stands_for_its_kernels(monkeypatch, capsys):
    asked = []

    def compiled(_, names, **__):
        asked.extend(names)
        return ()

    monkeypatch.setattr("di_kernels.__main__.run_gate", compiled)
    assert main(["compile", "--op", "engram_gate", "--kernel", "router_topk"]) == 0
    gates = [f"engram_gate{width}{mask}" for width in ("", "_wide") for mask in ("", "_masked")]
    assert asked == ["router_topk", *gates]


def test_missing_tools_have_their_own_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    assert main(["compile", "--arch", "sm_90a"]) == 3
    assert "pip install 'di-kernels[tilelang]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("report", "ptx", "shared", "fault"),
    [
        ("Used 40 registers", "wgmma.mma_async.sync", 1 << 10, ""),
        ("Used 40 registers\n8 bytes spill stores, 4 bytes spill loads", "mma.sync", 0, "spills"),
        ("wgmma.mma_async instructions are serialized due to", "mma.sync", 0, "serialised"),
        ("Used 40 registers", "mma.sync", 228 << 10, "shared memory: at most 232448"),
        ("Used 40 registers", "fma.rn.f32", 0, "no matrix instruction"),
        ("error: identifier", None, 0, "nvcc: error"),
    ],
)  # fmt: skip
def test_faults_are_found(report, ptx, shared, fault):
    kernel = kernels()["mxfp4_routed_plain_8"]
    result = gate._assess(kernel, "sm_90a", report, ptx, shared)
    assert result.status == ("fail" if fault else "pass")
    assert fault in result.detail


def test_an_undeclared_kernel_is_listed_with_its_reason(monkeypatch):
    monkeypatch.setattr(gate, "require_tools", lambda: None)
    (result,) = run_gate(["sm_80"], names=["sparse_attention_nvfp4"])
    assert result.status == "undeclared"
    assert "hand tiles over with barriers" in result.detail


@pytest.mark.slow
def test_a_product_compiles_without_a_gpu():
    pytest.importorskip("tilelang", reason="the extra `tilelang` is not installed")
    if toolchain.missing_tools() is not None:
        pytest.skip("no nvcc: the extra `tilelang` of di-kernels brings it")
    (result,) = run_gate(["sm_90a"], names=["mxfp4_routed_swiglu_16"])
    assert result.status == "pass", result.detail


def test_compiling_leaves_stdout_alone(monkeypatch, capsys):
    talker = types.SimpleNamespace(
        compile=lambda function, **_: print("compiling") or function, PassConfigKey=str
    )
    monkeypatch.setitem(sys.modules, "tilelang", talker)
    assert toolchain.compile_kernel("kernel", "sm_90a", ()) == "kernel"
    assert capsys.readouterr().out == ""
