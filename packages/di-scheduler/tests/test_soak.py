"""A long random trace: small pool, shared prefixes, aborts, preemptions, an overlapped loop."""

from collections import deque

import numpy as np
import pytest

from di_scheduler import CapacityError, Request, Scheduler, SchedulerConfig, StepOutcome

STEPS = 100_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [20])
def test_hundred_thousand_steps_lose_nothing(seed):  # vllm-project/vllm#54914, sglang#32356
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=120,
            num_blocks=34,
            max_running=8,
            max_tokens_per_step=64,
            block_size=8,
            num_draft_tokens=3,
            eos_token_ids=(1,),
            prefix_cache=True,
            prefill_usage_limit=1.0,
            num_window_layers=2,
            window_size=5,
            num_snapshot_slots=6,
            ring_slack=8,
            snapshot_min_gain=4,
        )
    )
    prefixes = [rng.integers(2, 99, 80).tolist() for _ in range(6)]
    pool = scheduler._core.pool
    accepted = ended = 0
    open_ids = set()
    plans = deque()
    for step in range(STEPS):
        if rng.random() < 0.3 and scheduler.num_waiting < 6:
            prompt = prefixes[rng.integers(6)][: rng.integers(0, 80)]
            prompt = prompt + rng.integers(2, 99, rng.integers(1, 20)).tolist()
            name = f"{seed}:{step}"
            try:
                scheduler.add(Request(name, prompt, max_tokens=int(rng.integers(1, 40))))
            except CapacityError:
                continue
            accepted += 1
            open_ids.add(name)
        if open_ids and rng.random() < 0.01:
            scheduler.abort(sorted(open_ids)[rng.integers(len(open_ids))])
        plan = scheduler.plan()
        if plan is not None:
            plans.append(plan)
        if len(plans) > (plan is not None):
            oldest = plans.popleft()
            most = np.where(oldest.is_prompt, 1, oldest.max_query_lens)
            counts = rng.integers(1, most + 1)
            update = scheduler.commit(
                oldest, StepOutcome(rng.integers(1, 99, (oldest.num_rows, 4)), counts)
            )
        else:
            update = scheduler.flush()
        for view in update:
            if view.finished:
                open_ids.remove(view.request_id)  # raises if it ended twice
                ended += 1
        used = int((pool._refs[1:] > 0).sum())
        assert pool.num_free + pool.num_cached + used == pool.total, f"step {step}"
        if step % 100 == 0:
            scheduler.check_integrity()
    assert accepted - ended == len(open_ids) < 20
    counters = scheduler.counters
    assert min(counters.preempted, counters.aborted, counters.snapshot_restores) > 100
    assert pool.num_evictions > 1000
