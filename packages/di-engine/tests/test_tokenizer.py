"""Tokenizer: round trips, agreement with the library, streams that never split a character."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from di_engine import tiny
from di_engine.config import ModelConfig
from di_engine.errors import ConfigError, InvalidRequestError
from di_engine.tokenizer import Tokenizer

CONFIG = ModelConfig.from_directory(tiny.directory())
TOKENIZER = Tokenizer.from_directory(tiny.directory(), CONFIG)
token_lists = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)


class TestText:
    @given(st.text())
    def test_text_survives(self, text: str) -> None:
        ids = TOKENIZER.encode(text)
        assert TOKENIZER.decode(ids, skip_special_tokens=False) == text

    def test_begin_token_is_asked_for(self) -> None:
        assert TOKENIZER.encode("a", add_special_tokens=True) == [0, *TOKENIZER.encode("a")]
        assert TOKENIZER.encode("", add_special_tokens=True) == [0]
        assert TOKENIZER.encode("") == []

    def test_markup_strings_are_one_token_and_stay_visible(self) -> None:
        for text in ("<think>", "</think>", "｜DSML｜", "<｜User｜>", "<｜System｜>"):
            (token_id,) = TOKENIZER.encode(text)
            assert not TOKENIZER.is_special(token_id)
            assert TOKENIZER.decode([token_id]) == text
            assert TOKENIZER.token_id(text) == token_id

    def test_special_tokens_are_skipped_on_request(self) -> None:
        ids = [0, *TOKENIZER.encode("hello"), 1, 2]
        assert TOKENIZER.decode(ids) == "hello"
        assert TOKENIZER.decode(ids, skip_special_tokens=False).endswith("<｜▁pad▁｜>")
        assert [TOKENIZER.is_special(token_id) for token_id in (0, 1, 2, 3)] == [True] * 3 + [False]

    def test_lone_surrogate_is_an_invalid_request(self) -> None:
        with pytest.raises(InvalidRequestError, match="lone surrogate at character 2"):
            TOKENIZER.encode("ab\ud800")

    @pytest.mark.parametrize("token_id", [-1, TOKENIZER.vocab_size])
    def test_id_outside_the_vocabulary(self, token_id: int) -> None:
        allowed = f"allowed: 0 to {TOKENIZER.vocab_size - 1}"
        for call in (TOKENIZER.token_bytes, TOKENIZER.raw_token, TOKENIZER.stream().push):
            with pytest.raises(InvalidRequestError, match=allowed):
                call(token_id)


class TestStream:
    @given(token_lists, st.booleans())
    def test_pieces_concatenate_to_what_the_library_decodes(
        self, ids: list[int], skip: bool
    ) -> None:
        stream = TOKENIZER.stream(skip_special_tokens=skip)
        text = "".join([*map(stream.push, ids), stream.finish()])
        assert text == TOKENIZER.backend.decode(ids, skip_special_tokens=skip)
        assert text == TOKENIZER.decode(ids, skip_special_tokens=skip)

    @given(st.text(alphabet=st.characters(codec="utf-8", min_codepoint=0x80), max_size=8))
    def test_no_piece_holds_part_of_a_character(self, text: str) -> None:
        stream = TOKENIZER.stream()
        pieces = [stream.push(token_id) for token_id in TOKENIZER.encode(text)]
        done = ""
        for piece in pieces:
            done += piece
            assert text.startswith(done)
        assert stream.finish() == ""

    def test_unfinished_character_is_shown_at_the_end(self) -> None:
        ids = TOKENIZER.encode("漢")
        assert len(ids) > 1
        stream = TOKENIZER.stream()
        assert [stream.push(token_id) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
        assert stream.finish() == "\ufffd"

    def test_every_single_id_agrees_with_the_library(self) -> None:
        for token_id in range(TOKENIZER.vocab_size):
            expected = TOKENIZER.backend.decode([token_id], skip_special_tokens=False)
            assert TOKENIZER.decode([token_id], skip_special_tokens=False) == expected


class TestRefusals:
    def test_vocabulary_of_another_model(self, tmp_path: Path) -> None:
        values = json.loads((tiny.directory() / "config.json").read_text())
        values["text_config"]["vocab_size"] += 32
        with pytest.raises(ConfigError, match=r"3840 token ids, `vocab_size` of the model: 3872"):
            Tokenizer.from_directory(tiny.directory(), ModelConfig.from_dict(values))

    def test_absent_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no `tokenizer\.json`"):
            Tokenizer.from_directory(tmp_path)

    @pytest.mark.parametrize("content", ["", "{}", "[1]"])
    def test_damaged_file(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ConfigError, match="is not a tokenizer file"):
            Tokenizer.from_directory(tmp_path)

    def test_other_kinds_of_tokenizer(self) -> None:
        backend = Backend(models.WordLevel({"a": 0, "b": 2}, unk_token="a"))
        with pytest.raises(ConfigError, match=r"(?s)decoder: None.*ids \[1\] of 0 to 1"):
            Tokenizer(backend)
        backend.decoder = decoders.WordPiece()
        with pytest.raises(ConfigError, match="decoder: WordPiece, supported: ByteLevel"):
            Tokenizer(backend)
