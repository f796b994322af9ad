import logging

import pytest
import torch

import di_kernels
from di_kernels import (
    Backend,
    BackendMissingError,
    SizeRule,
    UnknownBackendError,
    UnknownOpError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    ops,
)
from di_kernels import registry as registry_module


@pytest.fixture
def double_op():
    def double(x: torch.Tensor) -> torch.Tensor:
        """Twice the input."""
        return x + x

    op = registry_module.Op("test_double", double)
    yield op
    del registry_module._OPS["test_double"]


def test_every_public_op_has_a_reference_that_comes_last():
    for name in di_kernels.op_names():
        assert di_kernels.backends(name)[-1].name == "reference"
        assert di_kernels.is_supported(name, "cpu")
        assert di_kernels.is_supported(name, "cuda", compute_capability=(9, 0))


def test_what_was_never_run_comes_behind_what_was(double_op):
    for name, is_verified in (("a", True), ("b", False), ("c", True), ("d", False)):
        double_op.register(Backend(name, lambda x: x * 2, is_verified=is_verified))
    names = [backend.name for backend in di_kernels.backends("test_double")]
    assert names == ["c", "a", "d", "b", "reference"]
    refusal = double_op.backends[2].refusal("test_double", "cpu", None, torch.int8)
    assert "backend `d` (unverified) serves" in str(refusal)


def test_preferred_backend_serves_what_it_declares(double_op):
    double_op.register(
        Backend(
            "tilelang",
            lambda x: x * 2,
            device_types=("cuda",),
            compute_capabilities=((9, 0),),
            dtypes=(torch.bfloat16,),
            size_rules=(SizeRule("width", minimum=32, multiple_of=32),),
        )
    )
    serving = di_kernels.serving_backend
    assert serving("test_double", "cuda", compute_capability=(9, 0), width=64).name == "tilelang"
    assert serving("test_double", "cuda", compute_capability=(10, 0)).name == "reference"
    assert serving("test_double", "cuda", compute_capability=(9, 0), width=33).name == "reference"
    assert serving("test_double", "cpu").name == "reference"
    x = torch.ones(2)
    assert torch.equal(double_op.select(x)(x), torch.full((2,), 2.0))
    with (
        di_kernels.use_backend("tilelang"),
        pytest.raises(
            UnsupportedDeviceError,
            match="`test_double` backend `tilelang` needs a device of type cuda",
        ),
    ):
        double_op.select(x)
    with pytest.raises(ValueError, match="a backend of this name: tilelang"):
        double_op.register(Backend("tilelang", lambda x: x))


def test_a_missing_library_is_named(double_op):
    double_op.register(Backend("elsewhere", lambda x: x, requires="no_such_module"))
    with (
        di_kernels.use_backend("elsewhere"),
        pytest.raises(BackendMissingError, match="needs the module: no_such_module"),
    ):
        double_op.select(torch.ones(1))
    row = next(s for s in di_kernels.describe("cpu") if s.op == "test_double")
    assert row.backend == "reference"
    assert "no_such_module" in row.refusals[0]


def test_a_fallback_is_logged_once(double_op, caplog):
    double_op.register(Backend("tilelang", lambda x: x, device_types=("cuda",)))
    with caplog.at_level(logging.INFO, logger="di_kernels.registry"):
        for _ in range(3):
            double_op.select(torch.ones(1))
    assert caplog.messages == [
        "test_double: reference on cpu "
        "(`test_double` backend `tilelang` needs a device of type cuda, got: cpu)"
    ]


def test_an_op_without_a_choice_logs_nothing(double_op, caplog):
    with caplog.at_level(logging.INFO, logger="di_kernels.registry"):
        double_op.select(torch.ones(1))
    assert caplog.messages == []


def test_a_cpu_is_asked_anew_once_a_backend_for_it_is_there(double_op):
    x = torch.ones(2, requires_grad=True)
    double_op.register(Backend("tilelang", lambda x: x * 2, device_types=("cuda",)))
    for _ in range(2):
        assert double_op.select(x) is double_op.reference
    double_op.register(Backend("numpy", lambda x: x * 3, device_types=("cpu",)))
    assert double_op.select(x.detach()) is double_op.backends[0].run
    assert double_op.select(x) is double_op.reference


def test_references_without_a_gradient_serve_inputs_that_have_one():
    x = torch.randn(2, 32, requires_grad=True)
    with di_kernels.use_backend("reference"):
        assert torch.equal(ops.mxfp8_fake_quantize(x), ops.mxfp8_fake_quantize(x.detach()))


def test_forcing_ends_with_its_block_and_unknown_names_are_listed():
    logits = torch.zeros(1, 4, 4)
    with di_kernels.use_backend("reference"):
        assert registry_module._FORCED.get() == "reference"
        ops.hc_sinkhorn(logits, 2)
    assert registry_module._FORCED.get() is None
    with pytest.raises(UnknownBackendError, match=r"nope\nhint: one of .*reference"):
        di_kernels.use_backend("nope").__enter__()
    with pytest.raises(UnknownOpError, match="unknown op: nope"):
        di_kernels.backends("nope")


def test_a_dtype_no_backend_serves_is_refused():
    with pytest.raises(UnsupportedDtypeError, match=r"`hc_sinkhorn` serves torch\.float32"):
        ops.hc_sinkhorn(torch.zeros(1, 4, 4, dtype=torch.int64), 2)


def test_a_size_rule_reads_like_a_sentence():
    assert (
        str(SizeRule("k", minimum=1, maximum=8, multiple_of=2))
        == "k >= 1 and k <= 8 and k % 2 == 0"
    )
    assert str(SizeRule("k")) == "any k"
