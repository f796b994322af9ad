"""Scheduling for LLM engines: requests, blocks, prefix cache, step plans. numpy only."""

from di_scheduler.block_pool import BlockPool
from di_scheduler.config import SchedulerConfig
from di_scheduler.core import Counters
from di_scheduler.errors import (
    CapacityError,
    ConfigError,
    DuplicateRequestError,
    IntegrityError,
    InvalidRequestError,
    OutcomeError,
    PlanOrderError,
    SchedulerError,
)
from di_scheduler.hit import ExternalHit
from di_scheduler.outcome import RequestUpdate, StepOutcome, StepUpdate
from di_scheduler.plan import SnapshotSaves, StepPlan
from di_scheduler.protocols import (
    AllRows,
    KVConnector,
    MetricsSink,
    RowBudget,
    SingleRank,
    Transfer,
    TransferReport,
    Vote,
)
from di_scheduler.request import Request
from di_scheduler.scheduler import Scheduler
from di_scheduler.stats import SchedulerStats

__version__ = "0.1.0"

__all__ = [
    "AllRows",
    "BlockPool",
    "CapacityError",
    "ConfigError",
    "Counters",
    "DuplicateRequestError",
    "ExternalHit",
    "IntegrityError",
    "InvalidRequestError",
    "KVConnector",
    "MetricsSink",
    "OutcomeError",
    "PlanOrderError",
    "Request",
    "RequestUpdate",
    "RowBudget",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "SchedulerStats",
    "SingleRank",
    "SnapshotSaves",
    "StepOutcome",
    "StepPlan",
    "StepUpdate",
    "Transfer",
    "TransferReport",
    "Vote",
]
