"""Constrained output for any engine: grammars compiled off the hot path, exact token masks.

Importing this package imports neither torch nor xgrammar; see the README for what does.
"""

from typing import TYPE_CHECKING, Any

from di_structured.compiling import CompilerConfig, CompilerMetrics, GrammarCompiler
from di_structured.errors import (
    CompileCancelledError,
    CompileCrashError,
    CompileMemoryError,
    CompilerBusyError,
    CompileTimeoutError,
    EmptyGrammarError,
    GrammarViolationError,
    InvalidSchemaError,
    StructuredError,
)
from di_structured.grammar import CompiledGrammar
from di_structured.masks import MaskBatch, allocate_masks, mask_width
from di_structured.schema import OutputSchema, schema_from_so_args
from di_structured.session import GrammarSession, SessionSnapshot
from di_structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from di_structured.apply import apply_token_mask

__all__ = [
    "CompileCancelledError",
    "CompileCrashError",
    "CompileMemoryError",
    "CompileTimeoutError",
    "CompiledGrammar",
    "CompilerBusyError",
    "CompilerConfig",
    "CompilerMetrics",
    "EmptyGrammarError",
    "GrammarCompiler",
    "GrammarSession",
    "GrammarViolationError",
    "InvalidSchemaError",
    "MaskBatch",
    "OutputSchema",
    "SessionSnapshot",
    "StructuredError",
    "Vocabulary",
    "allocate_masks",
    "apply_token_mask",
    "mask_width",
    "schema_from_so_args",
]


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first asked for."""
    if name == "apply_token_mask":
        from di_structured.apply import apply_token_mask

        return apply_token_mask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
