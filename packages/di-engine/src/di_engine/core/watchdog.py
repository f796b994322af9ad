"""Notices a step that does not end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from di_engine.core.engine import Activity

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)


class Watchdog:
    """Watches what an engine is doing, from a thread of its own."""

    def __init__(
        self,
        activity: Callable[[], Activity | None],
        timeout_s: float,
        clock: Callable[[], float],
        on_stuck: Callable[[str], None],
    ) -> None:
        """Prepares to watch; `start` does.

        Args:
            activity: What the engine is doing now; None while it does nothing.
            timeout_s: Seconds that one part of a step may take.
            clock: The clock of `Activity.since_s`.
            on_stuck: Told, once, what does not end, for how long, and whose requests it holds.
        """
        self._activity = activity
        self._timeout_s = timeout_s
        self._clock = clock
        self._on_stuck = on_stuck
        self._has_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="di-watchdog", daemon=True)

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stops watching."""
        self._has_stopped.set()

    def check(self) -> str | None:
        """Returns what is wrong now, or None."""
        activity = self._activity()
        if activity is None:
            return None
        seconds = self._clock() - activity.since_s
        if seconds <= self._timeout_s:
            return None
        return (
            f"{activity} has taken {seconds:.1f} s, more than `observability.step_timeout_s` = "
            f"{self._timeout_s:g}: look at the device, or raise the limit"
        )

    def _watch(self) -> None:
        while not self._has_stopped.wait(min(1.0, self._timeout_s / 4)):
            problem = self.check()
            if problem is not None:
                logger.error("the engine is stuck: %s", problem)
                self._on_stuck(f"the engine is stuck: {problem}")
                return
