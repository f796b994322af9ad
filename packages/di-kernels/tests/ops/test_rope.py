import math

import pytest
import torch

from di_kernels import ops
from di_kernels.ops import YarnScaling


@pytest.mark.parametrize(
    ("name", "theta", "yarn"),
    [("compress_yarn", 160000, YarnScaling(16, 65536)), ("window_plain", 10000, None)],
)
def test_golden_tables_are_met_bit_for_bit(real_tables, name, theta, yarn):
    frequencies = ops.rope_frequencies(64, theta, yarn=yarn)
    cos, sin = ops.rope_cos_sin(real_tables["rope.positions"], frequencies)
    assert torch.equal(cos, real_tables[f"rope.{name}.cos"])
    assert torch.equal(sin, real_tables[f"rope.{name}.sin"])


def test_tables_do_not_depend_on_the_number_of_rows():
    frequencies = ops.rope_frequencies(64, 10000.0)
    positions = torch.arange(0, 130 * 997, 997)
    cos, sin = ops.rope_cos_sin(positions, frequencies)
    for row in (0, 1, 64, 129):
        one = ops.rope_cos_sin(positions[row : row + 1], frequencies)
        assert torch.equal(one[0][0], cos[row])
        assert torch.equal(one[1][0], sin[row])


@pytest.mark.parametrize("shape", [(5, 48), (5, 3, 48), (0, 3, 48)])
def test_inverse_undoes_and_other_channels_pass(shape):
    rotation = ops.rope_rotation(torch.arange(shape[0]), ops.rope_frequencies(32, 1e4))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    turned = ops.apply_rope(x, rotation)
    assert torch.equal(turned[..., :16], x[..., :16])
    torch.testing.assert_close(ops.apply_rope(turned, rotation.inverse()), x)


def test_neighbouring_channels_rotate_together():
    rotation = ops.rope_rotation(torch.tensor([3]), ops.rope_frequencies(4, 100.0))
    turned = ops.apply_rope(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), rotation)
    expected = [math.cos(3), math.sin(3), -math.sin(0.3), math.cos(0.3)]
    torch.testing.assert_close(turned, torch.tensor([expected]))


def test_rows_that_do_not_match_are_refused():
    rotation = ops.rope_rotation(torch.arange(3), ops.rope_frequencies(32, 1e4))
    with pytest.raises(ValueError, match=r"expected \(3, size\)"):
        ops.apply_rope(torch.zeros(4, 64), rotation)
    with pytest.raises(ValueError, match="size >= 32"):
        ops.apply_rope(torch.zeros(3, 16), rotation)
    with pytest.raises(ValueError, match="multiple of 2"):
        ops.rope_frequencies(31, 1e4)
