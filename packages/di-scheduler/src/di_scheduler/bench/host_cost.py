"""Host time of `plan` and `commit` in steady decode."""

import time
from dataclasses import asdict, dataclass

import numpy as np

from di_scheduler.config import SchedulerConfig
from di_scheduler.hashing import block_hash
from di_scheduler.outcome import StepOutcome
from di_scheduler.plan import StepPlan
from di_scheduler.request import Request
from di_scheduler.scheduler import Scheduler

BLOCK_SIZE = 128
VOCAB_SIZE = 129_280
GATHERED_COLUMNS, WRITTEN_COLUMNS = 12, 6


@dataclass(frozen=True, slots=True)
class HostCost:
    """Times in microseconds per step; each is a median over the measured steps.

    Wall times contain whatever else the machine does; `step_cpu_us` does not.

    Attributes:
        num_requests: Running requests.
        rows_per_request: Rows of each in a step, drafts included.
        overlapped: Whether each plan was made while the one before was uncommitted.
        steps: Steps measured.
        plan_us: `Scheduler.plan`.
        commit_us: `Scheduler.commit`: tokens, stops, block hashes, struct-of-arrays update.
        views_us: Iterating the update, one view per request.
        step_us: Median of `plan` plus `commit` of one step.
        step_cpu_us: The same in processor time of the thread.
        step_p90_us: 90th percentile of the same.
        floor_us: Reading 12 columns, writing 6 and hashing the step's full blocks in bare numpy.
        ratio: `step_us / floor_us`.
        blocks_hashed_per_step: Mean number of blocks that became full.
    """

    num_requests: int
    rows_per_request: int
    overlapped: bool
    steps: int
    plan_us: float
    commit_us: float
    views_us: float
    step_us: float
    step_cpu_us: float
    step_p90_us: float
    floor_us: float
    ratio: float
    blocks_hashed_per_step: float

    def as_dict(self) -> dict[str, object]:
        """Returns all figures by name."""
        return asdict(self)


def measure_host_cost(
    num_requests: int = 256, rows: int = 6, steps: int = 400, overlapped: bool = True
) -> HostCost:
    """Runs `num_requests` requests in steady decode and times every step.

    Args:
        num_requests: Requests that run at the same time.
        rows: Rows per request and step; drafts are accepted at random.
        steps: Steps to measure.
        overlapped: Whether to plan each step before the one before is committed.
    """
    rng = np.random.default_rng(0)
    scheduler = _loaded_scheduler(num_requests, rows, steps, rng)
    before = _drain_prompts(scheduler, rows, rng, overlapped)
    times = np.empty((steps, 5))
    blocks = scheduler.stats().blocks_used
    floors = []
    for step in range(steps):
        cpu = time.thread_time()
        start = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        cpu_plan = time.thread_time() - cpu
        assert plan is not None, "the benchmark ran out of work"
        oldest = before if before is not None else plan
        outcome = _outcome(oldest, rows, rng)
        cpu = time.thread_time()
        ready = time.perf_counter()
        update = scheduler.commit(oldest, outcome)
        committed = time.perf_counter()
        cpu_step = cpu_plan + time.thread_time() - cpu
        for _ in update:
            pass
        seen = time.perf_counter()
        before = plan if before is not None else None
        times[step] = planned - start, committed - ready, seen - committed, 0.0, cpu_step
        floors.append(_floor(num_requests, rows, rng))
    times[:, 3] = times[:, 0] + times[:, 1]
    plan_us, commit_us, views_us, step_us, step_cpu_us = np.median(times, axis=0) * 1e6
    floor_us = float(np.median(floors)) * 1e6
    return HostCost(
        num_requests=num_requests,
        rows_per_request=rows,
        overlapped=overlapped,
        steps=steps,
        plan_us=round(float(plan_us), 1),
        commit_us=round(float(commit_us), 1),
        views_us=round(float(views_us), 1),
        step_us=round(float(step_us), 1),
        step_cpu_us=round(float(step_cpu_us), 1),
        step_p90_us=round(float(np.percentile(times[:, 3], 90)) * 1e6, 1),
        floor_us=round(floor_us, 1),
        ratio=round(float(step_us) / floor_us, 2),
        blocks_hashed_per_step=round((scheduler.stats().blocks_used - blocks) / steps, 2),
    )


def _loaded_scheduler(
    num_requests: int, rows: int, steps: int, rng: np.random.Generator
) -> Scheduler:
    longest = 1024 + (steps + 64) * rows
    config = SchedulerConfig(
        max_model_len=longest + 1,
        num_blocks=num_requests * (longest // BLOCK_SIZE + 3) + 1,
        max_running=num_requests,
        max_tokens_per_step=max(8192, num_requests * rows),
        block_size=BLOCK_SIZE,
        num_draft_tokens=rows - 1,
        eos_token_ids=(1,),
        prefix_cache=True,
        prefill_usage_limit=1.0,
    )
    scheduler = Scheduler(config)
    for number in range(num_requests):
        prompt = rng.integers(2, VOCAB_SIZE, int(rng.integers(100, 1000)))
        scheduler.add(Request(str(number), prompt))
    return scheduler


def _drain_prompts(
    scheduler: Scheduler, rows: int, rng: np.random.Generator, overlapped: bool
) -> StepPlan | None:
    """Steps until every request decodes; returns the uncommitted plan of an overlapped loop."""
    before: StepPlan | None = None
    for _ in range(10_000):
        plan = scheduler.plan()
        assert plan is not None, "requests ended while prompts were computed"
        oldest = plan
        if overlapped:
            oldest, before = before or plan, plan
        if not (overlapped and oldest is plan):
            scheduler.commit(oldest, _outcome(oldest, rows, rng))
        if not plan.is_prompt.any() and not scheduler.num_waiting:
            return before
    raise RuntimeError("the prompts were not computed within 10000 steps")


def _outcome(plan: StepPlan, rows: int, rng: np.random.Generator) -> StepOutcome:
    most = np.where(plan.is_prompt, 1, plan.max_query_lens)
    counts = rng.integers(1, most + 1)
    return StepOutcome(rng.integers(2, VOCAB_SIZE, (plan.num_rows, rows)), counts)


def _floor(num_requests: int, rows: int, rng: np.random.Generator) -> float:
    """Returns the seconds that the unavoidable memory work of one step takes."""
    table = np.zeros((GATHERED_COLUMNS, num_requests + 64), np.int64)
    slots = np.arange(1, num_requests + 1)
    values = rng.integers(0, 9, num_requests)
    tokens = rng.integers(0, 9, BLOCK_SIZE).astype(np.int32)
    num_blocks = max(1, num_requests * (rows + 1) // 2 // BLOCK_SIZE)
    start = time.perf_counter()
    for column in range(GATHERED_COLUMNS):
        table[column][slots]
    for column in range(WRITTEN_COLUMNS):
        table[column][slots] = values
    for _ in range(num_blocks):
        block_hash(b"0123456789abcdef", tokens)
    return time.perf_counter() - start
