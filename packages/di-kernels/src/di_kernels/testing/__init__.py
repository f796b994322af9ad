"""Comparing tensors: one measure, one table of thresholds, one form of report."""

from di_kernels.testing.compare import (
    THRESHOLDS,
    Comparison,
    MismatchError,
    assert_bitwise,
    assert_close,
    compare,
)

__all__ = [
    "THRESHOLDS",
    "Comparison",
    "MismatchError",
    "assert_bitwise",
    "assert_close",
    "compare",
]
