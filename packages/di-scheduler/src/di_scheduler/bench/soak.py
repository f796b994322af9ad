"""A long random trace that loses nothing: small pool, shared prefixes, aborts, preemptions.

Everything that can go wrong late is made frequent: blocks are short and few, prompts share
prefixes, one request in some hundred is aborted, drafts are accepted at random and the loop is
overlapped.
"""

from collections import deque
from dataclasses import asdict, dataclass

import numpy as np

from di_scheduler.config import SchedulerConfig
from di_scheduler.errors import CapacityError, IntegrityError
from di_scheduler.outcome import StepOutcome
from di_scheduler.plan import StepPlan
from di_scheduler.request import Request
from di_scheduler.scheduler import Scheduler

_CHECK_INTERVAL = 100
"""Steps between two full checks; the sum of the pool is checked after every step."""


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak did. That it returned means that nothing was lost.

    Attributes:
        num_steps: Turns of the loop.
        num_accepted: Requests that were taken in.
        num_ended: Requests that got their terminal view, each exactly one.
        num_open: Requests that were still running at the end.
        num_aborted: Requests ended from outside.
        num_preempted: Times that a request gave up its blocks.
        num_evictions: Cached blocks that were reused.
        num_restores: Window snapshots that were restored.
    """

    num_steps: int
    num_accepted: int
    num_ended: int
    num_open: int
    num_aborted: int
    num_preempted: int
    num_evictions: int
    num_restores: int

    def as_dict(self) -> dict[str, object]:
        """Returns all figures by name."""
        return asdict(self)


class _Traffic:
    """Random arrivals and aborts, and the books of who has ended.

    Args:
        scheduler: Takes the requests.
        rng: Source of all choices.
    """

    def __init__(self, scheduler: Scheduler, rng: np.random.Generator) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._prefixes = [rng.integers(2, 99, 80).tolist() for _ in range(6)]
        self.open_ids: set[str] = set()
        self.num_accepted = self.num_ended = 0

    def arrive(self, step: int) -> None:
        """Sends a request, sometimes."""
        rng = self._rng
        if rng.random() >= 0.3 or self._scheduler.num_waiting >= 6:
            return
        prompt = self._prefixes[rng.integers(6)][: rng.integers(0, 80)]
        prompt = prompt + rng.integers(2, 99, rng.integers(1, 20)).tolist()
        try:
            self._scheduler.add(Request(str(step), prompt, max_tokens=int(rng.integers(1, 40))))
        except CapacityError:
            return
        self.num_accepted += 1
        self.open_ids.add(str(step))

    def abort(self) -> None:
        """Ends a request from outside, rarely."""
        if self.open_ids and self._rng.random() < 0.01:
            victims = sorted(self.open_ids)
            self._scheduler.abort(victims[self._rng.integers(len(victims))])

    def end(self, request_id: str) -> None:
        """Notes a terminal view.

        Raises:
            IntegrityError: The request had ended before.
        """
        if request_id not in self.open_ids:
            raise IntegrityError([f"request {request_id!r} ended twice"])
        self.open_ids.remove(request_id)
        self.num_ended += 1


def run_soak(num_steps: int = 100_000, seed: int = 0) -> SoakResult:
    """Runs the trace; the same for the same seed.

    Args:
        num_steps: Turns of the loop.
        seed: Of all random numbers.

    Raises:
        IntegrityError: Blocks, slots or requests were lost, or a request ended twice.
    """
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(_config())
    traffic = _Traffic(scheduler, rng)
    plans: deque[StepPlan] = deque()
    pool = scheduler._core.pool
    for step in range(num_steps):
        traffic.arrive(step)
        traffic.abort()
        plan = scheduler.plan()
        if plan is not None:
            plans.append(plan)
        if len(plans) > (plan is not None):
            update = scheduler.commit(plans[0], _outcome(plans[0], rng))
            plans.popleft()
        else:
            update = scheduler.flush()
        for view in update:
            if view.finished:
                traffic.end(view.request_id)
        # Counted by hand, so that a fault of the pool's own figures shows.
        num_used = pool.count_referenced()
        if pool.num_free + pool.num_cached + num_used != pool.total:
            raise IntegrityError([f"step {step}: free + cached + used is not the total"])
        if step % _CHECK_INTERVAL == 0:
            scheduler.check_integrity()
    if traffic.num_accepted - traffic.num_ended != len(traffic.open_ids):
        raise IntegrityError(["accepted requests are neither open nor ended"])
    counters = scheduler.counters
    return SoakResult(
        num_steps=num_steps,
        num_accepted=traffic.num_accepted,
        num_ended=traffic.num_ended,
        num_open=len(traffic.open_ids),
        num_aborted=counters.aborted,
        num_preempted=counters.preempted,
        num_evictions=pool.num_evictions,
        num_restores=counters.snapshot_restores,
    )


def _config() -> SchedulerConfig:
    return SchedulerConfig(
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


def _outcome(plan: StepPlan, rng: np.random.Generator) -> StepOutcome:
    most = np.where(plan.is_prompt, 1, plan.max_query_lens)
    counts = rng.integers(1, most + 1)
    return StepOutcome(rng.integers(1, 99, (plan.num_rows, 4)), counts)
