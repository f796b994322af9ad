import pytest
import torch

from di_kernels import MXFP4Weight, ops
from di_kernels.testing import assert_bitwise, assert_close


def test_router_values_and_order():
    logits = torch.tensor([[-20.0, 0, 1, 5, 30, 1000, -1000]])
    indices, weights = ops.router_topk(logits, None, 7)
    assert indices.tolist() == [[5, 4, 3, 2, 1, 0, 6]]
    scores = weights / weights[0, 4] * 0.832555
    expected = torch.tensor([[1000**0.5, 5.4772, 2.2376, 1.14596, 0.832555, 4.54e-5, 0]])
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-6)


def test_the_bias_selects_and_does_not_weigh():
    logits = torch.randn(5, 8)
    bias = torch.zeros(8)
    bias[[6, 7]] = 1e4
    indices, weights = ops.router_topk(logits, bias, 2, scaling_factor=1.5)
    assert (indices.sort().values == torch.tensor([6, 7])).all()
    scores = torch.nn.functional.softplus(logits).sqrt().gather(1, indices)
    torch.testing.assert_close(weights, 1.5 * scores / scores.sum(1, keepdim=True))
    per_row = bias.repeat(5, 1)
    per_row[0] = 0
    rows, _ = ops.router_topk(logits, per_row, 2)
    assert torch.equal(rows[1:], indices[1:])
    assert torch.equal(rows[0], ops.router_topk(logits, None, 2)[0][0])


def test_equal_scores_go_to_the_lower_expert_and_masked_rows_nowhere():
    mask = torch.tensor([True, False])
    indices, weights = ops.router_topk(torch.zeros(2, 9), None, 6, row_mask=mask)
    assert indices.tolist() == [[0, 1, 2, 3, 4, 5], [-1] * 6]
    assert not weights[1].any()


def test_nan_logits_stay_in_their_row():
    logits = torch.zeros(2, 8)
    logits[0, 3] = torch.nan
    indices, weights = ops.router_topk(logits, None, 3)
    assert ((indices >= 0) & (indices < 8)).all()
    assert weights[0].isnan().any()
    assert not weights[1].isnan().any()


def test_the_clamp_is_one_sided_on_the_gate():
    gate_up = torch.tensor([[12.0, -12, 3, -1e4, -15, 15, 2, 1]])
    expected = torch.tensor([[-99.995, -7.373e-4, 5.7154, 0]])
    torch.testing.assert_close(ops.swiglu(gate_up, 10.0), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rows", [0, 1, 2, 33])
@pytest.mark.parametrize("packed", [False, True])
def test_experts_are_the_sum_over_their_rows(rows, packed):
    generator = torch.Generator().manual_seed(0)
    w13 = torch.randn(5, 64, 32, generator=generator)
    w2 = torch.randn(5, 32, 32, generator=generator)
    if packed:
        packed13, packed2 = ops.mxfp4_weight_quantize(w13), ops.mxfp4_weight_quantize(w2)
        w13, w2 = packed13.dequantize(), packed2.dequantize()
    x = torch.randn(rows, 32, generator=generator)
    indices = torch.randint(-1, 5, (rows, 3), generator=generator)
    weights = torch.rand(rows, 3, generator=generator)
    experts = (packed13, packed2) if packed else (w13, w2)
    for quantize in (False, True):
        for invariant in (False, True):
            out = ops.moe_experts(
                x, indices, weights, *experts, limit=1.5, shared=x, quantize_input=quantize,
                batch_invariant=invariant,
            )  # fmt: skip
            expected = x.double()
            for row in range(rows):
                for expert, weight in zip(indices[row].tolist(), weights[row], strict=True):
                    if expert >= 0:
                        up = ops.linear(x[row], w13[expert], quantize_input=quantize)
                        a = ops.swiglu(up, 1.5, row_weights=weight)
                        expected[row] += ops.linear(a, w2[expert], quantize_input=quantize).double()
            assert_close(out, expected)


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_computing_every_expert_equals_choosing(dtype, quantize):
    generator = torch.Generator().manual_seed(1)
    w13 = torch.randn(5, 64, 32, generator=generator).to(dtype)
    w2 = torch.randn(5, 32, 32, generator=generator).to(dtype)
    x = torch.randn(6, 32, generator=generator).to(dtype)
    indices = torch.stack([torch.randperm(4, generator=generator)[:3] for _ in range(6)])
    indices[2, 1] = -1
    weights = torch.rand(6, 3, generator=generator)
    arguments = {"limit": 1.5, "quantize_input": quantize}
    expected = ops.moe_experts(x, indices, weights, w13, w2, batch_invariant=True, **arguments)
    assert_close(ops.moe_experts(x, indices, weights, w13, w2, **arguments), expected)
    w13[4], w2[4] = torch.nan, torch.nan  # nobody chose it
    assert_close(ops.moe_experts(x, indices, weights, w13, w2, **arguments), expected)


def test_a_row_does_not_feel_who_shares_its_expert():
    w13, w2 = torch.randn(4, 64, 32), torch.randn(4, 32, 32)
    x = torch.randn(40, 32)
    indices, weights = ops.router_topk(torch.randn(40, 4), None, 2)

    def experts(rows):
        return ops.moe_experts(
            x[rows], indices[rows], weights[rows], w13, w2, limit=9.0, batch_invariant=True
        )

    whole = experts(slice(None))
    for row in range(40):
        assert_bitwise(experts(slice(row, row + 1)), whole[row : row + 1])


def test_an_expert_that_does_not_exist_is_refused():
    weights = torch.ones(1, 2)
    experts = torch.zeros(4, 64, 32), torch.zeros(4, 32, 32)
    with pytest.raises(IndexError, match="there are 4, got: 4"):
        ops.moe_experts(torch.zeros(1, 32), torch.tensor([[0, 4]]), weights, *experts, limit=1.0)
    with pytest.raises(ValueError, match="1 to 4 experts, got: 5"):
        ops.router_topk(torch.zeros(1, 4), None, 5)


def test_one_expert_of_many_shares_memory():
    weight = ops.mxfp4_weight_quantize(torch.randn(3, 4, 32))
    assert isinstance(weight[1], MXFP4Weight)
    assert weight[1].data.data_ptr() == weight.data[1].data_ptr()
    assert weight.shape == (3, 4, 32)
