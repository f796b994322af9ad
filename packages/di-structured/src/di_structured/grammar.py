"""A compiled grammar, ready to make sessions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from di_structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    import xgrammar

    from di_structured.schema import OutputSchema
    from di_structured.session import GrammarSession

__all__ = ["CompiledGrammar"]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar compiled for a vocabulary. Immutable; any number of sessions share it.

    Attributes:
        key: The `OutputSchema.key` it was compiled from.
        vocabulary: The vocabulary it was compiled for.
        handle: xgrammar's compiled grammar.
        size_bytes: Memory it takes.
        compile_s: Seconds that compiling took, 0 if it was read from disk.
        warnings: What xgrammar warned about.
    """

    key: str
    vocabulary: Vocabulary
    handle: "xgrammar.CompiledGrammar"
    size_bytes: int
    compile_s: float
    warnings: tuple[str, ...] = ()

    def session(
        self, schema: "OutputSchema", *, request_id: str = "", stop_token_ids: Iterable[int] = ()
    ) -> "GrammarSession":
        """Starts a session; see `GrammarSession`."""
        from di_structured.session import GrammarSession

        return GrammarSession(self, schema, request_id=request_id, stop_token_ids=stop_token_ids)
