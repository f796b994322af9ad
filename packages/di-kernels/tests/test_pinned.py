import pytest
import torch

from di_kernels import cuda_view, ops


def test_memory_that_is_not_pinned_is_refused_with_a_hint():
    with pytest.raises(ValueError, match=r"expected a tensor in pinned host memory.*cpu") as caught:
        cuda_view(torch.zeros(4))
    assert "hint: tensor.pin_memory()" in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_view_shares_the_memory_and_serves_lookups():
    codes, scale = ops.mxfp8_quantize(torch.randn(50, 64))
    pinned = codes.pin_memory(), scale.pin_memory()
    table = ops.EngramTable(*(cuda_view(part) for part in pinned))
    assert table.data.is_cuda
    assert table.data.data_ptr() == pinned[0].data_ptr()
    rows = torch.tensor([[0, 49], [-1, 7]])
    want = ops.engram_lookup(ops.EngramTable(codes, scale), rows, torch.bfloat16)
    assert torch.equal(ops.engram_lookup(table, rows.cuda(), torch.bfloat16).cpu(), want)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_views_of_nothing_and_of_strided_memory_are_refused():
    pinned = torch.zeros(4, 4).pin_memory()
    with pytest.raises(ValueError, match="expected a contiguous tensor that is not empty"):
        cuda_view(pinned.T[:, :2])
    with pytest.raises(ValueError, match="expected a contiguous tensor that is not empty"):
        cuda_view(pinned[:0])
