"""What the prefix cache saves on a multi-turn agent trace, for each way to make windows exact.

Sessions of one group share a system prompt; each turn appends a tool result or a question to
everything before it. Tokens are random; the model is a random number generator; sizes are those of
DeepSeek-V4.1-Flash (128-token blocks and windows, 40 layers with windows). The loop is overlapped.
"""

from collections import deque
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from di_scheduler.config import SchedulerConfig
from di_scheduler.outcome import StepOutcome
from di_scheduler.plan import StepPlan
from di_scheduler.request import Request
from di_scheduler.scheduler import Scheduler

VOCAB_SIZE = 129_280
NUM_DRAFTS = 5
MODES = ("no cache", "snapshots", "exact replay", "approximate replay")


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Figures of one mode.

    Attributes:
        mode: How windows are made exact after a hit (`approximate replay` does not make them so).
        prompt_tokens: Tokens of all prompts.
        ideal_tokens: Tokens that an unlimited cache of any granularity would not compute.
        computed_tokens: Prompt rows that were computed.
        replayed_tokens: Of those, rows computed again below the hit.
        hit_tokens: Prompt tokens whose blocks were found.
        share_of_ideal: Prompt tokens not computed, as a share of `ideal_tokens`.
        snapshot_saves: Window rings saved (about 3.0 MB each on the real model).
        snapshot_restores: Window rings restored.
        prefill_steps: Steps with prompt rows.
    """

    mode: str
    prompt_tokens: int
    ideal_tokens: int
    computed_tokens: int
    replayed_tokens: int
    hit_tokens: int
    share_of_ideal: float
    snapshot_saves: int
    snapshot_restores: int
    prefill_steps: int

    def as_dict(self) -> dict[str, object]:
        """Returns all figures by name."""
        return asdict(self)


@dataclass(slots=True)
class _Session:
    number: int
    group: int
    history: npt.NDArray[np.int64]
    turns_left: int
    has_begun: bool = False


def run_trace(
    mode: str, sessions: int = 32, turns: int = 8, groups: int = 4, seed: int = 0
) -> TraceResult:
    """Plays the trace in one mode.

    Args:
        mode: One of `MODES`.
        sessions: Agents, of which 8 work at the same time.
        turns: Requests per agent.
        groups: Different system prompts.
        seed: Of all random numbers; the same trace for every mode.

    Raises:
        ValueError: `mode` is unknown.
    """
    if mode not in MODES:
        raise ValueError(f"`mode` must be one of {', '.join(MODES)}: {mode!r}")
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(_config(mode))
    systems = [rng.integers(2, VOCAB_SIZE, int(rng.integers(2000, 6000))) for _ in range(groups)]
    plans: deque[StepPlan] = deque()
    waiting = [_Session(i, i % groups, systems[i % groups], turns) for i in range(sessions)]
    running: dict[str, _Session] = {}
    seen_groups: set[int] = set()
    prompt_tokens = ideal_tokens = prefill_steps = 0
    while waiting or running:
        while waiting and len(running) < 8:
            session = waiting.pop(0)
            known = len(session.history)
            if not session.has_begun and session.group not in seen_groups:
                known = 0
            elif session.has_begun:
                known -= 1  # the newest output token has no keys yet
            session.has_begun = True
            # Numbered, not drawn in order: every mode sees the same turns.
            rng = np.random.default_rng((seed, session.number, session.turns_left))
            added = rng.integers(2, VOCAB_SIZE, int(rng.integers(50, 1500)))
            session.history = np.concatenate((session.history, added))
            prompt_tokens += len(session.history)
            ideal_tokens += known
            name = f"{session.number}.{session.turns_left}"
            running[name] = session
            output_len = int(rng.integers(20, 600))
            scheduler.add(Request(name, session.history, max_tokens=output_len))
        plan = scheduler.plan()
        if plan is not None:
            plans.append(plan)
            prefill_steps += bool(plan.is_prompt.any())
        if plan is not None and len(plans) == 1:
            continue  # overlapped: the first step is committed after the second is planned
        oldest = plans.popleft()
        for view in scheduler.commit(oldest, _outcome(oldest)):
            session = running[view.request_id]
            session.history = np.concatenate((session.history, view.token_ids))
            if view.finished:
                seen_groups.add(session.group)
                session.turns_left -= 1
                del running[view.request_id]
                if session.turns_left:
                    waiting.append(session)
    counters = scheduler.counters
    saved = prompt_tokens - counters.prompt_tokens
    return TraceResult(
        mode=mode,
        prompt_tokens=prompt_tokens,
        ideal_tokens=ideal_tokens,
        computed_tokens=counters.prompt_tokens,
        replayed_tokens=counters.replayed_tokens,
        hit_tokens=counters.cache_hits,
        share_of_ideal=round(saved / ideal_tokens, 4),
        snapshot_saves=counters.snapshot_saves,
        snapshot_restores=counters.snapshot_restores,
        prefill_steps=prefill_steps,
    )


def _config(mode: str) -> SchedulerConfig:
    config = SchedulerConfig(
        max_model_len=65_536,
        num_blocks=40_000,
        max_running=8,
        max_tokens_per_step=8192,
        num_draft_tokens=NUM_DRAFTS,
        prefix_cache=mode != "no cache",
        num_window_layers=40,
        ring_slack=2 * (NUM_DRAFTS + 1),
        replay="approximate" if mode == "approximate replay" else "exact",
    )
    return replace(config, num_snapshot_slots=48) if mode == "snapshots" else config


def _outcome(plan: StepPlan) -> StepOutcome:
    """Answers with tokens and acceptances that depend on the request alone, not on the mode."""
    lengths = plan.table.num_tokens[plan.slots]
    uids = np.array([sum(map(int, name.split("."))) * 31 for name in plan.request_ids])
    columns = np.arange(NUM_DRAFTS + 1)
    tokens = (uids[:, None] * 7919 + (lengths[:, None] + columns) * 104_729) % (VOCAB_SIZE - 2) + 2
    most = np.where(plan.is_prompt, 1, plan.max_query_lens)
    return StepOutcome(tokens, 1 + (uids + lengths) % most)
