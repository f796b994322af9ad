"""Counters of speculation with the definitions written beside them.

Under a budget, a short accepted length is not a defect: fewer drafts were verified. So every figure
about quality is about drafts that were verified, and accepted length is reported with rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SpecMetrics"]


@dataclass(slots=True)
class SpecMetrics:
    """Sums over request-steps: one verification of one request.

    Args:
        max_drafts: Most drafts of a block.
    """

    max_drafts: int
    num_steps: int = field(default=0, init=False)
    num_request_steps: int = field(default=0, init=False)
    num_proposed: int = field(default=0, init=False)
    num_verified: int = field(default=0, init=False)
    num_accepted: int = field(default=0, init=False)
    num_emitted: int = field(default=0, init=False)
    expected_accepted: float = field(default=0.0, init=False)
    confidence_error: float = field(default=0.0, init=False)
    verified_at: NDArray[np.int64] = field(init=False)
    reached_at: NDArray[np.int64] = field(init=False)
    accepted_at: NDArray[np.int64] = field(init=False)
    accepted_histogram: NDArray[np.int64] = field(init=False)
    rows_histogram: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Makes room for the positions."""
        self.verified_at = np.zeros(self.max_drafts, np.int64)
        self.reached_at = np.zeros(self.max_drafts, np.int64)
        self.accepted_at = np.zeros(self.max_drafts, np.int64)
        self.accepted_histogram = np.zeros(self.max_drafts + 1, np.int64)
        self.rows_histogram = np.zeros(self.max_drafts + 2, np.int64)

    def record(
        self,
        num_proposed: Sequence[int] | NDArray[np.int64],
        num_verified: Sequence[int] | NDArray[np.int64],
        num_accepted: Sequence[int] | NDArray[np.int64],
        num_emitted: Sequence[int] | NDArray[np.int64],
        survival: NDArray[np.float64] | None = None,
    ) -> None:
        """Adds one engine step; all arguments are per request, [requests].

        Args:
            num_proposed: Drafts that existed.
            num_verified: Drafts that got a row.
            num_accepted: Drafts that were accepted.
            num_emitted: Tokens that the request kept (after stops).
            survival: Predicted survivals, [requests, drafts], for expected against observed.

        Raises:
            ValueError: If more were accepted than verified, verified than proposed, or proposed
                than a block has.
        """
        proposed, verified = np.asarray(num_proposed, np.int64), np.asarray(num_verified, np.int64)
        accepted, emitted = np.asarray(num_accepted, np.int64), np.asarray(num_emitted, np.int64)
        if (accepted > verified).any() or (verified > proposed).any():
            raise ValueError("accepted <= verified <= proposed must hold for every request")
        if (proposed > self.max_drafts).any():
            raise ValueError(f"a block has at most {self.max_drafts} drafts: got {proposed.max()}")
        places = np.arange(self.max_drafts)
        is_verified = places < verified[:, None]
        is_accepted = places < accepted[:, None]
        self.num_steps += 1
        self.num_request_steps += len(proposed)
        self.num_proposed += int(proposed.sum())
        self.num_verified += int(verified.sum())
        self.num_accepted += int(accepted.sum())
        self.num_emitted += int(emitted.sum())
        self.verified_at += is_verified.sum(0)
        self.reached_at += (is_verified & (places <= accepted[:, None])).sum(0)
        self.accepted_at += is_accepted.sum(0)
        self.accepted_histogram += np.bincount(accepted, minlength=self.max_drafts + 1)
        self.rows_histogram += np.bincount(verified + 1, minlength=self.max_drafts + 2)
        if survival is not None:
            width = min(survival.shape[1], self.max_drafts)
            predicted = np.where(is_verified[:, :width], survival[:, :width], 0.0)
            self.expected_accepted += float(predicted.sum())
            self.confidence_error += float(np.abs(predicted - is_accepted[:, :width]).sum())

    def merge(self, other: "SpecMetrics") -> None:
        """Adds the counters of another instance, of another rank for instance.

        Raises:
            ValueError: If it is about blocks of another size.
        """
        if other.max_drafts != self.max_drafts:
            raise ValueError(
                f"blocks of {other.max_drafts} drafts do not add to blocks of {self.max_drafts}"
            )
        for name in self.__slots__:
            if name != "max_drafts":
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def summary(self) -> dict[str, Any]:
        """Figures as JSON values; None where nothing was counted.

        `accepted_length`: emitted tokens per request-step if nothing stopped early, 1 + accepted.
        `acceptance_rate`: accepted / verified drafts. `acceptance_at`: accepted at k / verified at
        k. `conditional_acceptance_at`: accepted at k / verified at k after all earlier were
        accepted. `useful_rows`: emitted tokens / target rows. `budget_use`: verified / proposed
        drafts. `rows_per_request`: target rows per request-step. `tokens_per_step`: emitted tokens
        per engine step. `expected_accepted`, `observed_accepted`: per request-step.
        `confidence_error`: mean absolute difference of survival and outcome over verified drafts.
        """
        steps, verified = self.num_request_steps, self.num_verified
        return {
            "steps": self.num_steps,
            "request_steps": steps,
            "accepted_length": _ratio(steps + self.num_accepted, steps),
            "acceptance_rate": _ratio(self.num_accepted, verified),
            "acceptance_at": _ratios(self.accepted_at, self.verified_at),
            "conditional_acceptance_at": _ratios(self.accepted_at, self.reached_at),
            "useful_rows": _ratio(self.num_emitted, verified + steps),
            "budget_use": _ratio(verified, self.num_proposed),
            "rows_per_request": _ratio(verified + steps, steps),
            "tokens_per_step": _ratio(self.num_emitted, self.num_steps),
            "expected_accepted": _ratio(self.expected_accepted, steps),
            "observed_accepted": _ratio(self.num_accepted, steps),
            "confidence_error": _ratio(self.confidence_error, verified),
            "accepted_histogram": self.accepted_histogram.tolist(),
            "rows_histogram": self.rows_histogram.tolist(),
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _ratios(part: NDArray[np.int64], whole: NDArray[np.int64]) -> list[float | None]:
    return [_ratio(int(a), int(b)) for a, b in zip(part, whole, strict=True)]
