import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import di_spec.torch as on_tensors  # noqa: E402
from di_spec import sampling as reference  # noqa: E402
from di_spec.sampling import (  # noqa: E402
    SamplerBatch,
    SampleRequest,
    SamplingParams,
    Stream,
    TokenHistory,
)
from di_spec.testing import grammar_mask, rows_batch  # noqa: E402
from di_spec.torch import filters, noise  # noqa: E402
from di_spec.torch.sample import decide_among_few  # noqa: E402


def random_params(rng, vocab_size):
    def maybe(chance, name, value):
        return {name: value} if rng.random() < chance else {}

    token = lambda: int(rng.integers(vocab_size))  # noqa: E731
    return SamplingParams(
        seed=int(rng.integers(2**62)),
        temperature=float(rng.choice([0, 0.3, 1, 2.5])),
        **maybe(0.4, "top_k", int(rng.integers(1, vocab_size + 3))),
        **maybe(0.4, "top_p", float(1 - rng.random())),
        **maybe(0.3, "min_p", float(rng.random())),
        **maybe(0.3, "repetition_penalty", 1.3),
        **maybe(0.3, "presence_penalty", 0.5),
        **maybe(0.3, "frequency_penalty", -0.5),
        **maybe(0.3, "logit_bias", {token(): 3.0, 0: -1.5}),
        **maybe(0.3, "banned_token_ids", [token(), 1]),
        **maybe(0.1, "allowed_token_ids", [2, 3, token()]),
        **maybe(0.2, "bad_words", [[token(), token()], [token()]]),
    )


@given(
    st.integers(0, 2**32), st.sampled_from([2, 5, 33, 700, 1500]), st.integers(1, 6), st.booleans()
)
def test_tokens_are_those_of_the_reference(seed, vocab_size, num_rows, ties):
    rng = np.random.default_rng(seed)
    vocab_size = max(vocab_size, 4)
    logits = rng.normal(size=(num_rows, vocab_size)).astype(np.float32) * rng.choice([0.1, 1, 5])
    logits = np.round(logits) if ties else logits
    if rng.random() < 0.2:
        logits[rng.integers(num_rows), rng.integers(vocab_size)] = rng.choice([np.nan, np.inf])
    requests = []
    for _ in range(num_rows):
        history = TokenHistory(rng.integers(0, vocab_size, 10))
        history.extend(rng.integers(0, vocab_size, 4).tolist())
        requests.append(SampleRequest(random_params(rng, vocab_size), history))
    batch = SamplerBatch.build(requests, vocab_size)
    mask = None
    if rng.random() < 0.4:
        mask = rng.integers(-(2**31), 2**31, (num_rows, (vocab_size + 31) // 32)).astype(np.int32)
    before = logits.copy()
    for logprobs in (None, "raw", "processed"):
        want = reference.sample(logits, batch, mask, logprobs=logprobs, num_top_logprobs=4)
        got = on_tensors.sample(
            torch.from_numpy(logits),
            batch,
            None if mask is None else torch.from_numpy(mask),
            logprobs=logprobs,
            num_top_logprobs=4,
        )
        assert got.token_ids.tolist() == want.token_ids.tolist()
        assert got.status.tolist() == want.status.tolist()
        if logprobs:
            np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-5, atol=1e-6)
            assert got.top_token_ids.tolist() == want.top_token_ids.tolist()
            np.testing.assert_allclose(got.top_logprobs, want.top_logprobs, rtol=1e-5, atol=1e-6)
    dense = reference.process(logits, batch, mask)
    tensors = on_tensors.process(
        torch.from_numpy(logits), batch, None if mask is None else torch.from_numpy(mask)
    )
    np.testing.assert_allclose(tensors.log_probs, dense.log_probs, rtol=1e-9, atol=1e-9)
    assert tensors.status.tolist() == dense.status.tolist()
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("vocab_size", [4096, 129280])
def test_large_vocabularies_match_the_reference(rng, vocab_size):
    logits = (rng.normal(size=(5, vocab_size)) * 4).astype(np.float32)
    rows = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.95),
        SamplingParams(seed=3, top_k=50, top_p=0.9),
        SamplingParams(seed=4, min_p=0.02, temperature=1.5),
        SamplingParams(seed=5, top_p=0.999, temperature=3.0),
    ]
    batch = rows_batch(vocab_size, rows)
    want = reference.sample(logits, batch)
    assert on_tensors.sample(torch.from_numpy(logits), batch).token_ids.tolist() == (
        want.token_ids.tolist()
    )


def test_row_is_bitwise_stable_in_any_batch(rng):
    vocab_size, n = 1000, 17
    logits = torch.from_numpy((rng.normal(size=(n, vocab_size)) * 3).astype(np.float32))
    rows = [random_params(rng, vocab_size) for _ in range(n)]
    kwargs = {"logprobs": "processed", "num_top_logprobs": 3}
    together = on_tensors.sample(logits, rows_batch(vocab_size, rows), **kwargs)
    strided = torch.zeros(n, vocab_size + 24)[:, :vocab_size].copy_(logits)
    again = on_tensors.sample(strided, rows_batch(vocab_size, rows), **kwargs)
    for i in range(n):
        alone = on_tensors.sample(
            logits[i : i + 1], rows_batch(vocab_size, rows[i : i + 1]), **kwargs
        )
        for name in ("token_ids", "logprobs", "top_token_ids", "top_logprobs"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[i])
            assert torch.equal(getattr(again, name)[i], getattr(together, name)[i])


def test_device_code_without_guesses_agrees(rng, monkeypatch):
    # Other devices sort whole rows and screen on the device; the same code runs here.
    vocab_size = 3000
    logits = torch.from_numpy(np.round(rng.normal(size=(6, vocab_size)) * 2).astype(np.float32))
    rows = [SamplingParams(seed=i, top_k=40 + i, top_p=0.5 + i / 20) for i in range(6)]
    batch = rows_batch(vocab_size, rows)
    expected = on_tensors.sample(logits, batch).token_ids
    monkeypatch.setattr(filters, "_widths", lambda batch, rows: [rows.shape[1]])
    assert torch.equal(on_tensors.sample(logits, batch).token_ids, expected)


def test_a_few_candidates_decide_like_all_of_them(rng):
    # Other devices do not count the scores near the best; here are rows with one, two and three.
    vocab_size, num_rows = 500, 12
    seed = np.arange(num_rows, dtype=np.uint64)
    position = seed + 7
    bits = noise.row_bits(seed, Stream.TARGET, position, vocab_size, torch.device("cpu"))
    gumbel = noise.gumbel_of_bits(bits.to(torch.int64))
    weights = torch.from_numpy(rng.normal(size=(num_rows, vocab_size)))
    weights[:, 3] = -torch.inf
    for row in range(num_rows):
        best = float((weights[row] + gumbel[row]).max()) + 1.0
        places = rng.choice(np.arange(4, vocab_size), row % 3 + 1, replace=False)
        for place in places.tolist():
            weights[row, place] = best - gumbel[row, place] + float(rng.uniform(-4e-10, 4e-10))
    expected = on_tensors.gumbel_argmax(weights, seed, Stream.TARGET, position)
    exponential = (1.0 - (bits.to(torch.float64) + 0.5) * 2.0**-32).log().neg()
    screened = weights - exponential.log()
    assert torch.equal(decide_among_few(weights, bits, screened), expected)


def test_plain_greedy_ties_and_bad_rows():
    logits = torch.tensor(
        [[0.0, 3.0, 3.0], [float("nan"), 1.0, 2.0], [float("-inf")] * 3, [1.0, float("inf"), 0.0]]
    )
    samples = on_tensors.sample(logits, rows_batch(3, [SamplingParams(temperature=0)] * 4))
    assert samples.token_ids.tolist() == [1, -1, -1, -1]
    assert samples.status.tolist() == [0, 1, 3, 2]


def test_greedy_tie_is_the_first_also_in_long_rows():
    for size in (1000, 4096, 129280):
        logits = torch.zeros(3, size)
        logits[:, [size - 1, size // 2, size // 3]] = 5.0
        samples = on_tensors.sample(logits, rows_batch(size, [SamplingParams(temperature=0)] * 3))
        assert samples.token_ids.tolist() == [size // 3] * 3


def test_masked_row_that_allows_nothing():
    logits = torch.zeros(2, 40)
    batch = rows_batch(40, [SamplingParams(seed=0), SamplingParams(temperature=0)])
    samples = on_tensors.sample(logits, batch, torch.from_numpy(grammar_mask(40, [[], [7]])))
    assert samples.token_ids.tolist() == [-1, 7]
    assert samples.status.tolist() == [3, 0]


def test_double_logits(rng):
    logits = rng.normal(size=(3, 50))
    batch = rows_batch(50, [SamplingParams(seed=i) for i in range(3)])
    want = reference.sample(logits, batch).token_ids.tolist()
    assert on_tensors.sample(torch.from_numpy(logits), batch).token_ids.tolist() == want


def test_prompt_logprobs_match_the_reference(rng):
    logits = rng.normal(size=(4, 300)).astype(np.float32)
    ids = np.array([0, 299, 3, 3])
    np.testing.assert_allclose(
        on_tensors.token_logprobs(torch.from_numpy(logits), torch.from_numpy(ids)),
        reference.token_logprobs(logits, ids),
        rtol=1e-6,
    )
    want_ids, want = reference.top_logprobs(logits, 5)
    got_ids, got = on_tensors.top_logprobs(torch.from_numpy(logits), 5)
    np.testing.assert_array_equal(got_ids, want_ids)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_no_rows():
    samples = on_tensors.sample(torch.zeros(0, 4), rows_batch(4, []), logprobs="raw")
    assert samples.token_ids.shape == (0,)
