"""Builders, toy models and statistics for the tests of this package and of engines that use it."""

from di_spec.testing.batches import grammar_mask, rows_batch

__all__ = ["grammar_mask", "rows_batch"]
