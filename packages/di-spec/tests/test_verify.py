import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec import InvalidProposalError
from di_spec.drafting import OUTSIDE_TARGET, Proposal, QKind
from di_spec.sampling import (
    RowStatus,
    SamplerBatch,
    SampleRequest,
    SamplingParams,
    Stream,
    TokenHistory,
    draw,
)
from di_spec.testing import grammar_mask
from di_spec.testing.toy import ToyModel, generate, plain
from di_spec.verify import coupled_agreement, verify

DRAFTERS = ["same", "uniform", "contrary", "certain", "disjoint", "half"]


class Script:
    """Noise with given uniforms that records what was to be drawn instead of drawing it."""

    def __init__(self, uniforms):
        self.uniforms = uniforms
        self.law = None

    def uniform(self, seed, position, offset):
        return self.uniforms[offset]

    def draw(self, log_weights, seed, position, offset, stream):
        weights = np.exp(log_weights - log_weights.max())
        self.law = weights / weights.sum()
        return 0


def one_request(p, q, drafts, noise, mode="ratio", **kwargs):
    """Verifies drafts with explicit target rows `p` and draft rows `q`."""
    with np.errstate(divide="ignore"):
        logits, log_q = np.log(np.asarray(p, float)), np.log(np.asarray(q, float))
    params = SamplingParams(seed=1)
    batch = SamplerBatch.build([SampleRequest(params, TokenHistory([0]), drafts)], logits.shape[1])
    proposal = Proposal(
        np.array([drafts]), np.array([len(drafts)]), QKind.DENSE, log_q[None, : len(drafts)]
    )
    return verify(logits, proposal, batch, noise, mode=mode, **kwargs)


GRID = 10


def test_ratio_law_is_the_target_law_exactly(rng):
    """Enumerates drafts and accept tests of two drafts over three tokens."""

    def random_row():
        cuts = np.sort(rng.choice(np.arange(GRID + 1), 2))
        return np.diff([0, *cuts, GRID]) / GRID

    p1, q1 = random_row(), np.array([0.5, 0.5, 0.0])
    p2 = {a: random_row() for a in range(3)}
    q2 = {a: np.array([0.2, 0.4, 0.4]) for a in range(3)}
    p3 = np.array([0.3, 0.3, 0.4])
    law = np.zeros((3, 3))
    # A ratio p / q of tenths with q in {.2, .4, .5} is a multiple of 1 / 20: the grid is exact.
    uniforms = (np.arange(20) + 0.5) / 20
    for x1, x2 in itertools.product(range(3), range(3)):
        weight = q1[x1] * q2[x1][x2] / 400
        if weight == 0:
            continue
        for u1, u2 in itertools.product(uniforms, uniforms):
            noise = Script([u1, u2])
            verified = one_request([p1, p2[x1], p3], [q1, q2[x1]], [x1, x2], noise)
            accepted = int(verified.num_accepted[0])
            if accepted == 0:
                for first in range(3):
                    law[first] += weight * noise.law[first] * p2[first]
            elif accepted == 1:
                law[x1] += weight * noise.law
            else:
                law[x1, x2] += weight
    expected = np.array([p1[a] * p2[a] for a in range(3)])
    np.testing.assert_allclose(law, expected, atol=1e-12)


def test_rejected_illegal_draft_is_not_an_absent_draft():
    """A draft that the grammar forbids was still drawn: dropping it would give (.7, .3, 0)."""
    p, q = [0.5, 0.5, 0.0], [0.4, 0.0, 0.6]
    noise = Script([0.999])
    one_request([p, p], [q], [2], noise)
    residual = noise.law
    law = q[2] * residual + np.array([q[0], 0, 0])  # token 0 is accepted always: p > q
    np.testing.assert_allclose(law, p, atol=1e-12)


def test_token_drawn_outside_the_target_is_rejected():
    noise = Script([0.0])
    verified = one_request([[0.5, 0.5], [0.5, 0.5]], [[0.3, 0.3]], [OUTSIDE_TARGET], noise)
    assert verified.num_accepted.tolist() == [0]
    np.testing.assert_allclose(noise.law, [0.5, 0.5])


def test_equal_distributions_accept_everything():
    noise = Script([1 - 2**-53] * 2)
    p = [0.1, 0.2, 0.7]
    verified = one_request([p] * 3, [p] * 2, [0, 2], noise)
    assert verified.num_accepted.tolist() == [2]


def test_rounding_never_emits_a_forbidden_token():
    # q is p up to float32; the rejected draft is accepted after all, nothing else is drawn.
    p = np.array([0.3, 0.7, 0.0])
    q = p.astype(np.float32).astype(float) * (1 + 1e-8)
    verified = one_request([p, p], [q], [1], Script([1 - 2**-53]))
    assert verified.token_ids[0, 0] == 1
    assert verified.num_accepted.tolist() == [1]


def test_acceptance_stops_at_the_first_rejection():
    p, q = [0.5, 0.5], [0.5, 0.5]
    verified = one_request([p, [0.0, 1.0], p, p], [q] * 3, [0, 0, 0], Script([0.0, 0.5, 0.0]))
    assert verified.num_accepted.tolist() == [1]
    assert verified.num_emitted.tolist() == [2]
    assert verified.token_ids[0].tolist()[2:] == [-1, -1]


def even_tokens_after_odd(vocab_size):
    """A grammar that depends on the prefix."""

    def mask_of(prefix):
        allowed = range(0, vocab_size, 2) if prefix[-1] % 2 else None
        return grammar_mask(vocab_size, [allowed])[0]

    return mask_of


PARAMS = [
    {},
    {"temperature": 0},
    {"temperature": 1.7, "top_k": 4},
    {"top_p": 0.6, "min_p": 0.05},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.3},
    {"min_tokens": 9, "stop_token_ids": [0, 1], "bad_words": [[2, 3], [4]]},
]


@pytest.mark.parametrize("kwargs", PARAMS)
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("has_grammar", [False, True])
def test_coupled_output_is_the_plain_output(kwargs, kind, has_grammar):
    model = ToyModel(7, seed=11)
    mask_of = even_tokens_after_odd(7) if has_grammar else None
    params = SamplingParams(seed=99, **kwargs)
    expected = plain(model, [0, 1], params, 24, mask_of)
    for lengths in ([0], [1], [3], [5], [2, 0, 4, 1]):
        tokens = generate(
            model,
            model.drafter(kind),
            [0, 1],
            params,
            24,
            "coupled",
            lambda step, lengths=lengths: lengths[step % len(lengths)],
            mask_of,
        )
        assert tokens == expected


@pytest.mark.parametrize("mode", ["greedy", "ratio", "block"])
def test_greedy_output_is_the_plain_output_in_every_mode(mode):
    model = ToyModel(6, seed=3)
    params = SamplingParams(temperature=0, frequency_penalty=0.5)
    expected = plain(model, [0, 1], params, 30)
    for kind in DRAFTERS:
        tokens = generate(model, model.drafter(kind), [0, 1], params, 30, mode, lambda s: s % 4)
        assert tokens == expected


@given(st.integers(2, 6), st.integers(0, 2**32))
def test_agreement_formula(size, seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    p[rng.random(size) < 0.2] = 0
    p = p / p.sum() if p.sum() else np.eye(size)[0]
    direct = 0.0
    for i in range(size):
        if p[i] > 0 and q[i] > 0:
            direct += 1 / np.maximum(p / p[i], q / q[i]).sum()
    assert coupled_agreement(p, q) == pytest.approx(direct, abs=1e-12)
    tv = np.abs(p - q).sum() / 2
    assert coupled_agreement(p, q) >= (1 - tv) / (1 + tv) - 1e-12


def test_agreement_is_what_coupled_draws_do():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    assert coupled_agreement(p, q) == pytest.approx(0.631, abs=5e-4)
    n = 20_000
    seeds, position = np.arange(n, dtype=np.uint64), np.full(n, 4, np.uint64)
    same = draw(np.tile(np.log(p), (n, 1)), seeds, position) == draw(
        np.tile(np.log(q), (n, 1)), seeds, position
    )
    assert same.mean() == pytest.approx(coupled_agreement(p, q), abs=0.015)


@pytest.mark.parametrize("mode", ["coupled", "greedy", "ratio", "block"])
def test_bad_row_ends_its_request_after_the_tokens_before_it(mode):
    logits = np.zeros((5, 3), np.float32)
    logits[:, 1] = 80.0  # token 1 is certain
    logits[1, 0] = np.nan  # second row of the first request
    requests = [
        SampleRequest(SamplingParams(seed=0), TokenHistory([0]), [1, 1]),
        SampleRequest(SamplingParams(seed=0), TokenHistory([0]), [1]),
    ]
    batch = SamplerBatch.build(requests, 3)
    proposal = Proposal(np.array([[1, 1], [1, -1]]), np.array([2, 1]))
    verified = verify(logits, proposal, batch, mode=mode)
    assert verified.token_ids.tolist() == [[1, -1, -1], [1, 1, -1]]
    assert verified.num_emitted.tolist() == [1, 2]
    assert verified.num_accepted.tolist() == [1, 1]
    assert verified.status.tolist() == [RowStatus.NAN, RowStatus.OK]


def test_contradictions_are_refused():
    batch = SamplerBatch.build([SampleRequest(SamplingParams(seed=0), TokenHistory([0]), [1])], 3)
    logits = np.zeros((2, 3))
    with pytest.raises(InvalidProposalError, match="rows for"):
        verify(logits, Proposal(np.array([[1, 2]]), np.array([2])), batch)
    with pytest.raises(InvalidProposalError, match="other draft token ids"):
        verify(logits, Proposal(np.array([[2]]), np.array([1])), batch)
    with pytest.raises(ValueError, match="`mode` must be"):
        verify(logits, Proposal(np.array([[1]]), np.array([1])), batch, mode="fast")
    with pytest.raises(InvalidProposalError, match="needs `q_logprobs`"):
        verify(logits, Proposal(np.array([[1]]), np.array([1]), QKind.DENSE), batch)


def test_fresh_row_of_the_ratio_test_is_the_plain_draw(rng):
    logits = rng.normal(size=(1, 20))
    batch = SamplerBatch.build([SampleRequest(SamplingParams(seed=6), TokenHistory([0, 1]))], 20)
    none = Proposal(np.empty((1, 0), np.int64), np.zeros(1, np.int64))
    tokens = {
        m: verify(logits, none, batch, mode=m).token_ids[0, 0]
        for m in ("coupled", "ratio", "block")
    }
    assert len(set(tokens.values())) == 1
    assert Stream.TARGET == 0
