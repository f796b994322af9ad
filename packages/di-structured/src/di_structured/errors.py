"""Errors of the package. Each concerns one request; none of them ends an engine."""

from collections.abc import Sequence

__all__ = [
    "CompileCancelledError",
    "CompileCrashError",
    "CompileMemoryError",
    "CompileTimeoutError",
    "CompilerBusyError",
    "EmptyGrammarError",
    "GrammarViolationError",
    "InvalidSchemaError",
    "StructuredError",
]


class StructuredError(Exception):
    """Base class of every error of di_structured."""


class InvalidSchemaError(StructuredError, ValueError):
    """The request's schema is malformed, or says something that the grammar would ignore.

    Attributes:
        problems: One sentence for each problem found, each beginning with its path.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        """Keeps the problems beside the message."""
        super().__init__(message)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type["InvalidSchemaError"], tuple[str, tuple[str, ...]]]:
        """Keeps the problems when the error is pickled."""
        return type(self), (str(self), self.problems)


class EmptyGrammarError(InvalidSchemaError):
    """No text satisfies the schema, or no text that this vocabulary can spell."""


class CompileTimeoutError(StructuredError):
    """Compiling took longer than `timeout_s`; the worker was killed."""


class CompileMemoryError(StructuredError):
    """Compiling needed more memory than `memory_limit_bytes`; the worker is gone."""


class CompileCrashError(StructuredError):
    """The worker or the compile server died while it compiled this grammar."""


class CompilerBusyError(StructuredError):
    """Too many grammars wait for a worker; try again later."""


class CompileCancelledError(StructuredError):
    """The compiler was closed before the grammar was ready."""


class GrammarViolationError(StructuredError):
    """A token was advanced that the session's mask forbids. The session is unchanged.

    Attributes:
        token_id: The forbidden token.
        index: Its index in the call's token ids.
    """

    def __init__(self, message: str, token_id: int, index: int) -> None:
        """Keeps the token and its index beside the message."""
        super().__init__(message)
        self.token_id = token_id
        self.index = index
