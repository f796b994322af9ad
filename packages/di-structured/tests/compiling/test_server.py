"""The compile server's judgement of how a worker ended."""

import os
import signal
import subprocess
import tempfile
import time
from multiprocessing import Pipe

import pytest

from di_structured.compiling.server import ServerLimits, _Server, _Worker
from di_structured.testing import byte_vocabulary


@pytest.mark.parametrize(
    ("death", "message", "answer"),
    [
        (None, None, ("failed", 7, "timeout")),
        (signal.SIGSEGV, None, ("failed", 7, "crash")),
        (signal.SIGTERM, ("built", "a grammar"), ("built", 7, "a grammar")),
    ],
)
def test_an_ending_that_is_noticed_too_late_keeps_its_name(death, message, answer):
    """As on a machine that was paused past the time limit: the facts decide, not the clock."""
    ours, control = Pipe()
    results, sender = Pipe(duplex=False)
    limits = ServerLimits(
        workers=1, threads=1, timeout_s=2.0, memory_limit_bytes=1 << 30, niceness=0
    )
    server = _Server(control, byte_vocabulary(), limits)
    with subprocess.Popen(["sleep", "600"]) as child, tempfile.TemporaryFile() as report:
        long_ago = time.monotonic() - 3.0
        server._workers[results] = _Worker(7, child.pid, results, report, long_ago)
        if message is not None:
            sender.send(message)
        sender.close()
        if death is not None:
            child.send_signal(death)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        server._kill_overdue()
    assert ours.recv()[:3] == answer
    assert not server._workers
