"""Prompts: every accepted form, and a message for every other."""

from typing import Any

import numpy as np
import pytest
import torch

from di_engine import InvalidRequestError
from di_engine.llm.prompts import prepare_prompt, split_prompts
from di_engine.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1, 2], "a", {"prompt": "b"}], [[1, 2], "a", {"prompt": "b"}]),
        ({"prompt": "a"}, [{"prompt": "a"}]),
        ([], []),
        ([[]], [[]]),
        ([1.5, 2.0], [[1.5, 2.0]]),
        ((1, 2), [[1, 2]]),
        (7, [7]),
        (None, [None]),
    ],
)
def test_one_prompt_and_a_batch_are_told_apart(prompts: Any, expected: list[Any]) -> None:
    assert split_prompts(prompts) == expected


def test_arrays_are_one_prompt_in_one_dimension_and_a_batch_in_two() -> None:
    assert len(split_prompts(np.arange(3))) == 1
    assert len(split_prompts(torch.zeros(4, 3, dtype=torch.int64))) == 4


@pytest.mark.parametrize(
    "prompt",
    [
        [5, 6],
        (5, 6),
        np.array([5, 6], dtype=np.int32),
        np.array([5, 6], dtype=np.uint8),
        torch.tensor([5, 6]),
        {"prompt_token_ids": [5, 6]},
        range(5, 7),
    ],
)
def test_token_ids_in_any_integer_form(prompt: Any) -> None:
    assert prepare_prompt(prompt, None, 10).token_ids == [5, 6]


def test_text_begins_with_bos_once() -> None:
    prepared = prepare_prompt("ab", TOKENIZER, 259)
    assert prepared.token_ids == [0, 100, 101]
    assert prepared.text == "ab"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty: give at least one character"),
        ([], "the prompt is empty: give at least one token id"),
        ({"prompt": ""}, "the prompt is empty"),
        ([1, 259], "token id 259 at position 1 is outside the vocabulary: 0 to 258 are allowed"),
        ([-1, 300, 2], r"token id -1 at position 0 \(and 1 more\)"),
        ([1.0], r"token ids must be integers: got 1.0 \(float\) at position 0"),
        ([1, "a"], r"got 'a' \(str\) at position 1"),
        ([True], "got True"),
        (np.array([1.5]), "got 1.5"),
        (np.zeros((1, 2), dtype=int), "an array of 2 dimensions"),
        (None, "a prompt is text or a list of token ids: got NoneType"),
        (7, "got int"),
        (b"bytes", "got bytes"),
        ({}, "got nothing"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "either `prompt`"),
        ({"text": "a"}, "got `text`"),
        ({"prompt": [1]}, "`prompt` must be text: got list"),
        ({"prompt_token_ids": "a"}, "`prompt_token_ids` must be token ids: got str"),
        ("a\ud800", "lone surrogate at character 1"),
    ],
)
def test_a_wrong_prompt_says_what_is_allowed(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        prepare_prompt(prompt, TOKENIZER, 259)


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="needs a tokenizer"):
        prepare_prompt("a", None, 10)
