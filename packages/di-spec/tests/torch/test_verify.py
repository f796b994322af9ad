import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import di_spec.torch as on_tensors  # noqa: E402
from di_spec import verify as reference_verify  # noqa: E402
from di_spec.drafting import NO_DRAFT, OUTSIDE_TARGET, Proposal, QKind  # noqa: E402
from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, TokenHistory  # noqa: E402


@given(
    st.integers(0, 2**32),
    st.sampled_from(["coupled", "greedy", "ratio", "block"]),
    st.sampled_from(list(QKind)),
    st.integers(1, 5),
    st.integers(2, 9),
)
def test_outcome_is_that_of_the_reference(seed, mode, kind, num_requests, vocab_size):
    rng = np.random.default_rng(seed)
    width = int(rng.integers(0, 5))
    lengths = rng.integers(0, width + 1, num_requests)
    token_ids = rng.integers(0, vocab_size, (num_requests, width))
    token_ids[rng.random(token_ids.shape) < 0.05] = OUTSIDE_TARGET
    token_ids = np.where(np.arange(width) < lengths[:, None], token_ids, NO_DRAFT)
    q = np.log(rng.dirichlet(np.ones(vocab_size), (num_requests, width)))
    columns = np.argsort(rng.random((num_requests, width, vocab_size)), axis=2)
    proposal = Proposal(
        token_ids,
        lengths,
        kind,
        None if kind is QKind.ONE_HOT else q,
        columns if kind is QKind.TOP_K else None,
    )
    requests = [
        SampleRequest(
            SamplingParams(
                seed=int(rng.integers(2**62)),
                temperature=float(rng.choice([0, 1.0, 0.5])),
                top_k=int(rng.choice([-1, 2])),
                frequency_penalty=0.3,
            ),
            TokenHistory([0]),
            proposal.drafts_of(i),
        )
        for i in range(num_requests)
    ]
    batch = SamplerBatch.build(requests, vocab_size)
    logits = rng.normal(size=(batch.num_rows, vocab_size)).astype(np.float32) * 2
    if rng.random() < 0.3:
        logits[rng.integers(len(logits))] = np.nan
    want = reference_verify(logits, proposal, batch, mode=mode)
    got = on_tensors.verify(torch.from_numpy(logits), proposal, batch, mode=mode)
    assert got.num_accepted.tolist() == want.num_accepted.tolist()
    assert got.num_emitted.tolist() == want.num_emitted.tolist()
    assert got.status.tolist() == want.status.tolist()
    assert got.token_ids.tolist() == want.token_ids.tolist()


def test_distributions_may_live_on_the_device():
    q = torch.log(torch.tensor([[[0.5, 0.5]]], dtype=torch.float64))
    proposal = Proposal(np.array([[1]]), np.array([1]), QKind.DENSE, q.numpy())
    batch = SamplerBatch.build([SampleRequest(SamplingParams(seed=0), TokenHistory([0]), [1])], 2)
    logits = torch.zeros(2, 2)
    a = on_tensors.verify(logits, proposal, batch, mode="ratio", q_logprobs=q)
    b = on_tensors.verify(logits, proposal, batch, mode="ratio")
    assert torch.equal(a.token_ids, b.token_ids)
    assert a.num_accepted.tolist() == [1]


def test_unknown_mode_is_refused():
    batch = SamplerBatch.build([SampleRequest(SamplingParams(seed=0), TokenHistory([0]))], 2)
    none = Proposal(np.empty((1, 0), np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="`mode` must be"):
        on_tensors.verify(torch.zeros(1, 2), none, batch, mode="quick")
