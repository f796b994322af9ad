"""Confidences that mean what they say: one temperature for each draft position.

Sequential temperature scaling (DSpark, arXiv 2607.05147): from the first position on, the
temperature of position k minimises the expected calibration error of the product of confidences up
to k against "the first k drafts were accepted", with the earlier temperatures held. A temperature
keeps the order of confidences within its position. Grid, bins and clamps are those of SGLang's
`dspark_sts_fit.py`: 41 values from 0.1 to 10, 15 equal bins, the lowest temperature among equals.

The rule of verification decides how often a draft is accepted: a fit is for one mode and is refused
for another. Only observed acceptance enters, so positions that were never verified keep temperature
1 (or the fit of the data that did reach them).
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_spec.errors import CalibrationError
from di_spec.verify import VerifyMode

__all__ = ["ConfidenceCalibrator", "calibration_error"]

_GRID = np.geomspace(0.1, 10.0, 41)
_CLAMP = 1e-8
_LOGIT_LIMIT = 60.0
_FORMAT = 1

Scores = NDArray[np.float64]


def calibration_error(
    predicted: NDArray[np.floating[Any]], happened: NDArray[np.bool_], num_bins: int = 15
) -> float:
    """Expected calibration error: mean gap between prediction and frequency over equal bins.

    Args:
        predicted: Probabilities, [samples].
        happened: Outcomes, bool [samples].
        num_bins: Bins of equal width on [0, 1].
    """
    if not len(predicted):
        return 0.0
    bins = np.minimum((predicted * num_bins).astype(np.int64), num_bins - 1)
    gaps = np.bincount(bins, predicted - happened, num_bins)
    return float(np.abs(gaps).sum() / len(predicted))


@dataclass(frozen=True, slots=True)
class ConfidenceCalibrator:
    """Temperatures of a drafter's confidence logits.

    Attributes:
        mode: Verification mode they were fitted for.
        temperatures: One per draft position, above 0.
        num_samples: Verified blocks that reached each position when fitted.
    """

    mode: VerifyMode
    temperatures: tuple[float, ...]
    num_samples: tuple[int, ...]

    @classmethod
    def identity(cls, mode: VerifyMode, num_positions: int) -> "ConfidenceCalibrator":
        """Temperature 1 everywhere, for a drafter without a fit."""
        return cls(mode, (1.0,) * num_positions, (0,) * num_positions)

    @classmethod
    def fit(
        cls,
        mode: VerifyMode,
        logits: NDArray[np.floating[Any]],
        num_verified: Sequence[int] | NDArray[np.int64],
        num_accepted: Sequence[int] | NDArray[np.int64],
        min_samples: int = 100,
    ) -> "ConfidenceCalibrator":
        """Fits temperatures to observed acceptance.

        Args:
            mode: Mode that the blocks were verified with.
            logits: Confidence logits of the blocks, [blocks, positions].
            num_verified: Drafts of each block that were verified, [blocks]; later positions of a
                block say nothing.
            num_accepted: Drafts of each block that were accepted, [blocks].
            min_samples: Positions with fewer blocks keep the temperature of the position before.

        Raises:
            ValueError: If shapes contradict each other or more were accepted than verified.
        """
        scores = np.asarray(logits, np.float64)
        verified, accepted = np.asarray(num_verified), np.asarray(num_accepted)
        if (
            logits.ndim != 2
            or verified.shape != logits.shape[:1]
            or accepted.shape != verified.shape
        ):
            raise ValueError(
                f"`logits` must be [blocks, positions] and counts [blocks]: got {logits.shape}, "
                f"{verified.shape} and {accepted.shape}"
            )
        if (accepted > verified).any() or (verified > logits.shape[1]).any():
            raise ValueError(
                "accepted drafts must not exceed verified ones, nor those the positions"
            )
        product = np.ones(len(scores))
        temperatures: list[float] = []
        counts: list[int] = []
        for k in range(scores.shape[1]):
            is_seen = verified > k
            counts.append(int(is_seen.sum()))
            if counts[-1] >= min_samples:
                happened = accepted[is_seen] > k
                errors = [
                    calibration_error(
                        np.clip(
                            product[is_seen] * _sigmoid(scores[is_seen, k] / t), _CLAMP, 1 - _CLAMP
                        ),
                        happened,
                    )
                    for t in _GRID
                ]
                temperatures.append(float(_GRID[int(np.argmin(errors))]))
            else:
                temperatures.append(temperatures[-1] if temperatures else 1.0)
            product = product * _sigmoid(scores[:, k] / temperatures[-1])
        return cls(mode, tuple(temperatures), tuple(counts))

    def apply(self, logits: NDArray[np.floating[Any]]) -> Scores:
        """Calibrated confidences, float64 of the shape of `logits` [requests, positions].

        Raises:
            ValueError: If there are more positions than temperatures.
        """
        if logits.shape[-1] > len(self.temperatures):
            raise ValueError(
                f"fitted for {len(self.temperatures)} draft positions: got {logits.shape[-1]}"
            )
        scale = np.asarray(self.temperatures[: logits.shape[-1]])
        return _sigmoid(np.asarray(logits, np.float64) / scale)

    def save(self, path: str | os.PathLike[str], drafter: str) -> None:
        """Writes the fit as JSON, whole or not at all.

        Args:
            path: File to write.
            drafter: Name and revision of the drafter; `load` asks for the same.
        """
        content = {
            "format": _FORMAT,
            "drafter": drafter,
            "mode": self.mode,
            "temperatures": self.temperatures,
            "num_samples": self.num_samples,
        }
        target = Path(path)
        temporary = target.with_name(target.name + ".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(target)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], drafter: str, mode: VerifyMode
    ) -> "ConfidenceCalibrator":
        """Reads a fit.

        Raises:
            CalibrationError: If it is unreadable, for another drafter, or for another mode.
        """
        try:
            content = json.loads(Path(path).read_text())
            loaded = cls(
                content["mode"],
                tuple(float(t) for t in content["temperatures"]),
                tuple(int(n) for n in content["num_samples"]),
            )
            saved_for = content["format"], content["drafter"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CalibrationError(f"`{path}` is not a saved calibration: {error}") from None
        if saved_for != (_FORMAT, drafter):
            raise CalibrationError(
                f"`{path}` was fitted for drafter {saved_for[1]!r}: expected {drafter!r}"
            )
        if loaded.mode != mode:
            raise CalibrationError(
                f"`{path}` was fitted for {loaded.mode} verification, which accepts other drafts "
                f"than {mode}: fit again in that mode"
            )
        if not all(t > 0 for t in loaded.temperatures):
            raise CalibrationError(f"`{path}` holds temperatures that are not above 0")
        return loaded


def _sigmoid(x: Scores) -> Scores:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -_LOGIT_LIMIT, _LOGIT_LIMIT))))
