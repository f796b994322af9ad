"""`di_spec` on torch tensors. The only part of the package that imports torch."""

from di_spec.torch.budget import split_budget, survival
from di_spec.torch.noise import counter_bits, gumbel, row_bits
from di_spec.torch.sample import (
    Processed,
    Samples,
    gumbel_argmax,
    process,
    sample,
    token_logprobs,
    top_logprobs,
)
from di_spec.torch.verify import Verified, accept_samples, verify

__all__ = [
    "Processed",
    "Samples",
    "Verified",
    "accept_samples",
    "counter_bits",
    "gumbel",
    "gumbel_argmax",
    "process",
    "row_bits",
    "sample",
    "split_budget",
    "survival",
    "token_logprobs",
    "top_logprobs",
    "verify",
]
