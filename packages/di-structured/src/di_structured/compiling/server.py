"""The compile server: a process that has xgrammar loaded and forks one worker for each grammar.

Importing xgrammar takes seconds and 0.6 GB, and a compile can be stopped only by killing its
process. So one process imports it once, builds the vocabulary's views once, stays single-threaded,
and forks: a worker starts in milliseconds, shares those pages, and can be killed at any point
without harm to anybody else.

Messages to the server: `("vocabulary", Vocabulary, ServerLimits)` first, then `("compile", job id,
OutputSchema)` and `("cancel", job id)`. Messages back: `("ready",)`, then for each job that was not
cancelled one `("built", job id, BuildResult, seconds)` or `("failed", job id, failure code,
message, problems, seconds)`. The end of the connection ends the server and its workers.
"""

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from di_structured.compiling.build import build_grammar
from di_structured.errors import EmptyGrammarError, InvalidSchemaError
from di_structured.schema import OutputSchema
from di_structured.vocabulary import VIEWS, Vocabulary

__all__ = ["BuildResult", "ServerLimits", "main"]

MAX_REPORT_BYTES = 4000


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What each worker may use.

    Attributes:
        workers: The most grammars that compile at a time.
        threads: Threads of one compile.
        timeout_s: Seconds from the start of a worker until it is killed.
        memory_limit_bytes: Address space that a worker may add to the server's.
        niceness: Added to the workers' nice value; 0 to 19.
    """

    workers: int
    threads: int
    timeout_s: float
    memory_limit_bytes: int
    niceness: int


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A compiled grammar on its way between processes.

    Attributes:
        serialized: xgrammar's JSON form.
        size_bytes: Memory that the grammar takes once it is loaded.
        warnings: What xgrammar warned about.
    """

    serialized: str
    size_bytes: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Worker:
    job_id: int
    pid: int
    results: Connection
    report: IO[bytes]
    started: float


class _Server:
    """The loop of the server process."""

    def __init__(self, control: Connection, vocabulary: Vocabulary, limits: ServerLimits) -> None:
        self._control = control
        self._vocabulary = vocabulary
        self._limits = limits
        self._queue: deque[tuple[int, OutputSchema]] = deque()
        self._workers: dict[Connection, _Worker] = {}

    def run(self) -> None:
        """Serves until the other side closes the connection."""
        try:
            while True:
                for source in wait([self._control, *self._workers], self._seconds_to_deadline()):
                    if source is self._control:
                        self._take(self._control.recv())
                    elif isinstance(source, Connection) and source in self._workers:
                        self._finish(self._workers[source])
                self._kill_overdue()
                while self._queue and len(self._workers) < self._limits.workers:
                    self._fork(*self._queue.popleft())
        except (EOFError, OSError):
            pass  # the engine is gone
        finally:
            for worker in list(self._workers.values()):
                self._kill(worker)

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, job_id = message[0], message[1]
        if kind == "compile":
            self._queue.append((job_id, message[2]))
        elif kind == "cancel":
            self._queue = deque(job for job in self._queue if job[0] != job_id)
            for worker in [w for w in self._workers.values() if w.job_id == job_id]:
                self._kill(worker)

    def _seconds_to_deadline(self) -> float | None:
        if not self._workers:
            return None
        first = min(worker.started for worker in self._workers.values())
        return max(0.0, first + self._limits.timeout_s - time.monotonic())

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if now - worker.started >= self._limits.timeout_s:
                # It may have ended in time and only be noticed late, as on a machine that was
                # paused: what it sent, or how it died, decides.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                self._finish(worker)

    def _fork(self, job_id: int, schema: OutputSchema) -> None:
        receiver, sender = Pipe(duplex=False)
        report = tempfile.TemporaryFile()  # noqa: SIM115 closed with its worker
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                self._work(schema, sender, report)
            os._exit(0)
        sender.close()
        self._workers[receiver] = _Worker(job_id, pid, receiver, report, started)

    def _work(self, schema: OutputSchema, sender: Connection, report: IO[bytes]) -> None:
        """Compiles in the forked process and sends one message."""
        self._control.close()
        _forbid_core_dump()
        os.dup2(report.fileno(), 2)  # xgrammar writes its warnings there
        if self._limits.niceness:
            os.nice(self._limits.niceness)
        limit = _address_space() + self._limits.memory_limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        # Should the server itself be killed, nobody watches the clock: the processor time then ends
        # the worker.
        processor_s = math.ceil(self._limits.timeout_s * self._limits.threads) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
        try:
            info = self._vocabulary.tokenizer_info(schema.view)
            compiled = build_grammar(schema, info, threads=self._limits.threads)
            warnings = tuple(_warnings(report))
            if warnings and schema.strict and schema.kind != "ebnf":
                raise InvalidSchemaError(
                    "the grammar would ignore a part: " + "; ".join(warnings), warnings
                )
            sender.send(
                (
                    "built",
                    BuildResult(compiled.serialize_json(), compiled.memory_size_bytes, warnings),
                )
            )
        except MemoryError:
            os._exit(MEMORY_EXIT_CODE)  # without memory, nothing more can be built or sent
        except EmptyGrammarError as error:
            sender.send(("failed", "empty", str(error), error.problems))
        except InvalidSchemaError as error:
            sender.send(("failed", "invalid", str(error), error.problems))
        except RecursionError:
            sender.send(("failed", "invalid", "the grammar is nested too deeply", ()))

    def _finish(self, worker: _Worker) -> None:
        """Passes on what a worker sent, or says how it died."""
        try:
            message = worker.results.recv()
        except (EOFError, OSError):  # nothing, or a part: it died while it sent
            message = None
        worker.report.seek(0)
        report = worker.report.read(MAX_REPORT_BYTES)
        status = self._reap(worker)
        seconds = time.monotonic() - worker.started
        if message is not None:
            self._control.send((message[0], worker.job_id, *message[1:], seconds))
            return
        code = os.waitstatus_to_exitcode(status)
        overdue = seconds >= self._limits.timeout_s
        if overdue and -code in (signal.SIGKILL, signal.SIGXCPU):
            self._fail(worker, "timeout", f"took longer than {self._limits.timeout_s:g} s")
        elif code == MEMORY_EXIT_CODE or b"bad_alloc" in report:
            megabytes = self._limits.memory_limit_bytes >> 20
            self._fail(
                worker, "memory", f"needed more than the {megabytes} MiB that a worker may use"
            )
        else:
            how = f"with signal {-code}" if code < 0 else f"with exit code {code}"
            self._fail(worker, "crash", f"made its worker process end {how}")

    def _fail(self, worker: _Worker, code: str, message: str) -> None:
        seconds = time.monotonic() - worker.started
        self._control.send(
            ("failed", worker.job_id, code, f"compiling the grammar {message}", (), seconds)
        )

    def _kill(self, worker: _Worker) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        self._reap(worker)

    def _reap(self, worker: _Worker) -> int:
        self._workers.pop(worker.results, None)
        worker.results.close()
        worker.report.close()
        return os.waitpid(worker.pid, 0)[1]


MEMORY_EXIT_CODE = 97
PR_SET_DUMPABLE = 4


def _address_space() -> int:
    """Returns the bytes of address space of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _forbid_core_dump() -> None:
    """Lets this process die at once: a dump of its memory could outlast the time limit.

    The limit on the size of core files does not bind where the kernel pipes them to a program, see
    core(5); a process that is not dumpable has none in either case.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _yield_to_other_sessions(niceness: int) -> None:
    """Makes the server's whole session nice.

    Where the kernel groups processes by session, as desktops and many servers do, the nice values
    of the workers count among themselves alone, see sched(7).
    """
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(niceness))


def _warnings(report: IO[bytes]) -> list[str]:
    report.seek(0)
    lines = report.read(MAX_REPORT_BYTES).decode(errors="replace").splitlines()
    return list(
        dict.fromkeys(
            line.split("Warning: ", 1)[1].strip() for line in lines if "Warning: " in line
        )
    )


def main() -> None:
    """Runs the server on the connection whose file descriptor is the first argument."""
    control = Connection(int(sys.argv[1]))
    _, vocabulary, limits = control.recv()
    for view in VIEWS:
        vocabulary.tokenizer_info(view)
    _yield_to_other_sessions(limits.niceness)
    for crash in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        signal.signal(crash, signal.SIG_DFL)  # libraries install handlers that do not end a worker
    with contextlib.suppress(BrokenPipeError):  # the engine left while xgrammar was loading
        control.send(("ready",))
        _Server(control, vocabulary, limits).run()
