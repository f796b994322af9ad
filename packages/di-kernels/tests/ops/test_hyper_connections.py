import pytest
import torch

from di_kernels import NotDifferentiableError, UnsupportedShapeError, ops, use_backend
from di_kernels.testing import assert_bitwise, assert_close

GOLDEN_LOGITS = [[0.0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 4], [-1, 5, 0, 0]]
GOLDEN = [
    [0.0733, 0.0274, 0.6831, 0.2167],
    [0.8143, 0.0411, 0.1390, 0.0060],
    [0.0959, 0.0132, 0.1210, 0.7707],
    [0.0166, 0.9183, 0.0568, 0.0066],
]


@pytest.mark.parametrize("backend", ["reference", "numpy", "scalar"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden_matrix(backend, dtype):
    with use_backend(backend):
        mix = ops.hc_sinkhorn(torch.tensor([GOLDEN_LOGITS], dtype=dtype), 20)
    assert mix.dtype == dtype
    torch.testing.assert_close(mix[0], torch.tensor(GOLDEN, dtype=dtype), atol=5e-5, rtol=0)
    assert (mix.sum(1) - 1).abs().max() < 2e-6


def test_numpy_gives_the_reference_bits_for_any_number_of_rows():
    logits = torch.randn(130, 4, 4, generator=torch.Generator().manual_seed(0)) * 3
    with use_backend("reference"):
        whole = ops.hc_sinkhorn(logits, 20)
    with use_backend("numpy"):
        for rows in (1, 2, 3, 8, 17, 130):
            assert_bitwise(ops.hc_sinkhorn(logits[:rows], 20), whole[:rows])


def test_one_iteration_is_softmax_then_columns():
    logits = torch.randn(1, 4, 4)
    start = torch.softmax(logits.double(), -1) + 1e-6
    expected = start / (start.sum(1, keepdim=True) + 1e-6)
    for backend in ("reference", "numpy", "scalar"):
        with use_backend(backend):
            assert_close(ops.hc_sinkhorn(logits, 1), expected)


def test_rows_choose_the_form_and_gradients_the_reference():
    logits = torch.randn(2, 4, 4, requires_grad=True)
    with use_backend("scalar"), pytest.raises(UnsupportedShapeError, match=r"rows <= 1 \(got 2\)"):
        ops.hc_sinkhorn(logits.detach(), 20)
    with use_backend("numpy"), pytest.raises(NotDifferentiableError):
        ops.hc_sinkhorn(logits, 20)
    ops.hc_sinkhorn(logits, 20).sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize("copies", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_step_has_the_same_bits_for_a_row_alone(copies, dtype):
    generator = torch.Generator().manual_seed(0)
    mixes = (2 + copies) * copies
    x = torch.randn(65, copies, 40, generator=generator).to(dtype)
    y = torch.randn(65, 40, generator=generator).to(dtype)
    fn = torch.randn(mixes, copies * 40, generator=generator)
    base = torch.randn(mixes, generator=generator)

    def step(rows):
        weights = ops.hc_mixes(
            x[rows], fn, torch.ones(3), base, iterations=20, batch_invariant=True
        )
        u = ops.hc_collapse(x[rows], weights.pre, batch_invariant=True)
        return ops.hc_expand(
            y[rows] + u, x[rows], weights.post, weights.residual, batch_invariant=True
        )

    whole = step(slice(None))
    for row in (0, 1, 31, 64):
        assert_bitwise(step(slice(row, row + 1)), whole[row : row + 1])
    assert step(slice(0, 0)).shape == (0, copies, 40)


def test_scaled_streams_have_the_same_mixes_and_zeros_are_finite():
    x, fn = torch.randn(3, 4, 16).double(), torch.randn(24, 64).double()
    arguments = (fn, torch.ones(3).double(), torch.randn(24).double())
    plain = ops.hc_mixes(x, *arguments, iterations=20)
    scaled = ops.hc_mixes(x * 1e-6, *arguments, iterations=20)
    for a, b in zip(plain, scaled, strict=True):
        torch.testing.assert_close(a, b)
    zero = ops.hc_mixes(x * 0, *arguments, iterations=20)
    assert all(part.isfinite().all() for part in zero)


def test_copy_j_takes_column_j():
    x = torch.eye(2).unsqueeze(0)
    residual = torch.tensor([[[0.9, 0.1], [0.3, 0.7]]])
    new = ops.hc_expand(torch.zeros(1, 2), x, torch.zeros(1, 2), residual)
    assert torch.equal(new[0], residual[0].T)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"`fn`: expected \(24, 64\)"):
        ops.hc_mixes(
            torch.zeros(1, 4, 16), torch.zeros(24, 63), torch.ones(3), torch.zeros(24), iterations=1
        )
    with pytest.raises(ValueError, match="iterations"):
        ops.hc_sinkhorn(torch.zeros(1, 4, 4), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_transition_is_expand_then_mixes_and_collapse(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, 40, generator=generator).to(dtype)
    y, norm = torch.randn(5, 40).to(dtype), torch.randn(40)
    pre, post, residual = torch.rand(5, 4), torch.rand(5, 4), torch.rand(5, 4, 4)
    coefficients = torch.randn(24, 160), torch.rand(3), torch.randn(24)
    got = ops.hc_transition(y, x, post, residual, pre, norm, *coefficients, iterations=20)
    streams = ops.hc_expand(y, x, post, residual)
    assert_bitwise(got.streams, streams)
    assert_bitwise(got.normed, ops.hc_collapse_norm(streams, pre, norm))
    for have, want in zip(
        got.mixes, ops.hc_mixes(streams, *coefficients, iterations=20), strict=True
    ):
        assert_bitwise(have, want)


def test_a_transition_refuses_shapes_that_do_not_match():
    x, y = torch.randn(5, 4, 40), torch.randn(5, 40)
    weights = torch.rand(5, 4), torch.rand(5, 4, 4), torch.rand(5, 4)
    coefficients = torch.randn(24, 160), torch.rand(3), torch.randn(24)
    with pytest.raises(ValueError, match="invalid shape of `norm_weight`"):
        ops.hc_transition(y, x, *weights, torch.rand(41), *coefficients, iterations=20)
    with pytest.raises(ValueError, match="invalid shape of `y`"):
        ops.hc_transition(y[:4], x, *weights, torch.rand(40), *coefficients, iterations=20)
