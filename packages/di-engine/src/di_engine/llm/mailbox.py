"""Deltas on their way from the engine thread to a coroutine."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from di_engine.llm.outputs import StreamDelta
from di_engine.llm.request_state import RequestState

__all__ = ["Mailbox", "joined"]


class Mailbox:
    """Holds what one request produced until its consumer reads it.

    A consumer that falls behind finds the unread deltas of a completion joined into one: it holds
    up nobody, and what waits for it never exceeds the request's own output.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, state: RequestState) -> None:
        """Makes the mailbox of `state`, read in `loop`."""
        self.state = state
        self._loop = loop
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[int, StreamDelta] = {}
        self._has_ended = False

    @property
    def has_ended(self) -> bool:
        """Whether the last delta was put."""
        return self._has_ended

    def put(self, delta: StreamDelta) -> bool:
        """Takes a delta, in any thread.

        Returns:
            Whether there is still somebody to read it.
        """
        with self._lock:
            if self._has_ended:
                return True
            self._has_ended = delta.ends_request
            earlier = self._pending.get(delta.index)
            self._pending[delta.index] = delta if earlier is None else joined(earlier, delta)
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the consumer's event loop is closed
            return False
        return True

    async def take(self) -> list[StreamDelta]:
        """Waits for deltas and returns them; empty after the last one."""
        while True:
            with self._lock:
                taken, self._pending = list(self._pending.values()), {}
                has_ended = self._has_ended
                self._ready.clear()
            if taken or has_ended:
                return sorted(taken, key=lambda delta: delta.ends_request)
            await self._ready.wait()


def joined(first: StreamDelta, second: StreamDelta) -> StreamDelta:
    """Two deltas of one completion as one."""
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = [*(first.logprobs or []), *(second.logprobs or [])]
    return replace(
        second,
        text=first.text + second.text,
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
    )
