"""Truncated prefill of the small model: which rows and caches stay exact, bit for bit."""

import numpy as np
import torch

from di_engine.model import StepBatch
from di_engine.model.truncation import Truncation

LENGTH = 60
WINDOW = 8
LATE_LAYERS = 3
EXACT = LATE_LAYERS * (WINDOW - 1) + 1
"""Kept tokens from which on the last row of the small model is exact."""


def run(kit, backbone, chunks, *, keep=0, drops_rows=False, runner=None, prompts=None):
    """Prefills request 0 in chunks; returns the last row's logits and the runner."""
    prompts = prompts or {0: kit.tokens(1, LENGTH)}
    runner = runner or kit.runner(backbone, num_requests=len(prompts), lookahead=3)
    for chunk in chunks:
        logits = truncated_step(runner, prompts, {0: chunk}, keep, drops_rows)[0]
    return logits, runner


def truncated_step(runner, prompts, lengths, keep, drops_rows):
    """One step with `lengths[i]` rows of request `i`; logits of each one's last row."""
    rows = [runner.rows(i, prompts[i], length) for i, length in lengths.items()]
    backbone = runner.backbone
    batch = StepBatch.build(rows, ngram_size=backbone.config.engram_max_ngram_size)
    is_decode = np.array([r.num_computed >= LENGTH for r in rows])
    starts = np.array([len(prompts[i]) - keep if keep else 0 for i in lengths])
    truncation = Truncation.build(
        np.where(is_decode, 0, np.maximum(starts, 0)),
        np.array([r.num_computed for r in rows]),
        np.array(list(lengths.values())),
        drops_rows=drops_rows,
        upload=torch.from_numpy,
    )
    batch = StepBatch(
        **{name: getattr(batch, name) for name in batch.__slots__} | {"truncation": truncation}
    )
    hidden = backbone.forward(batch, runner.cache)
    for i, length in lengths.items():
        runner.num_computed[i] = runner.num_computed.get(i, 0) + length
    ends = np.cumsum(list(lengths.values())) - 1
    return dict(zip(lengths, backbone.logits(hidden[torch.from_numpy(ends)]), strict=True))


def decode(runner, prompt, token_ids):
    """Logits behind a few more tokens, untruncated."""
    return torch.cat(
        [runner.step((0, prompt + token_ids[: i + 1], 1))[0] for i in range(len(token_ids))]
    )


def test_masked_and_dropped_rows_give_the_same_bits(kit, backbone):
    keep = WINDOW + 4
    prompt, more = kit.tokens(1, LENGTH), kit.tokens(2, 4)
    _, untruncated = run(kit, backbone, [LENGTH])
    masked, masking = run(kit, backbone, [LENGTH], keep=keep)
    for cache in ("blocks", "states"):
        assert torch.equal(getattr(masking.cache, cache), getattr(untruncated.cache, cache))
    behind = decode(masking, prompt, more)
    for chunks in ([LENGTH], [20, 30, 10]):
        compact, dropping = run(kit, backbone, chunks, keep=keep, drops_rows=True)
        assert torch.equal(masked, compact)
        assert torch.equal(decode(dropping, prompt, more), behind)
        assert torch.equal(masking.cache.blocks, dropping.cache.blocks)


def test_logits_are_exact_from_one_window_per_decoder_layer_on(kit, backbone):
    whole, _ = run(kit, backbone, [LENGTH])
    kept, _ = run(kit, backbone, [LENGTH], keep=EXACT, drops_rows=True)
    fewer, _ = run(kit, backbone, [LENGTH], keep=EXACT - 1, drops_rows=True)
    everything, _ = run(kit, backbone, [LENGTH], keep=LENGTH, drops_rows=True)
    assert torch.equal(everything, whole)
    assert torch.equal(kept, whole)
    assert backbone.numerics.is_native or not torch.equal(fewer, whole)


def test_a_chunk_of_dropped_rows_runs_no_decoder_layer(kit, backbone):
    prompts = {0: kit.tokens(1, LENGTH)}
    runner = kit.runner(backbone)
    logits = truncated_step(runner, prompts, {0: 20}, WINDOW + 1, True)[0]
    assert (logits == backbone.logits(torch.zeros_like(backbone.embedding[:1]))).all()
    assert not runner.cache.rings[backbone.config.decoder_start :].any()


def test_neighbours_keep_their_rows(kit, backbone):
    """A chunk of dropped rows, one partly kept, one kept whole and a decode row side by side."""
    keep = WINDOW + 2
    prompts = {i: kit.tokens(10 + i, LENGTH + 5) for i in range(3)}
    prompts[3] = kit.tokens(13, keep - 1)
    before, lengths = {0: LENGTH + 5 - keep, 1: 20, 2: LENGTH}, {0: keep, 1: 20, 2: 1, 3: keep - 1}
    together = kit.runner(backbone, num_requests=4)
    for i, length in before.items():
        truncated_step(together, prompts, {i: length}, keep, True)
    got = truncated_step(together, prompts, lengths, keep, True)
    for i in (0, 2, 3):
        alone = kit.runner(backbone, num_requests=4)
        if i in before:
            truncated_step(alone, prompts, {i: before[i]}, keep, True)
        (expected,) = truncated_step(alone, prompts, {i: lengths[i]}, keep, True).values()
        assert torch.equal(got[i], expected)
