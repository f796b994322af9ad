"""One small scenario, step by step, written down by hand from the rules in the README.

Block size 4, 9 blocks, 8 tokens per step, one draft. Request `a` has 10 prompt tokens, `b` shares
the first 8 of them and arrives with the first step, `c` is aborted in its first chunk.
"""

import numpy as np

from di_scheduler import Request, Scheduler, SchedulerConfig, StepOutcome

A = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def describe(plan):
    return [
        (name, int(q), int(k), bool(prompt), table[table >= 0].tolist())
        for name, q, k, prompt, table in zip(
            plan.request_ids,
            plan.query_lens,
            plan.context_lens,
            plan.is_prompt,
            plan.block_tables(),
            strict=True,
        )
    ]


def test_scenario_plans_and_frees_exactly_this():
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=24,
            num_blocks=9,
            max_running=3,
            max_tokens_per_step=8,
            block_size=4,
            num_draft_tokens=1,
            eos_token_ids=(1,),
            prefix_cache=True,
            prefill_usage_limit=1.0,
        )
    )

    def commit(plan, tokens, drafts):
        counts = np.array([len(row) for row in tokens])
        ids = np.array([row + [0] * (2 - len(row)) for row in tokens])
        update = scheduler.commit(plan, StepOutcome(ids, counts, np.array(drafts)))
        return [(view.request_id, view.token_ids, view.finish_reason) for view in update]

    scheduler.add(Request("a", A, max_tokens=4))
    plan = scheduler.plan()
    assert describe(plan) == [("a", 8, 8, True, [1, 2, 3])]
    assert commit(plan, [[]], [0]) == []

    scheduler.add(Request("b", [*A[:8], 20], max_tokens=2))
    scheduler.add(Request("c", [30] * 6, max_tokens=2))
    plan = scheduler.plan()
    # `b` shares blocks 1 and 2, which are committed, and computes only its ninth token.
    assert describe(plan) == [
        ("a", 2, 10, True, [1, 2, 3]),
        ("b", 1, 9, True, [1, 2, 4]),
        ("c", 5, 5, True, [5, 6]),
    ]
    assert plan.write_floors.tolist() == [0, 8, 0]
    assert plan.needs_sample.tolist() == [True, True, False]
    scheduler.abort("c")
    assert commit(plan, [[40], [50], []], [1, 1, 0]) == [
        ("a", [40], None),
        ("b", [50], None),
        ("c", [], "abort"),
    ]
    assert scheduler.stats().blocks_used == 4

    plan = scheduler.plan()
    # `b` may emit one more token: its draft is not verified. `a` verifies one.
    assert describe(plan) == [("a", 2, 12, False, [1, 2, 3]), ("b", 1, 10, False, [1, 2, 4])]
    assert plan.token_ids.tolist() == [40, -1, 50]
    assert commit(plan, [[41, 42], [51]], [1, 0]) == [("a", [41, 42], None), ("b", [51], "length")]

    plan = scheduler.plan()
    # `a` needs a fourth block: block 4 was freed last, without a hash.
    assert describe(plan) == [("a", 1, 13, False, [1, 2, 3, 4])]
    assert commit(plan, [[1]], [0]) == [("a", [1], "stop")]
    stats = scheduler.stats()
    # Blocks 1, 2 and 3 are full and committed: they stay findable.
    assert (stats.blocks_used, stats.blocks_cached, stats.blocks_free) == (0, 3, 5)
    assert not scheduler.has_unfinished
