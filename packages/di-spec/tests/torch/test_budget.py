import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import di_spec.torch as on_tensors  # noqa: E402
from di_spec import Proposal, split_budget  # noqa: E402


@given(st.integers(0, 2**32), st.integers(0, 20), st.integers(0, 6), st.booleans())
def test_device_split_is_the_host_split(seed, num_requests, width, ties):
    rng = np.random.default_rng(seed)
    confidence = (
        rng.choice([0.0, 0.5, 1.0], (num_requests, width))
        if ties
        else rng.random((num_requests, width))
    ).astype(np.float32)
    lengths = rng.integers(0, width + 1, num_requests)
    token_ids = np.where(np.arange(width) < lengths[:, None], 3, -1)
    host = Proposal(token_ids, lengths, confidence=confidence).survival()
    device = on_tensors.survival(torch.from_numpy(confidence), torch.from_numpy(lengths))
    np.testing.assert_array_equal(device.numpy(), host)
    total = int(rng.integers(0, num_requests * (width + 1) + 2))
    expected = split_budget(host, total)
    np.testing.assert_array_equal(on_tensors.split_budget(device, total).numpy(), expected)
    on_device = on_tensors.split_budget(device, torch.tensor(total))
    np.testing.assert_array_equal(on_device.numpy(), expected)
