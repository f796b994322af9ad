"""Text of a completion, token by token: whole characters, no parts of stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_engine import SamplingParams
from di_engine.llm.text_stream import TextStream
from di_engine.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()


def pieces_of(text: str, **params: object) -> tuple[list[str], str | None]:
    stream = TextStream(TOKENIZER, SamplingParams(**params))
    pieces = []
    for token_id in TOKENIZER.encode(text):
        piece = stream.push(token_id)
        pieces.append(piece.text)
        if piece.stop is not None:
            return pieces, piece.stop
    last = stream.finish()
    return [*pieces, last.text], last.stop


@given(st.text(max_size=20))
def test_pieces_are_whole_characters_and_add_up(text: str) -> None:
    pieces, stop = pieces_of(text)
    assert "".join(pieces) == text
    assert stop is None
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_a_stop_string_is_found_across_the_bytes_of_a_character() -> None:
    pieces, stop = pieces_of("ab\u2603cd", stop=["\u2603c"])
    assert ("".join(pieces), stop) == ("ab", "\u2603c")
    assert pieces[:2] == ["a", "b"]


def test_the_stop_string_is_returned_on_request() -> None:
    pieces, _ = pieces_of("abENDc", stop="END", include_stop_str_in_output=True)
    assert "".join(pieces) == "abEND"


def test_what_was_held_back_comes_out_at_the_end() -> None:
    pieces, stop = pieces_of("abEN", stop="END")
    assert ("".join(pieces), stop) == ("abEN", None)
    assert "".join(pieces[:-1]) == "ab"


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, "a"), (1, "a"), (2, "axb"), (3, "axb")])
def test_a_stop_string_counts_only_after_min_tokens(min_tokens: int, expected: str) -> None:
    pieces, _ = pieces_of("axbxc", stop="x", min_tokens=min_tokens)
    assert "".join(pieces) == expected


def test_an_incomplete_character_reads_as_a_replacement() -> None:
    stream = TextStream(TOKENIZER, SamplingParams())
    token_ids = TOKENIZER.encode("\u2603")
    assert [stream.push(token_id).text for token_id in token_ids[:2]] == ["", ""]
    assert stream.finish().text == "\ufffd"


def test_without_detokenize_there_is_no_text() -> None:
    pieces, _ = pieces_of("abc", detokenize=False)
    assert "".join(pieces) == ""
