"""Masks the slow way: one question for each token of the vocabulary."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from di_structured.errors import GrammarViolationError
from di_structured.grammar import CompiledGrammar
from di_structured.schema import OutputSchema

__all__ = ["allowed_by_oracle", "allowed_in_row"]


def allowed_by_oracle(
    grammar: CompiledGrammar, schema: OutputSchema, token_ids: Sequence[int]
) -> list[int]:
    """Returns the tokens that a fresh xgrammar matcher accepts behind `token_ids`.

    The matcher, and nothing of this package, decides; the schema must have no free sections.

    Raises:
        GrammarViolationError: `token_ids` themselves are not accepted.
    """
    import xgrammar

    assert not schema.trigger_token_ids
    assert not schema.reasoning_end_token_ids
    matcher = xgrammar.GrammarMatcher(grammar.handle)
    for index, token_id in enumerate(token_ids):
        if not matcher.accept_token(token_id):
            raise GrammarViolationError(f"token {token_id} is not accepted", token_id, index)
    refused = set(grammar.handle.tokenizer_info.special_token_ids)
    return [
        token_id
        for token_id in range(grammar.vocabulary.vocab_size)
        if token_id not in refused and matcher.fork().accept_token(token_id)
    ]


def allowed_in_row(row: npt.NDArray[np.int32]) -> list[int]:
    """Returns the ids of the set bits of a mask row, slack bits included."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]
