"""Runs xgrammar's compiler on one schema, in whatever process calls it."""

from typing import TYPE_CHECKING

import numpy as np

from di_structured.compiling.productive import is_productive
from di_structured.errors import EmptyGrammarError, InvalidSchemaError
from di_structured.schema import OutputSchema

if TYPE_CHECKING:
    import xgrammar

__all__ = ["build_grammar", "check_admits_something"]

COMPACT_SEPARATORS = (",", ":")


def build_grammar(
    schema: OutputSchema, info: "xgrammar.TokenizerInfo", *, threads: int = 1
) -> "xgrammar.CompiledGrammar":
    """Compiles a schema; time and memory are the caller's to limit.

    Raises:
        InvalidSchemaError: xgrammar refuses the grammar; its reason is part of the message.
        EmptyGrammarError: No text of this vocabulary satisfies the grammar.
        MemoryError: The process's address space is used up.
    """
    import xgrammar

    compiler = xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)
    try:
        if schema.kind == "json_schema":
            is_compact = schema.max_whitespace == 0
            compiled = compiler.compile_json_schema(
                schema.text,
                any_whitespace=not is_compact,
                separators=COMPACT_SEPARATORS if is_compact else None,
                strict_mode=not schema.is_open,
                max_whitespace_cnt=schema.max_whitespace or None,
            )
        elif schema.kind == "regex":
            compiled = compiler.compile_regex(schema.text)
        elif schema.kind == "ebnf":
            compiled = compiler.compile_grammar(schema.text)
        else:
            compiled = compiler.compile_structural_tag(schema.text)
    except RuntimeError as error:
        if "bad_alloc" in str(error):
            raise MemoryError from None
        raise InvalidSchemaError(
            f"the {_name(schema)} cannot be compiled: {reason_of(error)}"
        ) from None
    check_admits_something(compiled, schema, info.vocab_size)
    return compiled


def check_admits_something(
    compiled: "xgrammar.CompiledGrammar", schema: OutputSchema, vocab_size: int
) -> None:
    """Raises `EmptyGrammarError` if the grammar derives no text, or none that a token begins."""
    import xgrammar

    if not is_productive(compiled.grammar.serialize_json()):
        raise EmptyGrammarError(
            f"the {_name(schema)} admits no text: its root rule never comes to an end"
        )
    mask = np.zeros((1, -(-vocab_size // 32)), np.int32)
    xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
    mask[0, -1] &= tail_word(vocab_size)
    if not mask.any():
        raise EmptyGrammarError(f"the {_name(schema)} admits no token of this vocabulary")


def tail_word(vocab_size: int) -> int:
    """Returns the last word of a mask row that allows every id, its slack bits clear."""
    used = vocab_size % 32
    return -1 if used == 0 else (1 << used) - 1


def reason_of(error: BaseException) -> str:
    """Returns xgrammar's reason without its time stamp and source line."""
    text = str(error).strip()
    if text.startswith("[") and "] " in text:
        text = text.split("] ", 1)[1]
        head, colon, rest = text.partition(": ")
        text = rest if colon and "/" in head else text
    return text[:500]


def _name(schema: OutputSchema) -> str:
    names = {
        "json_schema": "JSON schema",
        "regex": "regular expression",
        "structural_tag": "structural tag",
    }
    return names.get(schema.kind, "grammar")
