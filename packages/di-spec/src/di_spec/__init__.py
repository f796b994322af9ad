"""Seedless sampling, speculative verification, drafters and verification budgets.

Importing this package needs numpy only. Functions on tensors are in `di_spec.torch`.
"""

from di_spec.budget import (
    Budget,
    BudgetPlanner,
    CostModel,
    RankScores,
    choose_budget,
    split_budget,
)
from di_spec.calibration import ConfidenceCalibrator, calibration_error
from di_spec.drafting import (
    NO_DRAFT,
    OUTSIDE_TARGET,
    DraftContext,
    Drafter,
    HiddenStates,
    Proposal,
    QKind,
)
from di_spec.errors import (
    CalibrationError,
    InvalidProposalError,
    InvalidSamplingError,
    LatencyTableError,
    SpecError,
    UnsupportedEngineError,
)
from di_spec.latency import LatencyCache, LatencyKey, LatencyTable, row_buckets
from di_spec.metrics import SpecMetrics
from di_spec.ngram import NgramDrafter
from di_spec.verify import Verified, VerifyMode, coupled_agreement, verify

__version__ = "0.1.0"

__all__ = [
    "NO_DRAFT",
    "OUTSIDE_TARGET",
    "Budget",
    "BudgetPlanner",
    "CalibrationError",
    "ConfidenceCalibrator",
    "CostModel",
    "DraftContext",
    "Drafter",
    "HiddenStates",
    "InvalidProposalError",
    "InvalidSamplingError",
    "LatencyCache",
    "LatencyKey",
    "LatencyTable",
    "LatencyTableError",
    "NgramDrafter",
    "Proposal",
    "QKind",
    "RankScores",
    "SpecError",
    "SpecMetrics",
    "UnsupportedEngineError",
    "Verified",
    "VerifyMode",
    "__version__",
    "calibration_error",
    "choose_budget",
    "coupled_agreement",
    "row_buckets",
    "split_budget",
    "verify",
]
