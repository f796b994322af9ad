import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec import InvalidSamplingError
from di_spec.sampling import RowStatus, SamplingParams, TokenHistory, process
from di_spec.sampling.transform import unpack_mask
from di_spec.testing import grammar_mask, rows_batch


def kept(logits, **kwargs):
    """Ids that survive, most likely first."""
    logits = np.asarray(logits, np.float32)[None]
    row = process(
        logits, rows_batch(logits.shape[1], [SamplingParams(seed=0, **kwargs)])
    ).log_probs[0]
    order = sorted(range(len(row)), key=lambda i: (-logits[0, i], i))
    return [i for i in order if row[i] > -np.inf]


def test_top_p_keeps_the_shortest_prefix_that_exceeds_it():
    logits = np.log([0.5, 0.25, 0.125, 0.125])
    assert kept(logits, top_p=0.4) == [0]
    assert kept(logits, top_p=0.51) == [0, 1]
    assert kept(logits, top_p=0.74) == [0, 1]
    assert kept(np.zeros(4), top_p=0.5) == [0, 1, 2]  # the mass must exceed 0.5
    assert kept(np.zeros(10), top_p=0.3) == [0, 1, 2, 3]
    assert kept(logits, top_p=1e-9) == [0]


def test_filters_use_masses_before_top_k():
    # After top-k = 2 and renormalisation the first token alone would hold 2/3 of the mass.
    assert kept(np.log([0.4, 0.2, 0.2, 0.2]), top_k=2, top_p=0.5) == [0, 1]


def test_ties_at_the_cut_keep_the_lowest_ids():
    assert kept([1, 2, 1, 2, 1], top_k=3) == [1, 3, 0]
    assert kept([0.0, -0.0, 0.0, -0.0], top_k=2) == [0, 1]


def test_min_p_is_relative_to_the_most_likely():
    assert kept(np.log([0.5, 0.26, 0.24]), min_p=0.5) == [0, 1]
    assert kept([0.0, 0.0, -0.1], min_p=1.0) == [0, 1]


@given(
    st.integers(2, 40),
    st.integers(0, 2**32),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(-1, 45),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.booleans(),
)
def test_survivors_match_a_direct_computation(size, seed, temperature, top_k, top_p, min_p, ties):
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3
    logits = np.round(logits) if ties else logits
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = sorted(range(size), key=lambda i: (-logits[i], i))
    survivors, mass = [], 0.0
    slack = set()
    for rank, i in enumerate(order):
        is_in = (top_k < 1 or rank < top_k) and p[i] >= min_p * p.max() * (1 - 1e-12)
        if is_in and abs(mass - top_p) < 1e-9 and top_p < 1:
            slack.add(i)  # the limit is met to rounding
        if is_in and (top_p == 1 or mass <= top_p or i in slack):
            survivors.append(i)
        mass += p[i]
    got = kept(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert got == order[: len(got)]
    assert set(survivors) - slack <= set(got) | slack
    assert set(got) <= set(survivors)


@given(st.integers(2, 30), st.integers(0, 2**32), st.floats(0.05, 0.99))
def test_distributions_sum_to_one(size, seed, top_p):
    logits = np.random.default_rng(seed).normal(size=(1, size)) * 4
    row = process(
        logits, rows_batch(size, [SamplingParams(top_p=top_p, temperature=0.8)])
    ).log_probs
    assert math.isclose(np.exp(row).sum(), 1, abs_tol=1e-9)


def edited(logits, mask_bits=None, history=None, **kwargs):
    logits = np.asarray(logits, np.float64)[None]
    history = history or TokenHistory([0])
    batch = rows_batch(logits.shape[1], [(SamplingParams(seed=0, **kwargs), history)])
    from di_spec.sampling.transform import apply_edits

    return apply_edits(logits, batch, mask_bits)[0].tolist()


def test_penalties_by_hand():
    history = TokenHistory([0, 1])
    history.extend([2, 2, 3])
    values = edited(
        [2.0, -2.0, 4.0, -4.0, 1.0],
        history=history,
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
    )
    assert values == [1.0, -4.0, 2.0 - 1.0 - 0.25, -8.0 - 0.5 - 0.25, 1.0]


def test_bias_comes_before_penalties():
    assert edited([1.0, 0.0], logit_bias={0: 3.0}, repetition_penalty=2.0) == [2.0, 0.0]


def test_nothing_brings_a_removed_token_back():
    mask = grammar_mask(4, [[1, 2]])
    values = edited([9.0, 1.0, 1.0, 9.0], mask, logit_bias={0: 50.0, 1: 50.0}, banned_token_ids=[1])
    assert values == [-np.inf, -np.inf, 1.0, -np.inf]
    assert edited([1, 2, 3], allowed_token_ids=[0, 2], banned_token_ids=[2]) == [
        1,
        -np.inf,
        -np.inf,
    ]


def test_forbidden_logits_have_no_influence(rng):
    logits = rng.normal(size=(1, 40)).astype(np.float32)
    mask = grammar_mask(40, [range(0, 40, 3)])
    batch = rows_batch(40, [SamplingParams(seed=1, top_p=0.7)])
    before = process(logits, batch, mask).log_probs
    logits[0, 1::3] += 50
    np.testing.assert_array_equal(process(logits, batch, mask).log_probs, before)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
def test_mask_bits_beyond_the_vocabulary_are_ignored(vocab_size):
    allowed = list(range(0, vocab_size, 2))
    mask = grammar_mask(vocab_size, [allowed])
    noisy = mask.copy()
    if vocab_size % 32:
        noisy[0, -1] |= np.int32(-(1 << (vocab_size % 32)))
    assert np.flatnonzero(unpack_mask(noisy, vocab_size)[0]).tolist() == allowed


def test_bad_rows_are_reported_one_by_one():
    logits = np.zeros((5, 4), np.float32)
    logits[0, 2] = np.nan
    logits[1, 1] = np.inf
    logits[2] = -np.inf
    logits[3, 0] = -np.inf
    batch = rows_batch(4, [SamplingParams(seed=0)] * 5)
    mask = grammar_mask(4, [None, None, None, [0], None])
    processed = process(logits, batch, mask)
    assert processed.status.tolist() == [1, 2, 3, 3, 0]
    assert np.isneginf(processed.log_probs[:4]).all()
    assert all(RowStatus(code).message for code in processed.status)


def test_shapes_that_contradict_each_other_are_refused():
    batch = rows_batch(8, [SamplingParams(seed=0)])
    with pytest.raises(InvalidSamplingError, match=r"`logits` must have shape \(1, 8\)"):
        process(np.zeros((1, 9)), batch)
    with pytest.raises(InvalidSamplingError, match="`mask_bits`"):
        process(np.zeros((1, 8)), batch, np.zeros((1, 2), np.int32))


def test_extreme_temperatures_stay_finite():
    logits = np.array([[1.0, 2.0, 2.0]])
    cold = process(logits, rows_batch(3, [SamplingParams(temperature=1e-300)])).log_probs[0]
    np.testing.assert_allclose(cold[1:], np.log([0.5, 0.5]))
    hot = process(logits, rows_batch(3, [SamplingParams(temperature=1e30)])).log_probs[0]
    np.testing.assert_allclose(hot, np.log([1 / 3] * 3))
