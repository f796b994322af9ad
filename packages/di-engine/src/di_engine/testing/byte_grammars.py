"""Grammars for the byte tokenizer, compiled in the calling process."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import TYPE_CHECKING

from di_engine.llm.grammars import Grammars
from di_engine.testing.byte_tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from di_structured import CompiledGrammar, OutputSchema, Vocabulary

__all__ = ["ByteGrammars", "byte_vocabulary", "compile_bytes"]


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """The tokens of `ByteTokenizer`."""
    from di_structured import Vocabulary

    tokens = [b""] * ByteTokenizer.vocab_size
    tokens[-256:] = [bytes([byte]) for byte in range(256)]
    special = [token_id for token_id, token in enumerate(tokens) if not token]
    return Vocabulary(
        tokens, stop_token_ids=[ByteTokenizer.eos_token_id], special_token_ids=special
    )


@functools.cache
def compile_bytes(schema: OutputSchema) -> CompiledGrammar:
    """A compiled grammar, at once."""
    from di_structured.testing import compile_here

    return compile_here(schema, byte_vocabulary())


class ByteGrammars(Grammars):
    """Compiles at once; the schemas that a test holds wait for their future.

    Attributes:
        held: Schemas that a test answers itself, with the future it does so by.
    """

    def __init__(self, reasoning_ids: tuple[int, int] | None = None) -> None:
        super().__init__(byte_vocabulary, reasoning_ids)
        self.held: dict[OutputSchema, Future[CompiledGrammar]] = {}

    def hold(self, schema: OutputSchema) -> Future[CompiledGrammar]:
        """Lets requests with a schema wait until the future is answered."""
        return self.held.setdefault(schema, Future())

    def submit(self, schema: OutputSchema) -> Future[CompiledGrammar]:
        """The held future, or one that is done."""
        if schema in self.held:
            return self.held[schema]
        future: Future[CompiledGrammar] = Future()
        try:
            future.set_result(compile_bytes(schema))
        except Exception as error:  # a future carries what the compile raises
            future.set_exception(error)
        return future
