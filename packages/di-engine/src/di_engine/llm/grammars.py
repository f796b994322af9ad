"""What requests ask of their output, through `di_structured`, which is an optional package.

Grammars compile in processes of their own while the engine steps; a request enters the engine core
when its grammar is ready, or fails alone with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from di_engine.errors import (
    CapacityError,
    EngineError,
    InvalidRequestError,
    ModelExecutionError,
)
from di_engine.llm.output_schema import import_structured
from di_engine.llm.request_state import RequestState

if TYPE_CHECKING:
    from di_structured import CompiledGrammar, GrammarSession, OutputSchema, Vocabulary

__all__ = ["CompilingRequests", "Grammars", "start_session"]


class Grammars:
    """Turns output schemas into compiled grammars; starts nothing before the first one.

    Args:
        make_vocabulary: Makes the model's tokens; None if it has no tokenizer.
        reasoning_ids: Ids that begin and end a reasoning section, for a model that has such.
        limits: Fields of `di_structured.CompilerConfig`.
    """

    def __init__(
        self,
        make_vocabulary: Callable[[], Vocabulary] | None,
        reasoning_ids: tuple[int, int] | None = None,
        **limits: int | float,
    ) -> None:
        self._make_vocabulary = make_vocabulary
        self._reasoning_ids = reasoning_ids
        self._limits = limits
        self._lock = threading.Lock()
        self._compiler: Any = None

    def schema(self, value: object, prompt_ids: Sequence[int]) -> OutputSchema:
        """Judges what a request brings as `output_schema`; any thread.

        A prompt that ends within a reasoning section leaves the model to reason: the grammar then
        begins behind the section, unless the schema says itself where it begins.

        Raises:
            InvalidRequestError: If it is malformed or cannot be enforced.
            UnsupportedEnvironmentError: If `di-structured` is not installed.
        """
        structured = import_structured()
        if self._make_vocabulary is None:
            raise InvalidRequestError(
                "`output_schema` needs a tokenizer and this model has none: give its directory as "
                "`model.tokenizer`",
                param="output_schema",
            )
        try:
            schema: Any = value
            if isinstance(value, Mapping):
                schema = structured.schema_from_so_args(value)
        except structured.StructuredError as error:
            raise InvalidRequestError(f"`output_schema`: {error}", param="output_schema") from None
        self._ready_compiler()
        checked: OutputSchema = schema
        if not (schema.reasoning_end_token_ids or schema.trigger_token_ids):
            checked = checked.with_reasoning(self._open_reasoning(prompt_ids))
        return checked

    def submit(self, schema: OutputSchema) -> Future[CompiledGrammar]:
        """Asks for a grammar; returns at once."""
        future: Future[CompiledGrammar] = self._ready_compiler().submit(schema)
        return future

    def start(self) -> None:
        """Starts the compile server and waits until it is ready: seconds of the first request.

        Raises:
            UnsupportedEnvironmentError: If `di-structured` is not installed.
        """
        if self._make_vocabulary is not None:
            self._ready_compiler().start()

    def close(self) -> None:
        """Ends the compile server; grammars that compile fail."""
        with self._lock:
            compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()

    def _open_reasoning(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The id that ends the reasoning section that the prompt leaves open; none if it is not."""
        if self._reasoning_ids is None:
            return ()
        begin, end = self._reasoning_ids
        marks = [token_id for token_id in prompt_ids if token_id in (begin, end)]
        return (end,) if marks and marks[-1] == begin else ()

    def _ready_compiler(self) -> Any:
        with self._lock:
            if self._compiler is None:
                assert self._make_vocabulary is not None, "checked by `schema`"
                structured = import_structured()
                self._compiler = structured.GrammarCompiler(
                    self._make_vocabulary(), structured.CompilerConfig(**self._limits)
                )
            return self._compiler


@dataclass(frozen=True, slots=True)
class _Entry:
    state: RequestState
    future: Future[CompiledGrammar]


class CompilingRequests:
    """Requests whose grammars are not ready. Used by the engine's thread."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._entries: list[_Entry] = []
        self.on_ready: Callable[[], None] = lambda: None
        """Called in any thread when a grammar is ready or has failed."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def any_ready(self) -> bool:
        """Whether `take` has something to return."""
        return any(entry.future.done() for entry in self._entries)

    def add(self, state: RequestState) -> None:
        """Begins to compile the grammar of a request."""
        assert state.schema is not None, "such requests need no grammar"
        future = self._grammars.submit(state.schema)
        self._entries.append(_Entry(state, future))
        if not future.done():
            future.add_done_callback(lambda _: self.on_ready())

    def take(self) -> list[tuple[RequestState, CompiledGrammar | EngineError]]:
        """Removes the requests that are ready, oldest first, with their grammar or its failure."""
        ready = [entry for entry in self._entries if entry.future.done()]
        if ready:
            self._entries = [entry for entry in self._entries if not entry.future.done()]
        return [(entry.state, _outcome(entry.future)) for entry in ready]

    def cancel(self, states: Iterable[RequestState]) -> list[RequestState]:
        """Removes requests; ends the compiles that nobody else waits for.

        Returns:
            Those that were here.
        """
        names = {state.request_id for state in states}
        removed = [entry for entry in self._entries if entry.state.request_id in names]
        self._entries = [entry for entry in self._entries if entry.state.request_id not in names]
        for entry in removed:
            entry.future.cancel()
        return [entry.state for entry in removed]

    def cancel_all(self) -> list[RequestState]:
        """Removes all requests, as `cancel`."""
        return self.cancel([entry.state for entry in self._entries])

    def wait(self, timeout_s: float) -> None:
        """Waits for the next grammar, or until the time is over."""
        wait([entry.future for entry in self._entries], timeout_s, FIRST_COMPLETED)


def start_session(
    grammar: CompiledGrammar | None,
    schema: OutputSchema | None,
    request_id: str,
    stop_token_ids: Iterable[int],
) -> GrammarSession | None:
    """The state of one completion at its start; None for a request without a schema.

    Raises:
        ModelExecutionError: If the grammar cannot be followed.
    """
    if grammar is None or schema is None:
        return None
    try:
        return grammar.session(schema, request_id=request_id, stop_token_ids=stop_token_ids)
    except Exception as error:  # the request is the boundary
        raise ModelExecutionError(f"the grammar cannot be followed: {error}") from error


def _outcome(future: Future[CompiledGrammar]) -> CompiledGrammar | EngineError:
    """A finished compile; its failures as errors of one request."""
    error = future.exception()
    if error is None:
        return future.result()
    structured = import_structured()
    message = f"`output_schema`: {error}"
    if isinstance(error, structured.CompilerBusyError):
        return CapacityError(message)
    if isinstance(error, structured.CompileCancelledError) or not isinstance(
        error, structured.StructuredError
    ):
        return ModelExecutionError(message)
    return InvalidRequestError(message, param="output_schema")
