"""Sampling parameters: every wrong value has a message, and none raises before submission."""

import dataclasses

import numpy as np
import pytest

from di_engine import InvalidRequestError, SamplingParams
from di_engine.llm import sampling_params


def test_defaults_are_valid() -> None:
    assert SamplingParams().problems(vocab_size=8) == []


def test_every_field_has_a_rule() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(sampling_params._RULES) == fields


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", [1]),
        ("allowed_token_ids", []),
        ("banned_token_ids", "12"),
        ("banned_token_ids", [1.0]),
        ("seed", 1.5),
        ("seed", True),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", None),
        ("max_tokens", 2.0),
        ("max_tokens", 2**31),
        ("min_tokens", -1),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 7),
        ("stop_token_ids", 7),
        ("include_stop_str_in_output", 1),
        ("ignore_eos", "yes"),
        ("logprobs", -1),
        ("logprobs", 1001),
        ("logprobs", True),
        ("prompt_logprobs", 0.5),
        ("logprobs_mode", "both"),
        ("skip_special_tokens", None),
        ("detokenize", 0),
    ],
)
def test_a_wrong_value_names_field_rule_and_value(name: str, value: object) -> None:
    params = SamplingParams(**{name: value})
    with pytest.raises(InvalidRequestError, match=f"`{name}` must be .*: got ") as caught:
        params.validate()
    assert caught.value.param == name
    assert repr(value) in str(caught.value)


def test_all_problems_are_listed() -> None:
    problems = SamplingParams(temperature=-1, top_p=2, max_tokens=0).problems()
    assert [name for name, _ in problems] == ["temperature", "top_p", "max_tokens"]


def test_numpy_numbers_count_as_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        max_tokens=np.int64(3),
        seed=np.uint64(2**63),
        stop_token_ids=np.array([1, 2]),
    )
    assert params.problems(vocab_size=8) == []


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1, 2**70])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert SamplingParams(seed=seed).problems() == []


def test_contradictions_name_both_values() -> None:
    (problem,) = SamplingParams(min_tokens=5, max_tokens=4).problems()
    assert problem == ("min_tokens", "`min_tokens` must not exceed `max_tokens`: got 5 and 4")
    (problem,) = SamplingParams(stop="x", detokenize=False).problems()
    assert "stop_token_ids" in problem[1]


@pytest.mark.parametrize("name", ["logit_bias", "banned_token_ids", "stop_token_ids"])
def test_ids_outside_the_vocabulary_are_named(name: str) -> None:
    ids = {8: 1.0, -1: 1.0} if name == "logit_bias" else [3, 8, -1]
    ((field, message),) = SamplingParams(**{name: ids}).problems(vocab_size=8)
    assert field == name
    assert "vocabulary of 8: 8, -1" in message


def test_nothing_left_to_generate_is_a_problem() -> None:
    assert SamplingParams(banned_token_ids=[0, 1]).problems(vocab_size=2)
    assert SamplingParams(banned_token_ids=[0], allowed_token_ids=[0]).problems(vocab_size=2)
    assert not SamplingParams(banned_token_ids=[0], allowed_token_ids=[0, 1]).problems(2)


def test_unknown_fields_are_all_named_with_the_nearest() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams.from_dict({"temprature": 1, "zzz": 2})
    assert "`temprature` is not a sampling parameter; did you mean `temperature`" in str(
        caught.value
    )
    assert "`zzz` is not a sampling parameter; known are n, temperature" in str(caught.value)
    assert caught.value.param == "temprature"


def test_stop_may_be_one_string_or_several() -> None:
    assert SamplingParams(stop="ab").stop_strings == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop_strings == ()
