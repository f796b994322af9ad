"""Sampling without generator state: the readable reference on numpy arrays.

`di_spec.torch` has the same functions for tensors, with the same bits.
"""

from di_spec.sampling.batch import SamplerBatch, SampleRequest, SparseEdits
from di_spec.sampling.gumbel import draw, gumbel, inverse_cdf
from di_spec.sampling.history import TokenHistory
from di_spec.sampling.params import SamplingParams, seed_bits
from di_spec.sampling.philox import Stream, counter_bits, philox4x32, row_bits, uniform53
from di_spec.sampling.sample import LogprobsMode, Samples, sample, token_logprobs, top_logprobs
from di_spec.sampling.transform import Processed, RowStatus, process

__all__ = [
    "LogprobsMode",
    "Processed",
    "RowStatus",
    "SampleRequest",
    "SamplerBatch",
    "Samples",
    "SamplingParams",
    "SparseEdits",
    "Stream",
    "TokenHistory",
    "counter_bits",
    "draw",
    "gumbel",
    "inverse_cdf",
    "philox4x32",
    "process",
    "row_bits",
    "sample",
    "seed_bits",
    "token_logprobs",
    "top_logprobs",
    "uniform53",
]
