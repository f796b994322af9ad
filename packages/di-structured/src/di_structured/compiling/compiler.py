"""Turns schemas into compiled grammars without ever holding the caller up."""

import contextlib
import copy
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

from di_structured.compiling.cache import ByteLimitedCache, DiskCache
from di_structured.compiling.process import ServerProcess
from di_structured.compiling.server import BuildResult, ServerLimits
from di_structured.errors import (
    CompileCancelledError,
    CompileCrashError,
    CompileMemoryError,
    CompilerBusyError,
    CompileTimeoutError,
    EmptyGrammarError,
    InvalidSchemaError,
    StructuredError,
)
from di_structured.grammar import CompiledGrammar
from di_structured.schema import OutputSchema
from di_structured.vocabulary import VIEWS, Vocabulary

__all__ = ["CompilerConfig", "CompilerMetrics", "GrammarCompiler"]

MAX_REMEMBERED_FAILURES = 1024


@dataclass(frozen=True, slots=True)
class CompilerConfig:
    """How grammars are compiled.

    Attributes:
        workers: The most grammars that compile at a time, each in its own process.
        threads: Threads of one compile.
        timeout_s: Seconds that one compile may take, from the start of its worker.
        memory_limit_bytes: Memory that one compile may take.
        max_pending: The most grammars that wait or compile; one more is refused.
        cache_bytes: Memory for compiled grammars that no session uses any more; 0 keeps none.
        failure_ttl_s: Seconds for which a failure answers equal requests; 0 for not at all.
        niceness: Added to the workers' nice value, 0 to 19, so that they yield to the engine.
        disk_cache: Directory for compiled grammars, shared by processes; None for none.
    """

    workers: int = 1
    threads: int = 1
    timeout_s: float = 20.0
    memory_limit_bytes: int = 2 << 30
    max_pending: int = 256
    cache_bytes: int = 512 << 20
    failure_ttl_s: float = 30.0
    niceness: int = 10
    disk_cache: Path | None = None

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: A value is out of range; all are listed.
        """
        wrong = [
            f"`{name}` must be at least {least:g}, got {getattr(self, name)!r}"
            for name, least in (
                ("workers", 1),
                ("threads", 1),
                ("memory_limit_bytes", 1 << 20),
                ("max_pending", 1),
                ("cache_bytes", 0),
                ("failure_ttl_s", 0),
            )
            if getattr(self, name) < least
        ]
        if not self.timeout_s > 0:
            wrong.append(f"`timeout_s` must be above 0, got {self.timeout_s!r}")
        if not 0 <= self.niceness <= 19:
            wrong.append(f"`niceness` must be from 0 to 19, got {self.niceness!r}")
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(slots=True)
class CompilerMetrics:
    """Counters since the start, and the state at the moment of the snapshot.

    Attributes:
        requests: Calls of `submit`.
        cache_hits: Requests answered from memory.
        disk_hits: Requests answered from disk.
        failure_hits: Requests answered by a remembered failure.
        joined: Requests that waited for a compile that another request had begun.
        compiled: Grammars compiled.
        failed: Grammars that failed, for whatever reason.
        timeouts: Failures by the time limit.
        memory_failures: Failures by the memory limit.
        crashes: Failures by a dead worker or server.
        cancelled: Compiles that nobody waited for any more.
        refused: Requests beyond `max_pending`.
        compile_s: Seconds spent in workers.
        pending: Grammars waiting or compiling now.
        cache_entries: Grammars in memory now.
        cache_bytes: Their bytes.
        cache_evictions: Grammars forgotten for want of room.
    """

    requests: int = 0
    cache_hits: int = 0
    disk_hits: int = 0
    failure_hits: int = 0
    joined: int = 0
    compiled: int = 0
    failed: int = 0
    timeouts: int = 0
    memory_failures: int = 0
    crashes: int = 0
    cancelled: int = 0
    refused: int = 0
    compile_s: float = 0.0
    pending: int = 0
    cache_entries: int = 0
    cache_bytes: int = 0
    cache_evictions: int = 0


@dataclass(slots=True)
class _Job:
    job_id: int
    schema: OutputSchema
    waiters: list["Future[CompiledGrammar]"] = field(default_factory=list)


class GrammarCompiler:
    """Compiles schemas for one vocabulary in worker processes.

    `submit` returns at once whatever the schema; two threads of its own talk to the compile server
    and load results. Equal schemas that are submitted while one compiles share that compile.
    Thread-safe.

    Call `start` before the first step of an engine: it imports xgrammar here and in the server,
    which takes seconds and would otherwise fall into the first request.

    Args:
        vocabulary: The model's tokens.
        config: Limits.
        clock: Monotonic seconds, for the age of remembered failures.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        config: CompilerConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts nothing yet."""
        self.vocabulary = vocabulary
        self.config = config or CompilerConfig()
        self._clock = clock
        self._lock = threading.Lock()
        self._metrics = CompilerMetrics()
        self._cache: ByteLimitedCache[CompiledGrammar] = ByteLimitedCache(self.config.cache_bytes)
        self._failures: dict[str, tuple[StructuredError, float]] = {}
        self._jobs: dict[str, _Job] = {}
        self._next_job_id = 0
        self._is_closed = False
        self._intake: queue.SimpleQueue[tuple[str, _Job] | None] = queue.SimpleQueue()
        self._intake_thread: threading.Thread | None = None
        self._server: ServerProcess | None = None
        self._disk: DiskCache | None = None

    # --- for the engine

    def start(self) -> None:
        """Imports xgrammar, starts the server and returns when it is ready.

        Raises:
            CompileCrashError: The server does not come up.
        """
        server = self._ready_server()  # it loads xgrammar while this process does the same
        for view in VIEWS:
            self.vocabulary.tokenizer_info(view)
        server.wait_until_ready()

    def submit(self, schema: OutputSchema) -> "Future[CompiledGrammar]":
        """Asks for a compiled grammar; never blocks and never raises for the schema's sake.

        Returns:
            A future. `cancel()` works until it is done, and ends the compile if nobody else waits
            for it. Its errors are `InvalidSchemaError`, `EmptyGrammarError`, `CompileTimeoutError`,
            `CompileMemoryError`,
            `CompileCrashError`, `CompilerBusyError` and `CompileCancelledError`.
        """
        future: Future[CompiledGrammar] = Future()
        key = schema.key
        with self._lock:
            self._metrics.requests += 1
            answer = self._known_answer(key, schema)
            if answer is None:
                self._enqueue(key, schema, future)
        if isinstance(answer, CompiledGrammar):
            future.set_result(answer)
        elif answer is not None:
            future.set_exception(answer)
        else:
            future.add_done_callback(lambda done: self._drop_waiter(key, done))
        return future

    def compile(self, schema: OutputSchema) -> CompiledGrammar:
        """Compiles and waits; see `submit` for the errors."""
        return self.submit(schema).result()

    def metrics(self) -> CompilerMetrics:
        """Returns a snapshot of the counters."""
        with self._lock:
            snapshot = copy.copy(self._metrics)
            snapshot.pending = len(self._jobs)
            snapshot.cache_entries = len(self._cache)
            snapshot.cache_bytes = self._cache.size_bytes
            snapshot.cache_evictions = self._cache.evictions
            return snapshot

    def clear_cache(self) -> None:
        """Forgets compiled grammars and failures; sessions keep what they use."""
        with self._lock:
            self._cache.clear()
            self._failures.clear()

    def close(self) -> None:
        """Ends the processes and threads; what is pending fails with `CompileCancelledError`."""
        with self._lock:
            self._is_closed = True
            jobs = list(self._jobs)
            thread, server = self._intake_thread, self._server
            self._intake_thread = self._server = None
        for key in jobs:
            self._resolve(key, CompileCancelledError("the grammar compiler was closed"))
        if thread is not None:
            self._intake.put(None)
            thread.join()
        if server is not None:
            server.close()

    def __enter__(self) -> "GrammarCompiler":
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    # --- under the lock

    def _known_answer(
        self, key: str, schema: OutputSchema
    ) -> CompiledGrammar | StructuredError | None:
        if self._is_closed:
            return CompileCancelledError("the grammar compiler is closed")
        try:
            schema.check_vocabulary(self.vocabulary.vocab_size)
        except InvalidSchemaError as error:
            return error
        if cached := self._cache.get(key):
            self._metrics.cache_hits += 1
            return cached
        failure = self._failures.get(key)
        if failure is not None:
            if self._clock() - failure[1] < self.config.failure_ttl_s:
                self._metrics.failure_hits += 1
                return copy.copy(failure[0])
            del self._failures[key]
        if key not in self._jobs and len(self._jobs) >= self.config.max_pending:
            self._metrics.refused += 1
            return CompilerBusyError(
                f"{len(self._jobs)} grammars are waiting already, the limit (`max_pending`); try "
                "again later"
            )
        return None

    def _enqueue(self, key: str, schema: OutputSchema, future: "Future[CompiledGrammar]") -> None:
        if job := self._jobs.get(key):
            job.waiters.append(future)
            self._metrics.joined += 1
            return
        job = _Job(self._next_job_id, schema, [future])
        self._next_job_id += 1
        self._jobs[key] = job
        if self._intake_thread is None:
            self._intake_thread = threading.Thread(
                target=self._take_in, name="grammar-intake", daemon=True
            )
            self._intake_thread.start()
        self._intake.put(("compile", job))

    def _drop_waiter(self, key: str, future: "Future[CompiledGrammar]") -> None:
        """Forgets a future that was cancelled, and the compile that nobody waits for any more."""
        if not future.cancelled():
            return
        with self._lock:
            job = self._jobs.get(key)
            if job is None or future not in job.waiters:
                return
            job.waiters.remove(future)
            if job.waiters:
                return
            del self._jobs[key]
            self._metrics.cancelled += 1
            self._intake.put(("cancel", job))

    # --- the intake thread: disk, and what may block while the server reads

    def _take_in(self) -> None:
        while (item := self._intake.get()) is not None:
            order, job = item
            try:
                if order == "cancel":
                    if self._server is not None:
                        self._server.send(("cancel", job.job_id))
                elif not self._read_from_disk(job):
                    self._ready_server().send(("compile", job.job_id, job.schema))
            except StructuredError as error:
                self._resolve(job.schema.key, error)
            except OSError:
                self._resolve(
                    job.schema.key, CompileCrashError("the compile server ended unexpectedly")
                )

    def _ready_server(self) -> ServerProcess:
        with self._lock:
            if self._is_closed:
                raise CompileCancelledError("the grammar compiler is closed")
            if self._server is None or not self._server.is_alive:
                config = self.config
                limits = ServerLimits(
                    config.workers,
                    config.threads,
                    config.timeout_s,
                    config.memory_limit_bytes,
                    config.niceness,
                )
                self._server = ServerProcess(
                    self.vocabulary, limits, self._on_message, self._on_server_end
                )
            return self._server

    def _disk_cache(self) -> DiskCache | None:
        if self._disk is None and self.config.disk_cache is not None:
            import xgrammar

            versions = f"{version('xgrammar')} {xgrammar.get_serialization_version()}"
            self._disk = DiskCache(
                self.config.disk_cache, f"{self.vocabulary.fingerprint} {versions}"
            )
        return self._disk

    def _read_from_disk(self, job: _Job) -> bool:
        disk = self._disk_cache()
        serialized = disk.read(job.schema.key) if disk is not None else None
        if disk is None or serialized is None:
            return False
        try:
            grammar = self._load(job.schema, serialized, None, 0.0, ())
        except RuntimeError:  # not ours, or another version's
            disk.discard(job.schema.key)
            return False
        with self._lock:
            self._metrics.disk_hits += 1
        self._resolve(job.schema.key, grammar)
        return True

    # --- the server's thread

    def _on_message(self, message: tuple[object, ...]) -> None:
        key = next((k for k, job in list(self._jobs.items()) if job.job_id == message[1]), None)
        if key is None:
            return  # cancelled while the answer was under way
        if message[0] == "built":
            _, _, result, seconds = message
            assert isinstance(result, BuildResult)
            assert isinstance(seconds, float)
            job = self._jobs[key]
            try:
                grammar = self._load(
                    job.schema, result.serialized, result.size_bytes, seconds, result.warnings
                )
            except RuntimeError as error:
                self._resolve(
                    key, CompileCrashError(f"the compiled grammar cannot be loaded: {error}")
                )
                return
            with self._lock:
                self._metrics.compiled += 1
                self._metrics.compile_s += seconds
            self._resolve(key, grammar)
            if (disk := self._disk_cache()) is not None:
                disk.write(key, result.serialized)
            return
        _, _, code, text, problems, seconds = message
        assert isinstance(problems, tuple)
        assert isinstance(seconds, float)
        with self._lock:
            self._metrics.compile_s += seconds
        self._resolve(key, _failure(str(code), str(text), problems))

    def _load(
        self,
        schema: OutputSchema,
        serialized: str,
        size_bytes: int | None,
        seconds: float,
        warnings: tuple[str, ...],
    ) -> CompiledGrammar:
        import xgrammar

        info = self.vocabulary.tokenizer_info(schema.view)
        handle = xgrammar.CompiledGrammar.deserialize_json(serialized, info)
        size = handle.memory_size_bytes if size_bytes is None else size_bytes
        return CompiledGrammar(schema.key, self.vocabulary, handle, size, seconds, warnings)

    def _on_server_end(self) -> None:
        for key in list(self._jobs):
            self._resolve(key, CompileCrashError("the compile server ended unexpectedly"))

    def _resolve(self, key: str, outcome: CompiledGrammar | StructuredError) -> None:
        """Answers all who wait for a key; outside the lock, because futures run callbacks."""
        with self._lock:
            job = self._jobs.pop(key, None)
            if isinstance(outcome, CompiledGrammar):
                self._cache.put(key, outcome)
            elif job is not None and not isinstance(outcome, CompileCancelledError):
                self._metrics.failed += 1
                self._metrics.timeouts += isinstance(outcome, CompileTimeoutError)
                self._metrics.memory_failures += isinstance(outcome, CompileMemoryError)
                self._metrics.crashes += isinstance(outcome, CompileCrashError)
                while len(self._failures) >= MAX_REMEMBERED_FAILURES:
                    del self._failures[next(iter(self._failures))]
                self._failures[key] = (outcome, self._clock())
        for future in job.waiters if job is not None else ():
            with contextlib.suppress(Exception):  # cancelled in this very moment
                if not future.set_running_or_notify_cancel():
                    continue
            if isinstance(outcome, CompiledGrammar):
                future.set_result(outcome)
            else:
                future.set_exception(copy.copy(outcome))


def _failure(code: str, text: str, problems: tuple[str, ...]) -> StructuredError:
    if code == "empty":
        return EmptyGrammarError(text, problems)
    if code == "invalid":
        return InvalidSchemaError(text, problems)
    kinds: dict[str, type[StructuredError]] = {
        "timeout": CompileTimeoutError,
        "memory": CompileMemoryError,
    }
    return kinds.get(code, CompileCrashError)(text)
