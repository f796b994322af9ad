"""The sampling ops of `di_kernels` give what `di_spec` gives: edits, filters, draws, log-probs."""

import numpy as np
import pytest
import torch

from di_kernels import ops
from di_kernels.masses import pack_bits, unpack_bits
from di_spec.drafting import Proposal, QKind
from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, TokenHistory
from di_spec.torch import sample, verify
from di_spec.torch.filters import apply_edits
from di_spec.torch.sample import process, token_logprobs, top_logprobs

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ],
    ),
]
VOCAB_SIZE = 1000
FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"top_k": 100, "top_p": 0.5, "min_p": 0.01},
    {"top_k": 5000, "top_p": 0.9999},
]
EDITS = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": -0.4},
    {"logit_bias": {3: 2.5, 7: -1e9, 9: 0.125}},
    {"banned_token_ids": [1, 2, 3], "bad_words": [[5], [6, 7]]},
    {"allowed_token_ids": [*range(0, VOCAB_SIZE, 3)], "logit_bias": {3: 1.0}},
    {"presence_penalty": 1.5, "logit_bias": {4: 0.5, 11: 0.75}},
]


def batch_of(edits, num_rows=48, num_drafts=0):
    rng = np.random.default_rng(7)
    requests = []
    for number in range(num_rows):
        params = SamplingParams(
            temperature=(0.7, 1.0, 0.0, 1e-6, 1e-320, 50.0, 1.3)[number % 7],
            seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
            **FILTERS[number % len(FILTERS)],
            **edits[number % len(edits)],
        )
        history = TokenHistory(rng.integers(0, VOCAB_SIZE, 30))
        history.extend(rng.integers(0, 20, 40).tolist())
        drafts = rng.integers(0, 4, number % (num_drafts + 1)).tolist()
        requests.append(SampleRequest(params, history, drafts))
    return SamplerBatch.build(requests, VOCAB_SIZE)


def logits_of(batch, device, has_bad_rows=True):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(batch.num_rows, VOCAB_SIZE, generator=generator) * 3
    logits[::3] = logits[::3].round()
    logits[4] = 1.0
    if has_bad_rows:
        logits[5, 2], logits[6, 1], logits[7] = torch.nan, torch.inf, -torch.inf
    return logits.to(device)


def on(device, array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def laws_of(batch, device):
    return {
        "top_k": on(device, batch.top_k),
        "top_p": on(device, batch.top_p),
        "min_p": on(device, batch.min_p),
    }


def keys_of(batch, device):
    return on(device, batch.seed.view(np.int64)), on(device, batch.position.view(np.int64))


def values_of(entries, num_rows, device):
    offsets = np.searchsorted(entries.row, np.arange(num_rows + 1))
    parts = (offsets.astype(np.int64), entries.token_id, entries.value)
    return ops.TokenValues(*(on(device, part) for part in parts))


def mask_of(batch, device):
    """Everything that forbids a token, as one mask."""
    flags = np.ones((batch.num_rows, batch.vocab_size), np.bool_)
    flags[batch.is_restricted] = False
    flags[batch.allowed.row, batch.allowed.token_id] = True
    flags[batch.banned.row, batch.banned.token_id] = False
    flags[batch.bad.row, batch.bad.token_id] = False
    return pack_bits(on(device, flags))


def edited_by_ops(logits, batch):
    rows, device = batch.num_rows, logits.device
    penalties = ops.Penalties(
        values_of(batch.counts, rows, device),
        on(device, batch.repetition_penalty),
        on(device, batch.frequency_penalty),
        on(device, batch.presence_penalty),
    )
    bias = values_of(batch.bias, rows, device)
    return ops.edit_logits(logits, bias=bias, penalties=penalties, mask_bits=mask_of(batch, device))


@pytest.mark.parametrize("device", DEVICES)
def test_edited_logits_are_the_same(device):
    batch = batch_of(EDITS)
    logits = logits_of(batch, device, has_bad_rows=False)
    assert torch.equal(edited_by_ops(logits, batch), apply_edits(logits, batch, None))


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_tokens_survive_the_filters(device):
    batch = batch_of([{}])
    logits = logits_of(batch, device)
    want = process(logits, batch)
    temperature = on(device, batch.temperature)
    bits = ops.filter_tokens(logits, temperature, **laws_of(batch, device))
    is_drawn = (want.status == 0) & (temperature > 0)
    has_filter = on(device, (batch.top_k < VOCAB_SIZE) | (batch.top_p < 1) | (batch.min_p > 0))
    rows = is_drawn & has_filter
    assert rows.sum() > 20
    assert torch.equal(unpack_bits(bits, VOCAB_SIZE)[rows], (want.log_probs > -torch.inf)[rows])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("edits", [[{}], EDITS], ids=["plain", "edited"])
def test_the_same_tokens_are_drawn_with_the_same_log_probs(device, edits):
    batch = batch_of(edits)
    logits = logits_of(batch, device)
    want = sample(logits, batch, num_top_logprobs=5, logprobs="processed")
    temperature = on(device, batch.temperature)
    edited = logits if len(edits) == 1 else edited_by_ops(logits, batch)
    bits = ops.filter_tokens(edited, temperature, **laws_of(batch, device))
    drawn = ops.draw_tokens(edited, temperature, *keys_of(batch, device), mask_bits=bits)
    assert torch.equal(drawn.status, want.status)
    assert torch.equal(drawn.token_ids, want.token_ids)
    got = ops.log_probs(edited, drawn.token_ids, num_top=5, temperature=temperature, mask_bits=bits)
    # exp and log are one device's: the bits are equal there, and not promised between devices.
    assert torch.equal(got.chosen.nan_to_num(7), want.logprobs.nan_to_num(7))
    assert torch.equal(got.top_token_ids, want.top_token_ids)
    assert torch.equal(got.top, want.top_logprobs)


@pytest.mark.parametrize("device", DEVICES)
def test_raw_log_probs_are_the_same(device):
    batch = batch_of([{}])
    logits = logits_of(batch, device)
    tokens = torch.randint(VOCAB_SIZE, (batch.num_rows,)).to(device)
    got = ops.log_probs(logits, tokens, num_top=20)
    ids, values = top_logprobs(logits, 20)
    assert torch.equal(got.chosen.nan_to_num(7), token_logprobs(logits, tokens).nan_to_num(7))
    assert torch.equal(got.top_token_ids, ids)
    assert torch.equal(got.top, values)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["coupled", "greedy"])
def test_the_same_drafts_are_accepted(device, mode):
    batch = batch_of([{}], num_drafts=5)
    logits = logits_of(batch, device)
    logits[:, :4] += 12  # drafts are of the first four tokens
    lengths = np.diff(batch.row_offsets) - 1
    drafts = np.full((len(lengths), 5), -1, np.int64)
    for request, length in enumerate(lengths):
        first = batch.row_offsets[request]
        drafts[request, :length] = batch.draft_token_ids[first : first + length]
    want = verify(logits, Proposal(drafts, lengths), batch, mode=mode)
    temperature = on(device, batch.temperature) * (mode == "coupled")
    bits = ops.filter_tokens(logits, temperature, **laws_of(batch, device))
    drawn = ops.draw_tokens(logits, temperature, *keys_of(batch, device), mask_bits=bits)
    got = ops.verify_drafts(
        *drawn, on(device, batch.draft_token_ids), on(device, batch.row_offsets), width=6
    )
    assert got.num_accepted.max() > 1
    for mine, theirs in zip(
        got, (want.token_ids, want.num_accepted, want.num_emitted, want.status), strict=True
    ):
        assert torch.equal(mine, theirs)


def proposal_of(batch, kind):
    """The drafts of `batch` with a law of their own: certain, over all tokens, or over thirty."""
    rng = np.random.default_rng(11)
    lengths = np.diff(batch.row_offsets) - 1
    drafts = np.full((len(lengths), 5), -1, np.int64)
    for request, length in enumerate(lengths):
        first = batch.row_offsets[request]
        drafts[request, :length] = batch.draft_token_ids[first : first + length]
    if kind is QKind.ONE_HOT:
        return Proposal(drafts, lengths)
    width = batch.vocab_size if kind is QKind.DENSE else 30
    weights = rng.normal(size=(*drafts.shape, width)) * 2
    weights[..., :4] += 4
    log_probs = (weights - np.log(np.exp(weights).sum(-1, keepdims=True))).astype(np.float32)
    token_ids = None
    if kind is QKind.TOP_K:
        rest = rng.permuted(np.tile(np.arange(4, batch.vocab_size), (drafts.size, 1)), axis=1)
        listed = np.concatenate([np.tile(np.arange(4), (drafts.size, 1)), rest[:, :26]], 1)
        token_ids = listed.reshape(*drafts.shape, width)
    return Proposal(drafts, lengths, kind, log_probs, token_ids)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", list(QKind))
def test_the_ratio_test_gives_the_same_tokens(device, kind):
    """Requests without filters too: there a residual has a thousand tokens."""
    batch = batch_of([{}], num_rows=96, num_drafts=5)
    logits = logits_of(batch, device)
    logits[:, :4] = logits[:, :4] * 0.3 + 13
    proposal = proposal_of(batch, kind)
    want = verify(logits, proposal, batch, mode="ratio")
    temperature = on(device, batch.temperature)
    bits = ops.filter_tokens(logits, temperature, **laws_of(batch, device))
    keys = keys_of(batch, device)
    drawn = ops.draw_tokens(logits, temperature, *keys, mask_bits=bits)
    laws = {
        "q_log_probs": None if kind is QKind.ONE_HOT else on(device, proposal.q_logprobs),
        "q_token_ids": on(device, proposal.q_token_ids) if kind is QKind.TOP_K else None,
    }
    got = ops.verify_drafts_by_ratio(
        *drawn, logits, temperature, *keys, on(device, batch.draft_token_ids),
        on(device, batch.row_offsets), width=6, mask_bits=bits, **laws,
    )  # fmt: skip
    refused = got.num_accepted < on(device, np.diff(batch.row_offsets) - 1)
    assert refused.sum() > 10
    assert got.num_accepted.max() > 1
    for mine, theirs in zip(
        got, (want.token_ids, want.num_accepted, want.num_emitted, want.status), strict=True
    ):
        assert torch.equal(mine, theirs)
