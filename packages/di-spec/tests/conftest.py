"""Shared builders of sampling batches."""

import numpy as np
import pytest

from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, TokenHistory


def make_batch(vocab_size, *rows, prompt=(0,)):
    """A batch of one row per item: parameters, or (parameters, history)."""
    requests = []
    for row in rows:
        params, history = row if isinstance(row, tuple) else (row, TokenHistory(prompt))
        requests.append(SampleRequest(params, history))
    return SamplerBatch.build(requests, vocab_size)


def full_mask(rows, vocab_size):
    """A grammar mask that allows everything."""
    return np.full((rows, (vocab_size + 31) // 32), -1, np.int32)


@pytest.fixture
def rng():
    return np.random.default_rng(20240607)


def params(**kwargs):
    return SamplingParams(**({"seed": 7} | kwargs))
