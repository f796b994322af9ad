"""What the catalogue promises of every op."""

import importlib
import pkgutil

import pytest

from di_kernels import op_names, tile
from di_kernels.tile.catalogue import kernels
from di_kernels.tile.gate import one_per_op

OPS = sorted({op for kernel in kernels().values() for op in kernel.ops})


@pytest.mark.parametrize("op", OPS)
def test_every_op_with_kernels_has_a_variant_for_sm100(op):
    assert op in op_names()
    of_op = [kernel for kernel in kernels().values() if op in kernel.ops]
    on_sm100 = [kernel for kernel in of_op if "sm_100a" in kernel.architectures]
    assert on_sm100
    # Where the work is a product, a variant of the product, not only what runs around it.
    is_product = any(kernel.has_tensor_core for kernel in of_op)
    assert any(kernel.has_tensor_core for kernel in on_sm100) or not is_product


def test_the_sample_of_an_architecture_covers_its_ops_with_few_kernels():
    for architecture in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
        sample = [kernels()[name] for name in one_per_op(architecture)]
        declared = [k for k in kernels().values() if architecture in k.architectures]
        assert all(architecture in kernel.architectures for kernel in sample)
        assert {op for k in sample for op in k.ops} == {op for k in declared for op in k.ops}
        assert len(sample) <= len(OPS)
        for op in {op for kernel in declared if kernel.has_tensor_core for op in kernel.ops}:
            assert any(kernel.has_tensor_core for kernel in sample if op in kernel.ops)


def test_every_module_of_kernels_imports():
    pytest.importorskip("tilelang")
    for module in pkgutil.iter_modules(tile.__path__, f"{tile.__name__}."):
        assert importlib.import_module(module.name)
