"""Keeps Ctrl-C from cutting a step in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["deferred_interrupt"]


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Holds the first Ctrl-C back until the block has ended; the second one acts at once.

    An exception in the middle of a step would leave the scheduler and the cache in disagreement.
    Does nothing outside the main thread, or where the program handles Ctrl-C itself.

    Raises:
        KeyboardInterrupt: At the end of the block, if Ctrl-C came during it.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    held = False

    def hold(signum: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            signal.default_int_handler(signum, frame)
        held = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if held:
        raise KeyboardInterrupt
