"""The kernels on a Hopper GPU, against float64 and bit for bit with themselves."""

import pytest
import torch

from di_kernels.check import KERNELS, run_checks

HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(not HAS_HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("op", ["moe_experts", "grouped_linear", "sparse_attention"])
def test_kernels_pass_their_checks(op):
    results = list(run_checks("cuda", op_filter=[op], shapes=KERNELS))
    assert results
    assert [r for r in results if r.status != "pass"] == []
