import numpy as np
import pytest

from di_spec import InvalidSamplingError
from di_spec.sampling import SamplingParams, seed_bits


def test_seed_is_taken_modulo_two_to_the_64():
    assert seed_bits(-1) == 2**64 - 1
    assert seed_bits(2**64 + 5) == 5
    assert seed_bits(np.int64(7)) == 7
    assert SamplingParams(seed=2**70 + 3).seed == 3


def test_missing_seeds_are_fresh():
    assert len({seed_bits(None) for _ in range(20)}) == 20
    params = SamplingParams()
    assert params.seed == params.seed


@pytest.mark.parametrize("seed", ["1", 1.0, True, [1]])
def test_other_seeds_are_refused(seed):
    with pytest.raises(TypeError, match="`seed` must be an integer or None"):
        seed_bits(seed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("frequency_penalty", float("inf")),
        ("presence_penalty", None),
        ("logit_bias", {1: float("inf")}),
        ("allowed_token_ids", []),
        ("bad_words", [[]]),
        ("min_tokens", -1),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(InvalidSamplingError, match=f"`{field}` must"):
        SamplingParams(**{field: value})


def test_every_problem_is_listed():
    with pytest.raises(InvalidSamplingError) as caught:
        SamplingParams(temperature=-1, top_p=2, min_tokens=-3)
    for field in ("temperature", "top_p", "min_tokens"):
        assert f"`{field}`" in str(caught.value)


def test_ids_outside_the_vocabulary_are_named():
    params = SamplingParams(banned_token_ids=[3, 10], bad_words=[[1, -1]])
    with pytest.raises(InvalidSamplingError) as caught:
        params.check_vocabulary(10)
    assert "`banned_token_ids` must hold token ids from 0 to 9: got [10]" in str(caught.value)
    assert "`bad_words`" in str(caught.value)
    SamplingParams(banned_token_ids=[9]).check_vocabulary(10)


def test_only_untouched_greedy_rows_are_plain():
    assert SamplingParams(temperature=0).is_plain_greedy
    assert SamplingParams(temperature=0, top_k=5, top_p=0.5).is_plain_greedy
    assert not SamplingParams(temperature=0.1).is_plain_greedy
    assert not SamplingParams(temperature=0, presence_penalty=1).is_plain_greedy
    assert not SamplingParams(temperature=0, min_tokens=1, stop_token_ids=[1]).is_plain_greedy
