"""A state machine over everything a caller may do, in any order, with an overlapped loop."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from di_scheduler import CapacityError, Request, Scheduler, SchedulerConfig, StepOutcome


class Lifecycle(RuleBasedStateMachine):
    """Adds, plans, commits, aborts, cancels; nothing may leak and every request ends once."""

    @initialize(
        num_blocks=st.sampled_from([6, 10, 40]),
        drafts=st.integers(0, 3),
        prefix_cache=st.booleans(),
        policy=st.sampled_from(["mixed", "prefill_first", "decode_first"]),
        preemption=st.sampled_from(["recompute", "abort"]),
    )
    def start(self, num_blocks, drafts, prefix_cache, policy, preemption):
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=48,
                num_blocks=num_blocks,
                max_running=3,
                max_tokens_per_step=16,
                block_size=4,
                num_draft_tokens=drafts,
                eos_token_ids=(1,),
                policy=policy,
                prefix_cache=prefix_cache,
                preemption=preemption,
                num_window_layers=1,
                window_size=3,
                num_snapshot_slots=2 if prefix_cache else 0,
                ring_slack=8,
                snapshot_min_gain=2,
            )
        )
        self.plans, self.accepted, self.ended = [], set(), {}
        self.number = 0

    def take(self, update):
        for view in update:
            assert view.request_id in self.accepted
            assert view.request_id not in self.ended, "news after the end"
            if view.finished:
                assert view.finish_reason
                self.ended[view.request_id] = view.finish_reason

    @rule(
        length=st.integers(1, 30),
        flavour=st.integers(2, 3),
        max_tokens=st.integers(1, 15),
        priority=st.integers(0, 2),
    )
    def add(self, length, flavour, max_tokens, priority):
        self.number += 1
        request = Request(
            str(self.number), [flavour] * length, max_tokens=max_tokens, priority=priority
        )
        try:
            self.scheduler.add(request)
        except CapacityError:
            return
        self.accepted.add(request.request_id)

    @precondition(lambda self: len(self.plans) < 2)
    @rule()
    def plan(self):
        plan = self.scheduler.plan()
        if plan is not None:
            assert plan.query_lens.sum() <= self.scheduler.config.max_tokens_per_step
            assert plan.context_lens.max() <= self.scheduler.config.position_limit
            assert len(set(plan.slots.tolist())) == plan.num_rows
            self.plans.append(plan)

    @precondition(lambda self: self.plans)
    @rule(seed=st.integers(0, 2**20))
    def commit(self, seed):
        plan = self.plans.pop(0)
        rng = np.random.default_rng(seed)
        most = np.where(plan.is_prompt, 1, plan.max_query_lens)
        counts = rng.integers(1, most + 1)
        tokens = rng.integers(1, 9, (plan.num_rows, 4))
        self.take(self.scheduler.commit(plan, StepOutcome(tokens, counts)))

    @precondition(lambda self: self.plans)
    @rule()
    def cancel(self):
        self.scheduler.cancel(self.plans[0])
        self.plans.clear()

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def abort(self, data):
        names = data.draw(st.lists(st.sampled_from(sorted(self.accepted)), max_size=3))
        self.scheduler.abort(names)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def stop_string(self, data):
        self.scheduler.finish(data.draw(st.sampled_from(sorted(self.accepted))), "stop")

    @rule()
    def flush(self):
        self.take(self.scheduler.flush())

    @invariant()
    def books_balance(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            stats = self.scheduler.stats()
            parts = stats.blocks_free + stats.blocks_cached + stats.blocks_used
            assert parts == stats.blocks_total

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.has_unfinished:
                break
            self.plan() if not self.plans else None
            self.commit(7) if self.plans else self.flush()
        assert set(self.ended) == self.accepted
        self.scheduler.check_integrity()
        stats = self.scheduler.stats()
        assert stats.blocks_used == 0
        assert self.scheduler._core.table.num_free_slots == self.scheduler.config.state_slots - 1
        self.scheduler._core.pool.forget_cached()
        stats = self.scheduler.stats()
        assert (stats.blocks_free, stats.snapshots_cached) == (stats.blocks_total, 0)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
