"""`di_kernels.ops.draw_tokens` draws the tokens of `di_spec`, bit for bit."""

import numpy as np
import pytest
import torch

from di_kernels import ops
from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, Stream, TokenHistory
from di_spec.torch import sample
from di_spec.torch.sample import gumbel_argmax

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ],
    ),
]


def batch_of(temperatures, vocab_size, rng):
    requests = []
    for number, temperature in enumerate(temperatures):
        seed = int(rng.integers(0, 2**64, dtype=np.uint64))
        history = TokenHistory(np.arange(number + 1))
        requests.append(SampleRequest(SamplingParams(temperature=temperature, seed=seed), history))
    return SamplerBatch.build(requests, vocab_size)


def tensors_of(batch, device):
    return (
        torch.from_numpy(batch.temperature).to(device),
        torch.from_numpy(batch.seed.view(np.int64)).to(device),
        torch.from_numpy(batch.position.view(np.int64)).to(device),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab_size", [4, 1000, 4096])
@pytest.mark.parametrize("has_mask", [False, True])
def test_rows_without_filters_have_the_same_tokens(device, vocab_size, has_mask):
    rng = np.random.default_rng(vocab_size)
    batch = batch_of([0.0, 0.7, 1.0, 1e-6, 1e-320, 50.0] * 4, vocab_size, rng)
    logits = torch.from_numpy(rng.normal(size=(24, vocab_size)).astype(np.float32)).to(device)
    logits[6:12] = logits[6:12].round()
    logits[12, 2], logits[13, 1], logits[14] = torch.nan, torch.inf, -torch.inf
    mask = None
    if has_mask:
        words = rng.integers(-(2**31), 2**31, (24, -(-vocab_size // 32)))
        mask = torch.from_numpy(words.astype(np.int32)).to(device)
        mask[15] = 0
    want = sample(logits, batch, mask)
    got = ops.draw_tokens(logits, *tensors_of(batch, device), mask_bits=mask)
    assert torch.equal(got.token_ids, want.token_ids)
    assert torch.equal(got.status, want.status)


@pytest.mark.parametrize("device", DEVICES)
def test_other_streams_and_offsets_have_the_same_tokens(device):
    rng = np.random.default_rng(1)
    batch = batch_of([1.0] * 8, 500, rng)
    weights = torch.from_numpy(rng.normal(size=(8, 500))).to(device)
    weights = weights - weights.amax(1, keepdim=True)
    for stream, offset in ((Stream.DRAFT, 3), (Stream.RESIDUAL, 0)):
        want = gumbel_argmax(weights, batch.seed, stream, batch.position, offset)
        got = ops.draw_tokens(
            weights, *tensors_of(batch, device), stream=int(stream), offset=offset
        )
        assert torch.equal(got.token_ids, want)
