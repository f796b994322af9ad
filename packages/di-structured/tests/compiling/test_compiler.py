"""The compile service: limits, sharing, failures that stay with their request."""

import itertools
import os
import signal
import threading
import time
from concurrent.futures import CancelledError, wait

import pytest

from di_structured import (
    CompileCancelledError,
    CompileCrashError,
    CompileMemoryError,
    CompilerBusyError,
    CompilerConfig,
    CompileTimeoutError,
    EmptyGrammarError,
    GrammarCompiler,
    InvalidSchemaError,
    OutputSchema,
)
from di_structured.testing import byte_vocabulary

pytestmark = pytest.mark.slow

# xgrammar 0.2.9 takes time with the square of a pattern's repeat count: tens of seconds here.
ENDLESS = OutputSchema.json_schema({"type": "string", "pattern": "^[a-z]{0,20000}$"})

NUMBERS = itertools.count()


def endless(number):
    return OutputSchema.json_schema({"type": "string", "pattern": f"^[a-z]{{0,{20000 + number}}}$"})


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def workers_of(compiler):
    server = compiler._server._process.pid
    with open(f"/proc/{server}/task/{server}/children") as file:
        return [int(pid) for pid in file.read().split()]


def settle(compiler):
    """Waits until the server has acted on every order so far; a cancel returns before that."""
    assert compiler.compile(OutputSchema.regex(f"settle{next(NUMBERS)}"))
    wait_until(lambda: workers_of(compiler) == [])


@pytest.fixture(scope="module")
def patient():
    """A compile service whose time limit no slow machine meets, for tests of other endings."""
    limits = CompilerConfig(workers=2, timeout_s=600.0, failure_ttl_s=0, niceness=0)
    with GrammarCompiler(byte_vocabulary(), limits) as service:
        service.start()
        yield service


def test_a_grammar_is_compiled_once_and_then_remembered(compiler):
    schema = OutputSchema.regex("[a-f]{4}")
    before = compiler.metrics()
    futures = [compiler.submit(schema) for _ in range(5)]
    grammars = {future.result(30) for future in futures}
    assert len(grammars) == 1
    assert compiler.submit(schema).result(0) in grammars
    after = compiler.metrics()
    assert after.compiled - before.compiled == 1
    assert after.requests - before.requests == 6
    assert (after.joined - before.joined) + (after.cache_hits - before.cache_hits) == 5


def test_a_slow_grammar_is_killed_and_others_compile_beside_it(compiler):
    slow = compiler.submit(ENDLESS)
    assert compiler.compile(OutputSchema.regex("beside it")).size_bytes > 0
    assert not slow.done()
    assert isinstance(slow.exception(60), CompileTimeoutError)
    assert workers_of(compiler) == []
    assert compiler.compile(OutputSchema.regex("after it"))


def test_submitting_never_waits(compiler):
    schemas = [endless(i) for i in range(1, 4)]
    start = time.perf_counter()
    futures = [compiler.submit(schema) for schema in schemas]
    assert not any(future.done() for future in futures)
    assert time.perf_counter() - start < 2  # they take minutes
    for future in futures:
        assert future.cancel()
    settle(compiler)


def test_cancelling_ends_the_worker_only_when_nobody_waits(patient):
    schema = endless(10)
    first, second = patient.submit(schema), patient.submit(schema)
    wait_until(lambda: len(workers_of(patient)) == 1)
    first.cancel()
    with pytest.raises(CancelledError):
        first.result(0)
    assert patient.compile(OutputSchema.regex("the server has read on"))
    assert not second.done()
    wait_until(lambda: len(workers_of(patient)) == 1)
    second.cancel()
    settle(patient)


def test_a_crashed_worker_fails_its_request_alone(patient):
    settle(patient)
    doomed = patient.submit(endless(20))
    wait_until(lambda: len(workers_of(patient)) == 1)
    os.kill(workers_of(patient)[0], signal.SIGSEGV)
    error = doomed.exception(120)
    assert isinstance(error, CompileCrashError)
    assert "signal 11" in str(error)
    assert patient.compile(OutputSchema.regex("still here"))


def test_a_dead_server_fails_its_requests_and_is_replaced(patient):
    settle(patient)
    doomed = patient.submit(endless(30))
    wait_until(lambda: len(workers_of(patient)) == 1)
    orphan = workers_of(patient)[0]
    os.kill(patient._server._process.pid, signal.SIGKILL)
    assert isinstance(doomed.exception(120), CompileCrashError)
    os.kill(orphan, signal.SIGKILL)
    assert patient.submit(OutputSchema.regex("a new server")).result(120)


@pytest.mark.parametrize(
    "schema",
    [
        OutputSchema.regex("("),
        OutputSchema.regex("(?!a)b"),
        OutputSchema.regex("a^b"),
        OutputSchema.regex(r"\bword"),
        OutputSchema.ebnf('start ::= "a"'),
        OutputSchema.ebnf("root ::= ("),
        OutputSchema.json_schema({"type": "string", "pattern": "("}),
        OutputSchema.structural_tag({"type": "nonsense"}),
    ],
    ids=lambda schema: schema.text[:30],
)
def test_malformed_grammars_say_why(compiler, schema):
    error = compiler.submit(schema).exception(60)
    assert type(error) is InvalidSchemaError
    assert "cannot be compiled: " in str(error) or "would ignore" in str(error)
    assert ".cc" not in str(error)


@pytest.mark.parametrize(
    "schema",
    [
        OutputSchema.ebnf("root ::= root"),
        OutputSchema.ebnf('root ::= "a" x\nx ::= x "b" | "c" x'),
        OutputSchema.regex(r"[^\s\S]"),
        OutputSchema.json_schema(
            {
                "$defs": {
                    "n": {
                        "type": "object",
                        "properties": {"n": {"$ref": "#/$defs/n"}},
                        "required": ["n"],
                    }
                },
                "$ref": "#/$defs/n",
            }
        ),
    ],
    ids=lambda schema: schema.text[:30],
)
def test_grammars_that_admit_nothing_are_refused(compiler, schema):
    assert type(compiler.submit(schema).exception(60)) is EmptyGrammarError


@pytest.mark.parametrize(
    "schema",
    [
        OutputSchema.regex("(a+)+b"),
        OutputSchema.regex("(a|aa)*c"),
        OutputSchema.regex("a{1,100000}"),
        OutputSchema.regex("((((a{1,50}){1,50}){1,50}){1,50}){1,50}"),
        OutputSchema.regex("(x?){5000}y" * 20),
        OutputSchema.ebnf('root ::= root "a" | "a"'),
        OutputSchema.ebnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
        OutputSchema.ebnf(
            "root ::= "
            + " ".join(f"r{i}" for i in range(3000))
            + "\n"
            + "\n".join(f'r{i} ::= r{i + 1} | "x"' for i in range(3000))
            + '\nr3000 ::= "y"'
        ),
        OutputSchema.json_schema({"enum": [f"value {i}" for i in range(20_000)]}),
        OutputSchema.json_schema(
            {
                "type": "object",
                "properties": {f"p{i}": {"type": "string", "maxLength": 100} for i in range(8000)},
            }
        ),
    ],
    ids=lambda schema: schema.text[:40],
)
def test_adversarial_grammars_end_within_their_limits(compiler, schema):
    start = time.monotonic()
    error = compiler.submit(schema).exception(60)
    limit = compiler.config.timeout_s
    assert time.monotonic() - start < 4 * limit
    assert error is None or isinstance(
        error, (InvalidSchemaError, CompileTimeoutError, CompileMemoryError, CompileCrashError)
    )
    assert compiler.submit(OutputSchema.regex("[0-9]")).result(60)


def test_the_memory_limit_ends_a_compile():
    limits = CompilerConfig(memory_limit_bytes=8 << 20, timeout_s=60, niceness=0)
    values = {"enum": [f"some longer value number {i}" for i in range(30_000)]}
    with GrammarCompiler(byte_vocabulary(), limits) as compiler:
        error = compiler.submit(OutputSchema.json_schema(values)).exception(200)
        assert isinstance(error, CompileMemoryError)
        assert "8 MiB" in str(error)


def test_limits_of_queue_cache_and_memory_of_failures(tmp_path):
    now = [0.0]
    limits = CompilerConfig(
        timeout_s=30,
        max_pending=2,
        cache_bytes=6000,
        failure_ttl_s=10,
        disk_cache=tmp_path,
        niceness=0,
    )
    compiler = GrammarCompiler(byte_vocabulary(), limits, clock=lambda: now[0])
    held = [compiler.submit(endless(i)) for i in range(2)]
    assert isinstance(compiler.submit(endless(9)).exception(0), CompilerBusyError)
    for future in held:
        future.cancel()
    wrong = OutputSchema.regex("(")
    assert compiler.submit(wrong).exception(200)
    assert compiler.submit(wrong).exception(0)
    now[0] = 11.0
    again = compiler.submit(wrong)
    assert not again.done()
    assert again.exception(30)
    schemas = [OutputSchema.regex(f"text {i}") for i in range(8)]
    wait([compiler.submit(schema) for schema in schemas[:2]])
    for schema in schemas:
        compiler.submit(schema).exception(30)
    metrics = compiler.metrics()
    assert metrics.refused == 1
    assert metrics.failure_hits == 1
    assert metrics.cache_bytes <= 6000
    assert metrics.cache_evictions > 0
    wait_until(lambda: len(list(tmp_path.glob("*.json"))) == 8)
    compiler.clear_cache()
    first = compiler.submit(schemas[0]).result(30)
    assert compiler.metrics().disk_hits >= 1
    assert first.session(schemas[0]).advance([5 + ord("t")]) == 1
    next(tmp_path.glob("*.json")).write_text("{")
    compiler.clear_cache()
    for schema in schemas:
        assert compiler.submit(schema).result(60)
    pending = compiler.submit(endless(50))
    compiler.close()
    assert isinstance(pending.exception(0), CompileCancelledError)
    assert isinstance(compiler.submit(schemas[0]).exception(0), CompileCancelledError)


def test_a_step_loop_keeps_its_pace_while_a_grammar_compiles(compiler):
    """The compile runs elsewhere, and loading its result releases the interpreter lock."""
    schema = OutputSchema.json_schema({"enum": [f"value {i}" for i in range(5000)]})
    laps = []
    done = threading.Event()
    future = compiler.submit(schema)
    future.add_done_callback(lambda _: done.set())
    while not done.is_set():
        laps.append(time.perf_counter())
    assert future.result(0)
    assert len(laps) > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0, "timeout_s": 0}, "`workers` must be at least 1, got 0; `timeout_s`"),
        ({"niceness": 20}, "`niceness`"),
        ({"memory_limit_bytes": 5}, "`memory_limit_bytes`"),
    ],
)
def test_wrong_limits_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        CompilerConfig(**options)
