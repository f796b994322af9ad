"""Fixtures shared by the tests of di_structured. Compiled grammars are kept for the whole run."""

import functools

import pytest

from di_structured import CompilerConfig, GrammarCompiler
from di_structured.testing import byte_vocabulary, compile_here

VOCABULARY = byte_vocabulary()


@functools.cache
def compiled(schema):
    return compile_here(schema, VOCABULARY)


@pytest.fixture(scope="session")
def vocabulary():
    """276 tokens: control tokens 0 to 4, bytes from 5 on, pieces of JSON, five padding ids."""
    return VOCABULARY


@pytest.fixture(scope="session")
def compile_schema():
    """Compiles in this process."""
    return compiled


@pytest.fixture
def start():
    """Starts a session for a schema."""
    return lambda schema, **options: compiled(schema).session(schema, **options)


@pytest.fixture(scope="session")
def encode():
    """Writes a text as single-byte tokens."""
    return lambda text: [5 + byte for byte in (text.encode() if isinstance(text, str) else text)]


@pytest.fixture(scope="session")
def decode():
    """Reads tokens as text, control tokens left out."""
    return lambda ids: b"".join(
        VOCABULARY.tokens[i] for i in ids if i not in VOCABULARY.special_token_ids
    ).decode()


@pytest.fixture(scope="module")
def compiler():
    """A running compile service with tight limits."""
    limits = CompilerConfig(
        workers=2, timeout_s=4.0, memory_limit_bytes=512 << 20, failure_ttl_s=0, niceness=0
    )
    with GrammarCompiler(VOCABULARY, limits) as service:
        service.start()
        yield service
