"""The cases that a machine with the hardware would run, here by the stand-ins at a small width."""

import dataclasses

import pytest
import torch

from di_kernels.cases.case import Source
from di_kernels.cases.kernels import quantized_input
from di_kernels.check import _compare
from di_kernels.packed import MXFP8PackedWeight
from di_kernels.registry import get_op


@pytest.fixture
def blackwell(monkeypatch, deep_gemm):
    """Cases as on SM100, served by the registered adapters on this CPU."""
    monkeypatch.setattr(quantized_input, "compute_capability_of", lambda device: (10, 0))
    monkeypatch.setattr(quantized_input, "HIDDEN", 256)
    monkeypatch.setattr(quantized_input, "EXPERT_SIZE", 128)
    for name in ("mxfp8_linear", "moe_experts"):
        op = get_op(name)
        backends = [
            dataclasses.replace(known, device_types=None, compute_capabilities=None)
            for known in op.backends
            if known.name in ("deep_gemm", "reference")
        ]
        monkeypatch.setattr(op, "backends", backends)
        monkeypatch.setattr(op, "_is_gpu_only", False)
    return deep_gemm


@pytest.mark.slow
def test_cases_for_sm100_have_packed_scales_and_pass_by_the_stand_ins(blackwell):
    source = Source(torch.device("cpu"), torch.bfloat16, False, torch.Generator().manual_seed(0))
    assert isinstance(quantized_input._matrix(source), MXFP8PackedWeight)
    for case in quantized_input.cases(source):
        before = len(blackwell.calls)
        _compare(case)
        assert len(blackwell.calls) > before
