"""How long a step takes as a function of its rows: measured, kept on disk, refused when stale."""

import hashlib
import json
import logging
import math
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from di_spec.errors import LatencyTableError

__all__ = ["LatencyCache", "LatencyKey", "LatencyTable", "row_buckets"]

logger = logging.getLogger(__name__)

_FORMAT = 1
Interpolation = Literal["step", "linear"]


def row_buckets(max_rows: int, step: int = 8) -> list[int]:
    """Row counts to measure: powers of two below `step`, then multiples of it, then `max_rows`.

    The buckets of DeepInfer 0.1.0 `cuda_graph_runner.py`.
    """
    if max_rows < 1:
        raise ValueError(f"`max_rows` must be at least 1: got {max_rows}")
    step = min(step, max_rows)
    powers = [1 << i for i in range(step.bit_length()) if 1 << i < step]
    return [*powers, *range(step, max_rows, step), max_rows]


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Seconds per step for some numbers of rows.

    Attributes:
        rows: Measured row counts, ascending, at least 1.
        seconds: Time of a step with that many rows.
        interpolation: `step` where execution is padded to the next measured count (graphs):
            between two entries the time is that of the larger. `linear` where it is not.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    interpolation: Interpolation = "step"

    def __post_init__(self) -> None:
        """Checks the entries.

        Raises:
            LatencyTableError: If they are not ascending row counts with positive times.
        """
        if not self.rows or len(self.rows) != len(self.seconds):
            raise LatencyTableError(
                "a latency table needs as many times as row counts, at least one: got "
                f"{len(self.seconds)} and {len(self.rows)}"
            )
        if self.rows[0] < 1 or any(a >= b for a, b in zip(self.rows, self.rows[1:], strict=False)):
            raise LatencyTableError(f"row counts must ascend from 1 or more: got {self.rows}")
        if not all(math.isfinite(s) and s > 0 for s in self.seconds):
            raise LatencyTableError("times must be finite and above 0 seconds")
        if self.interpolation not in ("step", "linear"):
            raise LatencyTableError(
                f"`interpolation` must be step or linear: got {self.interpolation!r}"
            )

    @classmethod
    def measure(
        cls,
        rows: Sequence[int],
        run: Callable[[int], Any],
        *,
        repeats: int = 5,
        warmups: int = 1,
        interpolation: Interpolation = "step",
        clock: Callable[[], float] = time.perf_counter,
    ) -> "LatencyTable":
        """Times `run(n)` for each row count, the largest first.

        Of the repeats the fastest and the slowest are dropped and the rest averaged (with fewer
        than three, the median).

        Args:
            rows: Row counts to measure.
            run: Executes one step of n rows and returns when it is done; a GPU caller synchronises.
            repeats: Timed runs per row count.
            warmups: Runs before those.
            interpolation: See `LatencyTable`.
            clock: Seconds.
        """
        times: dict[int, float] = {}
        for count in sorted(set(rows), reverse=True):
            for _ in range(warmups):
                run(count)
            samples = []
            for _ in range(repeats):
                started = clock()
                run(count)
                samples.append(clock() - started)
            samples.sort()
            times[count] = (
                statistics.fmean(samples[1:-1]) if len(samples) > 2 else statistics.median(samples)
            )
        counts = sorted(times)
        return cls(tuple(counts), tuple(times[c] for c in counts), interpolation)

    @property
    def max_rows(self) -> int:
        """Largest measured row count; more rows are not planned for."""
        return self.rows[-1]

    def bucket(self, num_rows: int) -> int:
        """Smallest measured count that holds `num_rows`; the largest where none does."""
        place = int(np.searchsorted(self.rows, num_rows))
        return self.rows[min(place, len(self.rows) - 1)]

    def dense(self, max_rows: int) -> NDArray[np.float64]:
        """Seconds for 0, 1, ..., `max_rows` rows; infinite beyond the table, 0 for no rows."""
        counts = np.arange(max_rows + 1)
        if self.interpolation == "linear":
            seconds = np.interp(counts, self.rows, self.seconds)
        else:
            place = np.minimum(np.searchsorted(self.rows, counts), len(self.rows) - 1)
            seconds = np.asarray(self.seconds)[place]
        seconds = np.where(counts > self.max_rows, np.inf, seconds)
        seconds[0] = 0.0
        return seconds


@dataclass(frozen=True, slots=True)
class LatencyKey:
    """What a latency table was measured for; everything that changes a time belongs here.

    Attributes:
        device: Device name, with its count and clock limits where they are known.
        model: Model name and revision, or a digest of its configuration.
        settings: Everything else: draft length, parallel sizes, maximum lengths, kernel choices,
            determinism, library versions. Plain JSON values.
    """

    device: str
    model: str
    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the key, in hexadecimal."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """The key as JSON values."""
        return {
            "format": _FORMAT,
            "device": self.device,
            "model": self.model,
            "settings": dict(self.settings),
        }


class LatencyCache:
    """Latency tables in a directory of their own.

    Files are written whole (temporary name, fsync, rename), so that readers and writers of several
    processes may meet. Only files of this class's naming pattern are ever removed.

    Args:
        directory: Created if missing.
        max_age_s: Tables older than this many seconds are stale.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_age_s: float = 7 * 86400.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = Path(directory)
        self.max_age_s = max_age_s
        self.clock = clock

    def save(self, key: LatencyKey, table: LatencyTable) -> Path:
        """Writes a table and returns its path.

        Raises:
            OSError: If the directory cannot be written.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{key.digest}.{int(self.clock() * 1000)}.{uuid.uuid4().hex}.json"
        content = {
            "key": key.as_dict(),
            "measured_at": self.clock(),
            "rows": table.rows,
            "seconds": table.seconds,
            "interpolation": table.interpolation,
        }
        temporary = path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return path

    def load(self, key: LatencyKey) -> LatencyTable:
        """The newest table of `key` that is fresh and readable.

        Raises:
            LatencyTableError: If there is none; says what was found and why it was refused.
        """
        refused = []
        for path in sorted(self._paths(key), reverse=True):
            try:
                return self.read(path, key)
            except LatencyTableError as error:
                refused.append(str(error))
        reason = "; ".join(refused) if refused else "none was saved"
        raise LatencyTableError(f"no latency table for {key.model} on {key.device}: {reason}")

    def find(self, key: LatencyKey) -> LatencyTable | None:
        """As `load`, but None where there is no table; the reason is logged."""
        try:
            return self.load(key)
        except LatencyTableError as error:
            logger.info("%s", error)
            return None

    def read(self, path: Path, key: LatencyKey) -> LatencyTable:
        """Reads one file.

        Raises:
            LatencyTableError: If it is unreadable, for another key, from the future, or stale.
        """
        try:
            content = json.loads(path.read_text())
            measured_at = float(content["measured_at"])
            table = LatencyTable(
                tuple(int(n) for n in content["rows"]),
                tuple(float(s) for s in content["seconds"]),
                content["interpolation"],
            )
            saved_key = content["key"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LatencyTableError(f"{path.name} is unreadable: {error}") from None
        if saved_key != json.loads(json.dumps(key.as_dict())):
            raise LatencyTableError(f"{path.name} was measured for something else")
        age_s = self.clock() - measured_at
        if not 0 <= age_s <= self.max_age_s:
            raise LatencyTableError(
                f"{path.name} is {age_s:.0f} s old, the limit is {self.max_age_s:.0f} s"
            )
        return table

    def prune(self) -> int:
        """Removes tables that are stale by age; returns how many. Other files stay."""
        removed = 0
        for path in self.directory.glob("*.json"):
            parts = path.name.split(".")
            is_ours = len(parts) == 4 and len(parts[0]) == 64 and parts[1].isdigit()
            if is_ours and self.clock() - int(parts[1]) / 1000 > self.max_age_s:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _paths(self, key: LatencyKey) -> Iterator[Path]:
        return self.directory.glob(f"{key.digest}.*.json")
