"""Seedless sampling, speculative verification, drafters and verification budgets.

Importing this package needs numpy only. Functions on tensors are in `di_spec.torch`.
"""

from di_spec.errors import (
    InvalidProposalError,
    InvalidSamplingError,
    LatencyTableError,
    SpecError,
    UnsupportedEngineError,
)

__version__ = "0.1.0"

__all__ = [
    "InvalidProposalError",
    "InvalidSamplingError",
    "LatencyTableError",
    "SpecError",
    "UnsupportedEngineError",
    "__version__",
]
