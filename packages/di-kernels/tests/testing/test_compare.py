import pytest
import torch

from di_kernels.testing import MismatchError, assert_bitwise, assert_close, compare


def test_equal_tensors_including_nan():
    x = torch.tensor([1.0, torch.nan, torch.inf])
    assert compare(x, x.clone()).relative_rms == 0
    assert compare(torch.empty(0), torch.empty(0)).coordinate is None


def test_report_names_the_worst_coordinate_and_both_values():
    expected = torch.ones(3, 4)
    actual = expected.clone()
    actual[2, 1] = 2
    with pytest.raises(MismatchError, match=r"worst at \(2, 1\): got 2.0, expected 1.0"):
        assert_close(actual, expected, "thing")
    assert compare(actual, expected).num_different == 1


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_is_never_close(bad):
    expected = torch.ones(4)
    actual = expected.clone()
    actual[0] = bad
    for pair in ((actual, expected), (expected, actual)):
        with pytest.raises(MismatchError):
            assert_close(*pair)


def test_thresholds_follow_the_dtype():
    expected = torch.ones(100)
    assert_close((expected * 1.001).bfloat16(), expected)
    with pytest.raises(MismatchError):
        assert_close(expected * 1.001, expected)
    with pytest.raises(MismatchError):
        assert_close(torch.tensor([1, 2]), torch.tensor([1, 3]))
    with pytest.raises(MismatchError, match="shapes differ"):
        assert_close(torch.ones(2), torch.ones(3))


def test_bits_tell_zeros_apart():
    with pytest.raises(MismatchError, match=r"first at \(1,\).*80000000.*00000000"):
        assert_bitwise(torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0]))
    with pytest.raises(MismatchError, match="float64"):
        assert_bitwise(torch.ones(1).double(), torch.ones(1))
    assert_bitwise(torch.full((2,), torch.nan), torch.full((2,), torch.nan))
