import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from di_spec.sampling import Stream, gumbel, philox  # noqa: E402
from di_spec.sampling.gumbel import gumbel_of_bits  # noqa: E402
from di_spec.torch import noise  # noqa: E402

keys = st.integers(0, 2**64 - 1)


@given(keys, keys, st.integers(1, 50), st.sampled_from(Stream), st.integers(0, 2**24 - 1))
def test_tensor_words_are_the_numpy_words(seed, position, num_lanes, stream, offset):
    seeds, positions = np.array([seed], np.uint64), np.array([position], np.uint64)
    expected = philox.row_bits(seeds, stream, positions, num_lanes, offset)
    blocks = torch.arange((num_lanes + 3) // 4).unsqueeze(0)
    words = noise.philox4x32(*noise._inputs(seeds, stream, positions, blocks, offset))
    got = noise._stack(words).reshape(1, -1)[:, :num_lanes]
    np.testing.assert_array_equal(got.numpy(), expected)


def test_tensor_gumbel_is_bitwise_the_numpy_gumbel():
    bits = np.random.default_rng(3).integers(0, 2**32, 100_000, dtype=np.uint32)
    bits[:4] = [0, 1, 2**32 - 1, 2**31]
    got = noise.gumbel_of_bits(torch.from_numpy(bits.astype(np.int64))).numpy()
    np.testing.assert_array_equal(got.view(np.int64), gumbel_of_bits(bits).view(np.int64))


def test_noise_of_chosen_tokens():
    seed, position = np.arange(3, dtype=np.uint64), np.arange(5, 8, dtype=np.uint64)
    lane = torch.tensor([[0, 7, 9], [1, 1, 2], [100_000, 3, 4]])
    expected = gumbel(seed[:, None], Stream.DRAFT, position[:, None], lane.numpy(), 2)
    np.testing.assert_array_equal(
        noise.gumbel(seed, Stream.DRAFT, position, lane, 2).numpy(), expected
    )
    words = noise.philox4x32(*noise._inputs(seed, Stream.DRAFT, position, lane >> 2, 2))
    bits = noise._stack(words).gather(-1, (lane & 3).unsqueeze(-1)).squeeze(-1)
    np.testing.assert_array_equal(noise.gumbel_of_bits(bits).numpy(), expected)
