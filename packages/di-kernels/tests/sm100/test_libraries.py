"""Which library counts as the right one, and who serves what with it and without it."""

import importlib.metadata

import pytest
import torch

from di_kernels import (
    BackendMissingError,
    NotRowInvariantError,
    UnsupportedDeviceError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    backends,
    check,
    describe,
    serving_backend,
    use_backend,
)
from di_kernels.layouts import PACKED_WITH_MXFP8_ROWS
from di_kernels.sm100 import libraries

ADAPTED = {"sparse_attention": "flash_mla", "mxfp8_linear": "deep_gemm", "moe_experts": "deep_gemm"}
B200 = (10, 0)


def adapter(op):
    return next(backend for backend in backends(op) if backend.name == ADAPTED[op])


def refusal(op, capability=B200, sizes=None, **options):
    return adapter(op).refusal(op, "cuda", capability, torch.bfloat16, sizes, **options)


@pytest.mark.parametrize("library", [libraries.FLASH_MLA, libraries.DEEP_GEMM])
def test_the_adapters_name_the_versions_and_parameters_that_were_read(library, signatures):
    facts = signatures[library.module]
    assert (library.distribution, library.version) == (facts["distribution"], facts["version"])
    for function, parameters in library.parameters.items():
        known = [parameter["name"] for parameter in facts["functions"][function]]
        assert set(parameters) <= set(known)


@pytest.mark.parametrize("op", ADAPTED)
def test_every_adapter_is_marked_and_serves_blackwell_alone(op, flash_mla, deep_gemm):
    assert not adapter(op).is_verified
    assert "never run on SM100" in adapter(op).note
    assert refusal(op) is None
    assert refusal(op, (10, 3)) is None
    for other in ((8, 0), (9, 0), (12, 0)):
        assert isinstance(refusal(op, other), UnsupportedDeviceError)
    assert serving_backend(op, "cuda", compute_capability=B200).name == ADAPTED[op]
    service = next(s for s in describe("cuda", compute_capability=B200) if s.op == op)
    assert not service.is_verified


@pytest.mark.parametrize("op", ADAPTED)
def test_without_the_library_the_reference_serves_and_the_hint_installs_it(op):
    assert serving_backend(op, "cuda", compute_capability=B200).name == "reference"
    missing = refusal(op)
    assert isinstance(missing, BackendMissingError)
    assert f"the module `{ADAPTED[op]}` is not installed" in str(missing)
    assert "pip install --no-build-isolation 'di-kernels[sm100]'" in str(missing)


def test_a_strangers_module_of_the_right_name_is_refused(flash_mla, monkeypatch):
    def installed(distribution):
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "version", installed)
    message = str(refusal("sparse_attention"))
    assert "is not that of `deepinfer-flashmla` 1.0.0" in message
    assert "other people's" in message


def test_another_version_is_refused_and_a_build_of_the_right_one_is_not(deep_gemm, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.0")
    message = str(refusal("mxfp8_linear"))
    assert "written for `deepinfer-gemm` 2.8.2, installed: 2.9.0" in message
    libraries.problem_with.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.8.2+local.1")
    assert refusal("mxfp8_linear") is None


def test_a_function_that_lost_a_parameter_is_named(deep_gemm, monkeypatch):
    monkeypatch.setattr(deep_gemm, "fp8_gemm_nt", lambda a, b, d: None)
    assert "lacks or changed: fp8_gemm_nt" in str(refusal("mxfp8_linear"))


class BoundFunction:
    """bound(a: tuple[object, object], b: object, recipe: int = 1) -> None

    As pybind11 makes them: a signature in the docstring and nowhere else, then more: text.
    """

    def __call__(self):
        """Makes it callable; nothing calls it."""

    @property
    def __signature__(self):
        raise ValueError("no signature found for builtin")


def test_a_bound_function_is_known_by_its_docstring():
    module = type("module", (), {"bound": BoundFunction()})
    assert libraries._accepts(module, "bound", ("a", "b", "recipe"))
    assert not libraries._accepts(module, "bound", ("a", "more"))
    assert not libraries._accepts(module, "missing", ())


def test_calls_that_do_not_fit_are_refused_by_name(flash_mla, deep_gemm):
    layout = "packed scales with unquantised rows"
    assert isinstance(refusal("mxfp8_linear", layout=layout), UnsupportedLayoutError)
    call = {"layout": PACKED_WITH_MXFP8_ROWS, "row_invariant": True}
    assert isinstance(refusal("mxfp8_linear", **call), NotRowInvariantError)
    sizes = {"heads": 96, "head_dim": 512, "stray_bytes": 0}
    wrong_heads = refusal("sparse_attention", sizes=sizes)
    assert isinstance(wrong_heads, UnsupportedShapeError)
    assert "heads % 64 == 0 (got 96)" in str(wrong_heads)
    sizes = {"heads": 64, "head_dim": 512, "stray_bytes": 16}
    assert "stray_bytes <= 0 (got 16)" in str(refusal("sparse_attention", sizes=sizes))
    assert refusal("sparse_attention", sizes=sizes | {"heads": 128, "stray_bytes": 0}) is None


def test_forcing_an_adapter_on_a_cpu_raises(flash_mla):
    from di_kernels import RecordPool, ops

    pool = RecordPool(torch.zeros(2, 528, dtype=torch.uint8), "mxfp8", 512)
    q = torch.zeros(1, 64, 512, dtype=torch.bfloat16)
    slots = torch.zeros(1, 1, dtype=torch.int64)
    with use_backend("flash_mla"), pytest.raises(UnsupportedDeviceError, match="type cuda"):
        ops.sparse_attention(q, pool, slots, torch.zeros(64))


@pytest.mark.parametrize(("capability", "checked"), [((9, 0), {"tilelang"}), (B200, {"flash_mla"})])
def test_kernels_are_checked_where_they_are_made_for(capability, checked, monkeypatch):
    monkeypatch.setattr(check, "compute_capability_of", lambda device: capability)
    op = "sparse_attention"
    assert checked == {b.name for b in backends(op) if check._is_kernel_of(b, op, "cuda")}
