"""Vocabularies and their views."""

import json
import pickle

import pytest

from di_structured import Vocabulary
from di_structured.vocabulary import byte_level_alphabet


def test_views_hide_what_grammars_must_not_spell():
    vocabulary = Vocabulary([b"<eos>", b"a", b"\t", b",\n"], stop_token_ids=[0])
    assert vocabulary.view("full") == [b"<eos>", b"a", b"\t", b",\n"]
    assert vocabulary.view("plain") == [b"\xff<eos>", b"a", b"\t", b",\n"]
    assert vocabulary.view("json") == [b"\xff<eos>", b"a", b"\xff\t", b",\n"]


def test_tokens_that_could_begin_a_surrogate_are_hidden():
    han, lone = "한".encode(), b"\xed\xa0\x80"
    vocabulary = Vocabulary([b"<eos>", han, han[:1], han[:2], lone, b"a\xed"], stop_token_ids=[0])
    assert vocabulary.view("plain")[1:] == [han, b"\xff\xed", han[:2], b"\xff" + lone, b"\xffa\xed"]
    assert vocabulary.view("full")[2] == b"\xed"


def test_a_tokenizer_file_is_read_as_bytes():
    letters = byte_level_alphabet()
    vocab = {letters[0x20] + "hi": 0, letters[0xC3] + letters[0xA9]: 1, letters[0x0A]: 3}
    data = {
        "model": {"type": "BPE", "vocab": vocab},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 2, "content": "<｜end｜>", "special": False}],
    }
    for source in (data, json.dumps(data)):
        vocabulary = Vocabulary.from_tokenizer_json(source, vocab_size=8, stop_token_ids=[2])
        assert vocabulary.tokens == (b" hi", "é".encode(), "<｜end｜>".encode(), b"\n")
        assert (vocabulary.vocab_size, vocabulary.special_token_ids) == (8, frozenset({2}))


def test_another_kind_of_tokenizer_is_refused():
    with pytest.raises(ValueError, match="not byte-level BPE"):
        Vocabulary.from_tokenizer_json({"model": {"type": "Unigram"}}, stop_token_ids=[0])


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        ([b"a"], {"stop_token_ids": []}, "`stop_token_ids` is empty"),
        ([b"a"], {"stop_token_ids": [1]}, "token id 1 is outside"),
        ([b"a", b"b"], {"stop_token_ids": [0], "vocab_size": 1}, "at least the number of tokens 2"),
        ([b"a"], {"stop_token_ids": [0], "special_token_ids": [-1]}, "token id -1"),
    ],
)
def test_wrong_ids_are_refused(tokens, options, words):
    with pytest.raises(ValueError, match=words):
        Vocabulary(tokens, **options)


def test_tokens_must_be_bytes():
    with pytest.raises(TypeError, match=r"`tokens\[1\]` must be bytes, got str"):
        Vocabulary([b"a", "b"], stop_token_ids=[0])


def test_the_fingerprint_follows_the_content():
    one = Vocabulary([b"a", b"b"], stop_token_ids=[0])
    assert pickle.loads(pickle.dumps(one)).fingerprint == one.fingerprint
    others = [
        Vocabulary([b"a", b"c"], stop_token_ids=[0]),
        Vocabulary([b"a", b"b"], stop_token_ids=[1]),
        Vocabulary([b"a", b"b"], stop_token_ids=[0], vocab_size=3),
        Vocabulary([b"ab", b""], stop_token_ids=[0]),
    ]
    assert len({v.fingerprint for v in (one, *others)}) == 5
