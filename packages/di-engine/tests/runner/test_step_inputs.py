"""Batch tensors of a plan."""

import torch

from di_engine.runner.step_inputs import make_step_batch
from di_scheduler import Request, Scheduler, SchedulerConfig, StepOutcome


def test_rows_positions_and_history_of_a_mixed_step() -> None:
    scheduler = Scheduler(
        SchedulerConfig(max_model_len=400, num_blocks=16, max_running=4, max_tokens_per_step=140)
    )
    scheduler.add(Request("old", [7, 8, 9], max_tokens=9))
    plan = scheduler.plan()
    assert plan is not None
    batch = make_step_batch(plan, history_len=2, device=torch.device("cpu"))
    assert batch.token_ids.tolist() == [7, 8, 9]
    assert batch.positions.tolist() == [0, 1, 2]
    assert batch.ngram_history.tolist() == [[-1, -1]]
    assert batch.logits_rows.tolist() == [2]
    scheduler.commit(plan, StepOutcome(token_ids=[[50]], num_tokens=[1]))

    scheduler.add(Request("long", list(range(300)), max_tokens=9))
    plan = scheduler.plan()
    assert plan is not None
    batch = make_step_batch(plan, history_len=2, device=torch.device("cpu"))
    # One decode row, then the first chunk of the long prompt; only the decode row is sampled.
    assert batch.query_lens.tolist() == [1, 139]
    assert batch.context_lens.tolist() == [4, 139]
    assert batch.token_ids.tolist() == [50, *range(139)]
    assert batch.positions.tolist() == [3, *range(139)]
    assert batch.ngram_history.tolist() == [[8, 9], [-1, -1]]
    assert batch.logits_rows.tolist() == [0]
    assert (batch.max_query_len, batch.max_context_len) == (139, 139)
    assert batch.block_tables.dtype == torch.int32
    scheduler.commit(plan, StepOutcome(token_ids=[[51], [0]], num_tokens=[1, 0]))

    plan = scheduler.plan()
    assert plan is not None
    batch = make_step_batch(plan, history_len=3, device=torch.device("cpu"))
    assert batch.positions.tolist() == [4, *range(139, 278)]
    assert batch.ngram_history.tolist() == [[8, 9, 50], [136, 137, 138]]
    assert len(set(batch.state_slots.tolist())) == 2
    used = batch.block_tables[batch.block_tables >= 0].tolist()
    assert len(used) == len(set(used))
    assert (batch.block_tables[1] >= 0).sum() >= 3
