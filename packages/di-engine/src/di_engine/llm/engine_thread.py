"""The thread that owns the engine: takes requests from others, steps, delivers."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from di_engine.errors import EngineStoppedError
from di_engine.llm.mailbox import Mailbox
from di_engine.llm.outputs import RequestError, StreamDelta
from di_engine.llm.request_manager import RequestManager

__all__ = ["EngineThread"]

logger = logging.getLogger(__name__)


def _look_again() -> None:
    """A command that only wakes the thread up."""


@dataclass(frozen=True, slots=True)
class _Route:
    """Where the deltas of one request go."""

    put: Callable[[StreamDelta], None]


class EngineThread:
    """Runs a `RequestManager` in a thread of its own.

    Whatever happens to the thread, every mailbox that was submitted gets a last delta.
    """

    def __init__(self, requests: RequestManager) -> None:
        """Prepares the thread; `start` runs it."""
        self._requests = requests
        requests.on_grammar_ready(lambda: self._commands.put(_look_again))
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._mailboxes: set[Mailbox] = set()
        self._stop_message: str | None = None
        self._thread = threading.Thread(target=self._run, name="di-engine", daemon=True)

    def start(self) -> None:
        """Starts stepping."""
        self._thread.start()

    @property
    def num_unfinished(self) -> int:
        """Requests whose last delta is not delivered."""
        return len(self._mailboxes)

    def submit(self, mailbox: Mailbox) -> None:
        """Accepts the prepared request of a mailbox.

        Raises:
            EngineStoppedError: If the engine takes no more work.
        """
        with self._lock:
            if self._stop_message is not None:
                raise EngineStoppedError(self._stop_message)
            self._mailboxes.add(mailbox)
        self._commands.put(lambda: self._admit(mailbox))

    def abort(self, mailbox: Mailbox) -> None:
        """Ends a request whose consumer has left."""
        self._commands.put(lambda: self._requests.abort([mailbox.state]))

    def refuse(self, message: str) -> None:
        """Takes no more requests; those that run go on."""
        with self._lock:
            self._stop_message = self._stop_message or message

    def stop(self, message: str) -> None:
        """Ends every request, each with a terminal delta that says `message`, and the thread."""
        self.refuse(message)
        self._commands.put(lambda: self._requests.abort_all(message))
        self._commands.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread; returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def fail(self, message: str) -> None:
        """Ends every request from outside because the thread itself cannot; any thread.

        Should the thread come back, it finds that it is to end.
        """
        self.stop(message)
        with self._lock:
            mailboxes, self._mailboxes = self._mailboxes, set()
        for mailbox in mailboxes:
            mailbox.state.error = RequestError("internal", message)
            mailbox.put(mailbox.state.refusal())

    def _run(self) -> None:
        try:
            is_ending = False
            while not is_ending or self._requests.has_unfinished:
                is_ending = self._take_commands(waits=not is_ending) or is_ending
                if self._requests.has_unfinished:
                    self._step()
        except BaseException as error:
            logger.exception("the engine thread failed")
            self.fail(f"the engine failed: {error!r}")
            raise
        self.fail("the engine is shut down")  # for a request that slipped in behind the end

    def _take_commands(self, waits: bool) -> bool:
        """Carries out what was asked for; `waits` for it if there is nothing else to do.

        Returns:
            Whether the thread is to end.
        """
        is_ending = False
        while not is_ending:
            try:
                command = self._commands.get(block=waits and not self._requests.has_work)
            except queue.Empty:
                break
            if command is None:
                is_ending = True
            else:
                command()
        return is_ending

    def _admit(self, mailbox: Mailbox) -> None:
        state = mailbox.state
        state.inbox = _Route(lambda delta: self._deliver(mailbox, delta))
        self._requests.admit(state)
        if state.error is not None:
            self._deliver(mailbox, state.refusal())

    def _step(self) -> None:
        for state, delta in self._requests.step():
            if state.inbox is not None:
                state.inbox.put(delta)

    def _deliver(self, mailbox: Mailbox, delta: StreamDelta) -> None:
        """Puts a delta into its mailbox; a request that nobody reads any more is ended."""
        if delta.ends_request:
            with self._lock:
                self._mailboxes.discard(mailbox)
        if not mailbox.put(delta) and not delta.ends_request:
            logger.warning("request %s: its consumer is gone, it is aborted", delta.request_id)
            self._requests.abort([mailbox.state])
