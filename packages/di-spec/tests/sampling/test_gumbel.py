import math
from decimal import Decimal, getcontext

import numpy as np
import pytest

from di_spec.sampling import Stream, draw, gumbel, inverse_cdf
from di_spec.sampling.gumbel import gumbel_of_bits, portable_log
from di_spec.testing.statistics import chi_square_p_value

getcontext().prec = 40


def test_logarithm_is_right_to_the_last_bits(rng):
    x = np.concatenate(
        [rng.random(2000), np.exp(rng.uniform(-30, 30, 2000)), 1 - 2.0**-33 * np.arange(1, 60)]
    )
    for value, got in zip(x.tolist(), portable_log(x).tolist(), strict=True):
        exact = Decimal(value).ln()
        assert abs(Decimal(got) - exact) <= Decimal("4e-16") * max(1, abs(exact))
        if 0.71 < value < 1.41:  # relative where the result is small
            assert abs(Decimal(got) - exact) <= Decimal("4e-16") * abs(exact)


def test_noise_of_extreme_bits_is_finite():
    noise = gumbel_of_bits(np.array([0, 1, 2**31, 2**32 - 1], np.uint32))
    expected = [-math.log(-math.log1p(-(b + 0.5) / 2**32)) for b in (0, 1, 2**31, 2**32 - 1)]
    np.testing.assert_allclose(noise, expected, rtol=1e-9)


def test_noise_of_one_token_is_that_of_the_row():
    log_weights = np.full((1, 50), -np.inf)
    log_weights[0, 17] = -3.0
    seed, position = np.array([5], np.uint64), np.array([9], np.uint64)
    assert draw(log_weights, seed, position).tolist() == [17]
    assert gumbel(seed, Stream.TARGET, position, 17).shape == (1,)


@pytest.mark.parametrize("vocab_size", [8, 16, 1024])
@pytest.mark.parametrize("shape", ["uniform", "normal", "zipf", "geometric", "sparse"])
@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize("method", ["gumbel", "inverse_cdf"])
def test_draws_follow_the_distribution(rng, vocab_size, shape, vary, method):
    n = 4_000 if vocab_size > 100 else 20_000
    ranks = np.arange(vocab_size)
    weights = {
        "uniform": np.ones(vocab_size),
        "normal": np.exp(rng.normal(size=vocab_size) * 2),
        "zipf": 1.0 / (ranks + 1),
        "geometric": 0.7**ranks,
        "sparse": np.where(ranks % (vocab_size // 8) == 0, 1.0, 0.0),
    }[shape]
    p = weights / weights.sum()
    steps = np.arange(n, dtype=np.uint64)
    fixed = np.full(n, 3, np.uint64)
    seed, position = (steps, fixed) if vary == "seed" else (fixed, steps)
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    counts = np.zeros(vocab_size)
    for part in np.array_split(np.arange(n), 20):
        if method == "gumbel":
            rows = np.broadcast_to(log_p, (len(part), vocab_size))
            token_ids = draw(rows, seed[part], position[part])
        else:
            rows = np.broadcast_to(p, (len(part), vocab_size))
            token_ids = inverse_cdf(rows, seed[part], position[part])
        counts += np.bincount(token_ids, minlength=vocab_size)
    assert counts[p == 0].sum() == 0
    assert chi_square_p_value(counts, p * n) > 1e-5


def test_rare_tokens_come_at_their_rate():
    # The noise of two tokens decides: P(rare wins) = 1e-4 of pairs, over many seeds.
    n = 2_000_000
    seeds = np.arange(n, dtype=np.uint64)
    rare = gumbel(seeds, Stream.TARGET, 0, 0) + math.log(1e-4)
    common = gumbel(seeds, Stream.TARGET, 0, 1) + math.log1p(-1e-4)
    expected = n * 1e-4
    assert abs(int((rare > common).sum()) - expected) < 5 * math.sqrt(expected)


def test_equal_scores_go_to_the_lower_id():
    assert int(np.argmax(np.array([1.0, 2.0, 2.0]))) == 1  # what `draw` relies on
    log_weights = np.array([[-np.inf, -np.inf, -np.inf]])
    assert draw(log_weights, np.array([1], np.uint64), np.array([1], np.uint64)).tolist() == [0]


def test_inverse_cdf_falls_back_to_the_most_likely_token():
    rows = np.array([[1e-12, 3e-12, 3e-12], [0.0, 0.0, 1e-9]])
    keys = np.array([1, 2], np.uint64)
    assert inverse_cdf(rows, keys, keys).tolist() == [1, 2]
