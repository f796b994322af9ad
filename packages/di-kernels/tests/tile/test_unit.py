"""Several kernels in one run of nvcc: whose line is whose, and where a fault belongs."""

import pytest

from di_kernels.tile import toolchain, unit

REPORT = """\
ptxas info    : 10 bytes gmem
ptxas info    : (C7510) wgmma.mma_async instructions are serialized in function '_ZN4k0011fEv'
ptxas info    : Compiling entry function '_ZN4k0001fEv' for 'sm_90a'
ptxas info    : Function properties for _ZN4k0001fEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 50 registers, 1024 bytes smem
ptxas info    : Compiling entry function '_ZN4k0011fEv' for 'sm_90a'
ptxas info    : Function properties for _ZN4k0011fEv
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 60 registers
"""
PTX = """\
.version 9.0
.visible .entry _ZN4k0001fEv(
mma.sync.aligned
.visible .entry _ZN4k0011fEv(
wgmma.mma_async
"""
KERNEL = """\
#if defined(NEVER)
#include <nowhere.h>
#endif
#include <cuda_bf16.h>
__constant__ unsigned table[1] = {1u};
extern "C" __global__ void kernel_kernel(unsigned* out) { out[threadIdx.x] = table[0] + %s; }
"""


def needs_nvcc():
    pytest.importorskip("tilelang", reason="the extra `tilelang` is not installed")
    if toolchain.find_nvcc() is None:
        pytest.skip("no nvcc: the extra `tilelang` of di-kernels brings it")


def test_every_kernel_gets_its_own_lines():
    first, second = unit.split_report(REPORT, PTX, 2)
    assert "Used 50 registers" in first.report
    assert "Used 60 registers" not in first.report
    assert "serialized" not in first.report
    assert "serialized" in second.report
    assert "4 bytes spill stores" in second.report
    assert "10 bytes gmem" in first.report
    assert "10 bytes gmem" in second.report
    assert "mma.sync" in first.ptx
    assert "wgmma" not in first.ptx
    assert "wgmma" in second.ptx


def test_a_kernel_without_an_entry_function_is_no_success():
    *_, third = unit.split_report(REPORT, PTX, 3)
    assert third == unit.Compiled("no entry function", None)


@pytest.mark.slow
def test_equal_names_and_helpers_compile_side_by_side():
    needs_nvcc()
    results = unit.compile_unit([KERNEL % "1u", KERNEL % "2u"], "sm_90a")
    assert ["Used" in result.report and ".entry" in result.ptx for result in results] == [True] * 2


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_takes_no_other_with_it():
    needs_nvcc()
    good, bad = unit.compile_unit([KERNEL % "1u", KERNEL % "missing"], "sm_90a")
    assert good.ptx is not None
    assert bad.ptx is None
    assert '"missing" is undefined' in bad.report
