"""Rows taken back leave no trace; replay reads a shared prefix and does not touch it."""

import pytest
import torch

LOOKAHEAD = 5


@pytest.mark.parametrize("start", [1, 8, 14, 31])
@pytest.mark.parametrize("rejected", [1, 2, LOOKAHEAD])
def test_rejected_rows_leave_no_trace(kit, backbone, start, rejected):
    prompt = kit.tokens(20, start + 12)
    want = kit.runner(backbone).feed(prompt, [start + 12])[start + 1 :]
    drafts = prompt[: start + 1] + kit.tokens(21, LOOKAHEAD)

    runner = kit.runner(backbone, lookahead=LOOKAHEAD)
    runner.feed(prompt, [start])
    runner.feed(drafts, [1 + rejected])
    runner.num_computed[0] = start + 1
    assert torch.equal(runner.feed(prompt, [1, 4, 6]), want)


def test_several_rows_of_a_request_equal_single_rows(kit, backbone):
    prompt = kit.tokens(22, 40)
    one = kit.runner(backbone, lookahead=LOOKAHEAD)
    other = kit.runner(backbone, lookahead=LOOKAHEAD)
    assert torch.equal(one.feed(prompt, [10] + [6] * 5), other.feed(prompt, [10] + [1] * 12 + [18]))


def test_replay_from_the_start_equals_recomputation(kit, backbone):
    prompt = kit.tokens(23, 50)
    runner = kit.runner(backbone)
    want = runner.feed(prompt, [50])
    before = runner.cache.blocks.clone()
    runner.num_computed[0] = 0
    (got,) = runner.step((0, prompt, 50), write_floor=40)
    assert torch.equal(got, want)
    assert torch.equal(runner.cache.blocks, before)


def test_replay_does_not_write_below_the_floor(kit, backbone):
    prompt = kit.tokens(24, 48)
    runner = kit.runner(backbone)
    runner.feed(prompt, [48])
    shared = runner.cache.blocks.clone()
    runner.cache.rings.view(torch.uint8).fill_(0xFF)
    runner.num_computed[0] = 24
    # The window keys before token 24 are lost: the replay must not read them.
    (got,) = runner.step((0, prompt, 24), window_start=24, write_floor=48)
    assert torch.isfinite(got).all()
    assert torch.equal(runner.cache.blocks, shared)


def test_window_start_hides_what_is_before_it(kit, backbone):
    prompt = kit.tokens(25, 40)
    results = []
    for filler in (0x00, 0x2A):
        runner = kit.runner(backbone)
        runner.feed(prompt, [20])
        runner.cache.rings.view(torch.uint8).fill_(filler)
        results.append(
            torch.cat(
                [
                    runner.step((0, prompt, 3), window_start=20)[0],
                    runner.step((0, prompt, 17), window_start=20)[0],
                ]
            )
        )
    assert torch.equal(results[0], results[1])
