import pytest
import torch

from di_kernels import ops
from di_kernels.testing import assert_bitwise, assert_close


def test_tiny_rows_are_amplified_and_zero_rows_stay_zero():
    x = torch.full((2, 64), 1e-8)
    x[1] = 0
    y = ops.rms_norm(x, torch.ones(64))
    torch.testing.assert_close(y[0], torch.ones(64), rtol=1e-4, atol=0)
    assert not y[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norm_rounds_once_and_rows_stand_alone(dtype):
    x, weight = torch.randn(130, 96).to(dtype), torch.randn(96).to(dtype)
    y = ops.rms_norm(x, weight)
    wide = x.double() / x.double().square().mean(1, keepdim=True).sqrt() * weight.double()
    assert_close(y, wide)
    if dtype == torch.bfloat16:
        assert (y != wide.bfloat16()).float().mean() < 0.01
    for row in (0, 7, 129):
        assert_bitwise(ops.rms_norm(x[row : row + 1], weight), y[row : row + 1])
    assert ops.rms_norm(x[:0], weight).shape == (0, 96)
    with pytest.raises(ValueError, match="`weight`"):
        ops.rms_norm(x, weight[:5])


def test_equal_gates_average_and_far_gates_choose():
    values = torch.randn(4, 8)
    gates = torch.zeros(4, 8)
    gates[2], gates[3] = 80, -80
    pooled = ops.compress_pool(values, gates, torch.tensor([[0, 1], [2, 3]]))
    torch.testing.assert_close(pooled[0], values[:2].mean(0))
    torch.testing.assert_close(pooled[1], values[2])


def test_groups_may_take_any_rows_and_none():
    values, gates = torch.randn(5, 8), torch.randn(5, 8)
    pooled = ops.compress_pool(values, gates, torch.tensor([[4, 0], [1, 2]]))
    alone = ops.compress_pool(values, gates, torch.tensor([[1, 2]]))
    assert_bitwise(alone, pooled[1:])
    none = torch.empty(0, 2, dtype=torch.int64)
    assert ops.compress_pool(values, gates, none, out_dtype=torch.bfloat16).shape == (0, 8)
