"""Vocabularies for tests and benchmarks, and compiling without a worker."""

import random
from collections.abc import Sequence

from di_structured.compiling.build import build_grammar
from di_structured.grammar import CompiledGrammar
from di_structured.schema import OutputSchema
from di_structured.vocabulary import Vocabulary

__all__ = ["byte_vocabulary", "compile_here", "synthetic_vocabulary"]

CONTROL_TOKENS = (b"<bos>", b"<eos>", b"<think>", b"</think>", "｜DSML｜".encode())
JSON_PIECES = (
    *(b'":', b'", "', b'"}', b"}}", b'{"', b"[]", b"{}", b",\n"),
    *(b"true", b"false", b"null"),
)


def byte_vocabulary(
    pieces: Sequence[bytes] = JSON_PIECES, *, padding: int = 5, stop_token_ids: Sequence[int] = (1,)
) -> Vocabulary:
    """Returns five control tokens (ids 0 to 4), the bytes (from id 5 on), pieces, and padding.

    Args:
        pieces: Tokens of more than one byte.
        padding: Ids beyond the tokens.
        stop_token_ids: By default `<eos>`.
    """
    tokens = [*CONTROL_TOKENS, *(bytes([i]) for i in range(256)), *pieces]
    return Vocabulary(
        tokens,
        vocab_size=len(tokens) + padding,
        stop_token_ids=stop_token_ids,
        special_token_ids=range(len(CONTROL_TOKENS)),
    )


def synthetic_vocabulary(vocab_size: int, *, seed: int = 0) -> Vocabulary:
    """Returns a vocabulary of the make-up of a byte-level BPE one.

    It holds words with and without a leading blank, numbers, punctuation, some text outside ASCII,
    the single bytes, and 1 % of control and padding ids.
    """
    draw = random.Random(seed)  # noqa: S311 test data
    consonants, vowels = "bcdfghjklmnprstvwxz", "aeiouy"
    tokens = [*CONTROL_TOKENS, *(bytes([i]) for i in range(256)), *JSON_PIECES]
    seen = set(tokens)
    while len(tokens) < vocab_size - vocab_size // 100:
        kind = draw.random()
        if kind < 0.8:
            word = "".join(
                draw.choice(consonants) + draw.choice(vowels) for _ in range(draw.randint(1, 4))
            )
            word = draw.choice(("", "", "s", "n", "ing")).join((word, ""))
            text = draw.choice(("", " ", " ")) + draw.choice((word, word.capitalize()))
        elif kind < 0.85:
            text = str(draw.randrange(10 ** draw.randint(1, 3)))
        elif kind < 0.9:
            text = "".join(draw.choice(' \n"{}[]:,.;()=<>/_-') for _ in range(draw.randint(2, 6)))
        else:
            text = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(draw.randint(1, 3)))
        token = text.encode()
        if token not in seen:
            seen.add(token)
            tokens.append(token)
    return Vocabulary(
        tokens,
        vocab_size=vocab_size,
        stop_token_ids=(1,),
        special_token_ids=range(len(CONTROL_TOKENS)),
    )


def compile_here(schema: OutputSchema, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compiles in this process, without limits: for tests, never for a request.

    Raises:
        InvalidSchemaError: xgrammar refuses the grammar, or it is empty.
    """
    handle = build_grammar(schema, vocabulary.tokenizer_info(schema.view))
    return CompiledGrammar(schema.key, vocabulary, handle, handle.memory_size_bytes, 0.0)
