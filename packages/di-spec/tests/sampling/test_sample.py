import numpy as np
import pytest

from di_spec.sampling import (
    SamplingParams,
    Stream,
    gumbel,
    sample,
    token_logprobs,
    top_logprobs,
)
from di_spec.testing import grammar_mask, rows_batch
from di_spec.testing.statistics import chi_square_p_value


def test_greedy_takes_the_lowest_id_among_equals():
    logits = np.array([[0.0, 3.0, 3.0, 1.0], [-0.0, 0.0, -1.0, 0.0]], np.float32)
    batch = rows_batch(4, [SamplingParams(temperature=0)] * 2)
    assert sample(logits, batch).token_ids.tolist() == [1, 0]


def test_greedy_respects_masks_and_bans():
    logits = np.array([[5.0, 4.0, 3.0]], np.float32)
    batch = rows_batch(3, [SamplingParams(temperature=0, banned_token_ids=[0])])
    assert sample(logits, batch).token_ids.tolist() == [1]
    assert sample(logits, batch, grammar_mask(3, [[0, 2]])).token_ids.tolist() == [2]


def test_draw_is_the_gumbel_maximum_of_scaled_logits(rng):
    logits = rng.normal(size=(1, 64)).astype(np.float32)
    batch = rows_batch(64, [SamplingParams(seed=11, temperature=0.7)], prompt=range(5))
    noise = gumbel(np.uint64(11), Stream.TARGET, 5, np.arange(64))
    scores = (logits[0].astype(np.float64) - logits.max()) / 0.7 + noise
    assert sample(logits, batch).token_ids.tolist() == [int(np.argmax(scores))]


def test_row_does_not_depend_on_its_companions(rng):
    vocab_size, n = 50, 12
    logits = (rng.normal(size=(n, vocab_size)) * 3).astype(np.float32)
    rows = [
        SamplingParams(seed=i, temperature=i % 3 / 2, top_k=i - 1, top_p=0.3 + i / 20)
        for i in range(n)
    ]
    together = sample(logits, rows_batch(vocab_size, rows), logprobs="processed")
    order = rng.permutation(n)
    mixed = sample(
        logits[order], rows_batch(vocab_size, [rows[i] for i in order]), logprobs="processed"
    )
    np.testing.assert_array_equal(mixed.token_ids, together.token_ids[order])
    np.testing.assert_array_equal(mixed.logprobs, together.logprobs[order])
    for i in range(n):
        alone = sample(
            logits[i : i + 1], rows_batch(vocab_size, rows[i : i + 1]), logprobs="processed"
        )
        assert alone.token_ids[0] == together.token_ids[i]
        assert alone.logprobs[0] == together.logprobs[i]


def test_seed_and_position_are_all_that_is_random(rng):
    logits = np.tile(rng.normal(size=200), (3, 1))
    same = sample(logits, rows_batch(200, [SamplingParams(seed=s) for s in (1, 1, 2)]))
    assert same.token_ids[0] == same.token_ids[1] != same.token_ids[2]
    later = sample(logits, rows_batch(200, [SamplingParams(seed=1)] * 3, prompt=range(2)))
    assert later.token_ids[0] != same.token_ids[0]


def test_filtered_tokens_are_never_drawn_and_the_rest_follow_the_law(rng):
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    n = 5000
    batch = rows_batch(4, [SamplingParams(seed=s, top_k=3) for s in range(n)])
    token_ids = sample(np.tile(logits, (n, 1)), batch).token_ids
    counts = np.bincount(token_ids, minlength=4)
    assert chi_square_p_value(counts, n * np.array([4, 3, 2, 0]) / 9) > 1e-5


def test_failed_rows_leave_the_others_alone(rng):
    logits = rng.normal(size=(3, 8)).astype(np.float32)
    params = [SamplingParams(seed=i) for i in range(3)]
    good = sample(logits, rows_batch(8, params)).token_ids
    logits[1, 3] = np.nan
    samples = sample(logits, rows_batch(8, params), logprobs="raw", num_top_logprobs=2)
    assert samples.token_ids.tolist() == [good[0], -1, good[2]]
    assert samples.status.tolist() == [0, 1, 0]
    assert np.isnan(samples.logprobs[1])
    assert samples.top_token_ids[1].tolist() == [-1, -1]


def test_raw_and_processed_logprobs():
    logits = np.log(np.array([[0.5, 0.3, 0.2]]))
    batch = rows_batch(3, [SamplingParams(seed=0, top_k=1, temperature=0.5)])
    raw = sample(logits, batch, logprobs="raw", num_top_logprobs=5)
    np.testing.assert_allclose(np.exp(raw.top_logprobs), [[0.5, 0.3, 0.2]], rtol=1e-6)
    processed = sample(logits, batch, logprobs="processed", num_top_logprobs=2)
    assert processed.logprobs.tolist() == [0.0]
    assert processed.top_token_ids.tolist() == [[0, -1]]
    assert processed.top_logprobs[0, 1] == -np.inf


def test_greedy_logprobs_are_those_of_temperature_one():
    logits = np.log(np.array([[0.5, 0.3, 0.2]]))
    batch = rows_batch(3, [SamplingParams(temperature=0)])
    samples = sample(logits, batch, logprobs="processed")
    np.testing.assert_allclose(np.exp(samples.logprobs), [0.5], rtol=1e-6)


def test_prompt_logprobs(rng):
    logits = rng.normal(size=(4, 9)).astype(np.float32)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ids = np.array([0, 8, 3, 3])
    np.testing.assert_allclose(token_logprobs(logits, ids), np.log(p[np.arange(4), ids]), rtol=1e-5)
    top_ids, values = top_logprobs(logits, 3)
    np.testing.assert_array_equal(top_ids, np.argsort(-logits, axis=1)[:, :3])
    assert (np.diff(values) <= 0).all()


@pytest.mark.parametrize("vocab_size", [1, 2, 3])
def test_tiny_vocabularies(vocab_size):
    logits = np.zeros((2, vocab_size), np.float32)
    batch = rows_batch(vocab_size, [SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.5)])
    assert (sample(logits, batch).token_ids < vocab_size).all()


def test_no_rows():
    samples = sample(np.zeros((0, 4), np.float32), rows_batch(4, []), logprobs="raw")
    assert samples.token_ids.shape == (0,)
