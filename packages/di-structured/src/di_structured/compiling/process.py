"""The engine's end of the compile server."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from di_structured.compiling.server import ServerLimits
from di_structured.errors import CompileCrashError
from di_structured.vocabulary import Vocabulary

__all__ = ["ServerProcess"]

START_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 5.0
SERVER_CODE = "from di_structured.compiling.server import main; main()"


class ServerProcess:
    """A running compile server, and the thread that hears from it.

    Args:
        vocabulary: Sent to the server once.
        limits: What each worker may use.
        on_message: Called in the thread with each message but the first.
        on_end: Called in the thread when the server is gone, unless `close` made it go.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: ServerLimits,
        on_message: Callable[[tuple[Any, ...]], None],
        on_end: Callable[[], None],
    ) -> None:
        """Starts the process; it gets ready on its own."""
        ours, theirs = socket.socketpair()
        # A new session keeps the terminal's Ctrl-C away from the server: it ends when this end of
        # the pair closes.
        self._process = subprocess.Popen(  # noqa: S603 our own module, in this interpreter
            [sys.executable, "-c", SERVER_CODE, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._send_lock = threading.Lock()
        self._ready = threading.Event()
        self._is_closing = False
        self.is_alive = True
        self._on_message = on_message
        self._on_end = on_end
        self._first_message: tuple[Any, ...] | None = ("vocabulary", vocabulary, limits)
        self._thread = threading.Thread(target=self._listen, name="grammar-results", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Waits until the server has loaded xgrammar.

        Raises:
            CompileCrashError: It ended, or is not ready after two minutes.
        """
        if not self._ready.wait(START_TIMEOUT_S) or not self.is_alive:
            raise CompileCrashError("the compile server did not start; its standard error says why")

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends a message; may wait until the server reads.

        Raises:
            OSError: The server is gone.
        """
        with self._send_lock:
            self._send_first()
            self._connection.send(message)

    def close(self) -> None:
        """Ends the server and its workers."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(
                socket.SHUT_RDWR
            )  # the server ends its workers, our thread wakes up
        self._thread.join()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # still importing; it has no workers yet
            self._process.wait()
        self._connection.close()
        self._socket.close()

    def _send_first(self) -> None:
        if self._first_message is not None:
            first, self._first_message = self._first_message, None
            self._connection.send(first)

    def _listen(self) -> None:
        try:
            with self._send_lock:
                self._send_first()
            self._connection.recv()
            self._ready.set()
            while True:
                self._on_message(self._connection.recv())
        except (EOFError, OSError):
            self.is_alive = False
            self._ready.set()
            if not self._is_closing:
                self._process.wait()
                self._on_end()
