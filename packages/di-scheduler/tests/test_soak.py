"""A short soak; `python -m di_scheduler soak` runs the long one."""

import pytest

from di_scheduler import BlockPool, IntegrityError
from di_scheduler.bench.soak import run_soak


@pytest.mark.slow
def test_a_soak_loses_nothing_and_meets_everything():  # vllm-project/vllm#54914, sglang#32356
    result = run_soak(num_steps=12_000, seed=20)
    assert result.num_accepted - result.num_ended == result.num_open < 20
    assert min(result.num_preempted, result.num_aborted, result.num_restores) > 30
    assert result.num_evictions > 1000


def test_a_lost_block_is_noticed(monkeypatch):
    release, releases = BlockPool.release, []

    def leak(pool, block_ids):
        releases.append(len(block_ids))
        release(pool, block_ids[:-1] if len(releases) == 50 else block_ids)

    monkeypatch.setattr(BlockPool, "release", leak)
    with pytest.raises(IntegrityError, match="block"):
        run_soak(num_steps=2_000)
