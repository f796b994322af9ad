"""Errors of di_spec. One base class, so that a caller can catch everything of this package."""

__all__ = [
    "CalibrationError",
    "InvalidProposalError",
    "InvalidSamplingError",
    "LatencyTableError",
    "SpecError",
    "UnsupportedEngineError",
]


class SpecError(Exception):
    """Base class of every error that di_spec raises on purpose."""


class CalibrationError(SpecError, ValueError):
    """A saved calibration is unreadable or was fitted for something else."""


class InvalidSamplingError(SpecError, ValueError):
    """A sampling parameter is out of range; the text lists every such parameter."""


class InvalidProposalError(SpecError, ValueError):
    """Drafts contradict each other or the batch they belong to: shapes, lengths, distributions."""


class LatencyTableError(SpecError, ValueError):
    """A latency table is missing, stale, unreadable or was measured for something else."""


class UnsupportedEngineError(SpecError, ImportError):
    """The engine of an integration is missing, or its plug-in points are not the known ones."""
