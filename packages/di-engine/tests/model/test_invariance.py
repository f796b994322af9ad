"""A request's bits depend on its own tokens, not on how a step is cut or who is beside it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from di_engine.model import StepBatch

LENGTH = 41
FEW = settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cuts(draw_lengths, total):
    """Chunk lengths that add up to `total`."""
    lengths = []
    for length in draw_lengths:
        if sum(lengths) + length >= total:
            break
        lengths.append(length)
    return [*lengths, total - sum(lengths)]


def same_caches(one, other):
    return all(
        torch.equal(getattr(one.cache, name), getattr(other.cache, name))
        for name in ("blocks", "rings", "states")
    )


@pytest.fixture(scope="module")
def whole(kit, backbone):
    prompt = kit.tokens(1, LENGTH)
    runner = kit.runner(backbone)
    return prompt, runner, runner.feed(prompt, [LENGTH])


@FEW
@given(lengths=st.lists(st.integers(1, 20), max_size=10))
def test_chunked_prefill_equals_whole_prefill(kit, backbone, whole, lengths):
    prompt, whole_runner, logits = whole
    runner = kit.runner(backbone)
    got = runner.feed(prompt, cuts(lengths, LENGTH))
    assert torch.equal(got, logits)
    assert same_caches(runner, whole_runner)


def test_decode_equals_prefill(kit, backbone, whole):
    prompt, whole_runner, logits = whole
    runner = kit.runner(backbone)
    assert torch.equal(runner.feed(prompt, [1] * LENGTH), logits)
    assert same_caches(runner, whole_runner)


def test_positions_that_only_the_device_knows_change_nothing(kit, backbone, whole):
    """Groups that a step completes are then counted on the device."""
    prompt, _, logits = whole
    others = [kit.tokens(2, LENGTH), kit.tokens(3, LENGTH)]
    runner = kit.runner(backbone, num_requests=3)
    got = []
    for lengths in ([20, 1, 7], [1, 0, 8], [2, 1, 0], [18, 3, 2]):
        chunks = [(i, [prompt, *others][i], n) for i, n in enumerate(lengths) if n]
        rows = [runner.rows(*chunk) for chunk in chunks]
        batch = StepBatch.build(rows, ngram_size=backbone.config.engram_max_ngram_size)
        hidden = backbone.forward(replace(batch, host_positions=None), runner.cache)
        for i, _, n in chunks:
            runner.num_computed[i] = runner.num_computed.get(i, 0) + n
        got.append(backbone.logits(hidden[: lengths[0]]))
    assert torch.equal(torch.cat(got), logits)
    alone = kit.runner(backbone, num_requests=3)
    for i, other in enumerate(others, 1):
        alone.step((i, other, runner.num_computed[i]))
    alone.step((0, prompt, LENGTH))
    assert torch.equal(runner.cache.blocks, alone.cache.blocks)


def test_a_longer_ring_changes_nothing(kit, backbone, whole):
    prompt, _, logits = whole
    runner = kit.runner(backbone, lookahead=LENGTH)
    assert torch.equal(runner.feed(prompt, [LENGTH]), logits)


@FEW
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    pasts=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_a_request_in_a_mixed_batch_equals_itself_alone(kit, backbone, lengths, pasts, order):
    prompts = [kit.tokens(i, pasts[i] + length) for i, length in enumerate(lengths)]
    alone = []
    for prompt, length in zip(prompts, lengths, strict=True):
        runner = kit.runner(backbone)
        if len(prompt) > length:
            runner.feed(prompt, [len(prompt) - length])
        alone.append(runner.feed(prompt, [length]))

    runner = kit.runner(backbone, num_requests=len(prompts))
    for i, prompt in enumerate(prompts):
        if pasts[i]:
            runner.step((i, prompt, pasts[i]))
    members = list(range(len(prompts)))
    order.shuffle(members)
    together = runner.step(*[(i, prompts[i], lengths[i]) for i in members])
    for i, logits in zip(members, together, strict=True):
        assert torch.equal(logits, alone[i]), f"request {i} of {members}"


def test_reused_memory_needs_no_clearing(kit, backbone, whole):
    prompt, _, logits = whole
    runner = kit.runner(backbone)
    for name in ("blocks", "rings", "states"):
        memory = getattr(runner.cache, name)
        # All ones are NaN in every record format, and in every compute dtype.
        memory.view(torch.uint8).fill_(0xFF)
    assert torch.equal(runner.feed(prompt, [12, 1, LENGTH - 13]), logits)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 17])
def test_every_length_is_a_prompt(kit, backbone, whole, length):
    prompt, _, logits = whole
    got = kit.runner(backbone).feed(prompt, [length])
    assert torch.equal(got, logits[:length])


def test_a_block_edge_is_crossed(kit, backbone):
    length = 150
    prompt = kit.tokens(3, length)
    one = kit.runner(backbone)
    other = kit.runner(backbone)
    want = one.feed(prompt, [length])
    assert torch.equal(other.feed(prompt, [100, 27, 1, 1, 1, 20]), want)
    assert same_caches(one, other)
