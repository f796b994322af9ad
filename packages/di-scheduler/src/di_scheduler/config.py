"""Limits and policies of one scheduler (one rank)."""

from dataclasses import dataclass
from typing import Literal, get_args

from di_scheduler.errors import ConfigError

Policy = Literal["mixed", "prefill_first", "decode_first"]
Preemption = Literal["recompute", "abort"]
Role = Literal["both", "prefill", "decode"]
Replay = Literal["exact", "approximate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and policies of one scheduler.

    Names follow vLLM and DeepInfer 0.1.0 where the meaning is the same.

    Attributes:
        max_model_len: Prompt plus output tokens that one request may hold.
        num_blocks: Blocks of the pool, including block 0, which is reserved for placeholder rows.
        max_running: Requests that hold a state slot and run at the same time.
        max_tokens_per_step: Rows of one step, prompt and decode rows together.
        block_size: Tokens per block.
        num_state_slots: State slots including the reserved slot 0. The default leaves room for
            slots that a step in flight still touches after their request finished.
        num_draft_tokens: `K`, the most draft tokens that one request verifies in a step.
        drafts_after_prefill: Whether the step that ends a prompt also leaves drafts behind.
        chunked_prefill: Whether a prompt may be computed in several steps.
        policy: `mixed` puts decode rows and prompt chunks into one step; `prefill_first` and
            `decode_first` separate them.
        prefill_all_interval: Decode steps between attempts at which prompts run if every rank
            has one (`decode_first`).
        prefill_any_interval: Decode steps between attempts at which prompts run if any rank has
            one (`decode_first`).
        idle_check_interval: Decode steps between the cheap checks whether every rank is idle
            (`decode_first` with several ranks).
        prefill_usage_limit: No new prompt is admitted while other requests run and more than
            this share of the blocks is referenced.
        preemption: What happens to the youngest request when blocks run out.
        priority_aging: Steps of waiting that make up for one level of priority. 0 means that
            priorities are strict.
        role: `prefill` hands requests over after their prompt, `decode` only takes such requests.
        eos_token_ids: Token ids that end every request which does not set `ignore_eos`.
        vocab_size: If given, token ids are checked against it.
        prefix_cache: Whether full blocks are shared between requests with the same prefix.
        cache_seed: Distinguishes caches that must never match: model revision, record formats.
        window_size: Sliding-window length in tokens.
        num_window_layers: Layers that keep a sliding window and whose windows a hit must make
            exact; 0 if nothing needs a replay. With `keep_tokens`, those below the decoder half.
        replay: `exact` recomputes `(window_size - 1) * num_window_layers` tokens before the
            first new token (DeepSeek-V4.1: the least number for which all windows are exact);
            `approximate` recomputes `window_size` tokens (technical report 3.2.2).
        keep_tokens: Last tokens of each prompt that the decoder half of the model runs
            (DeepInfer 0.1.0 `YOCO_PREFILL_KEEP_TOKENS`); 0 is all of them. A hit then never starts
            behind the first of them, so that the decoder half computes the same rows whatever is
            cached.
        num_snapshot_slots: Saved window rings that can be kept; 0 turns them off.
        ring_slack: Tokens that may be written past a block boundary before the ring loses part
            of the window that ends at the boundary (ring length minus window length). A decoding
            request is saved at every boundary if this is at least `num_draft_tokens + 1` in the
            synchronous loop and twice that in the overlapped one.
        snapshot_min_gain: A boundary is worth a snapshot and its chunk end if restoring it saves
            at least this many tokens of replay.
    """

    max_model_len: int
    num_blocks: int
    max_running: int = 256
    max_tokens_per_step: int = 8192
    block_size: int = 128
    num_state_slots: int | None = None
    num_draft_tokens: int = 0
    drafts_after_prefill: bool = False
    chunked_prefill: bool = True
    policy: Policy = "mixed"
    prefill_all_interval: int = 70
    prefill_any_interval: int = 100
    idle_check_interval: int = 16
    prefill_usage_limit: float = 0.9
    preemption: Preemption = "recompute"
    priority_aging: int = 0
    role: Role = "both"
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None
    prefix_cache: bool = False
    cache_seed: bytes = b""
    window_size: int = 128
    num_window_layers: int = 0
    replay: Replay = "exact"
    keep_tokens: int = 0
    num_snapshot_slots: int = 0
    ring_slack: int = 0
    snapshot_min_gain: int = 256

    def __post_init__(self) -> None:
        problems = [*self._range_problems(), *self._cross_problems()]
        if problems:
            raise ConfigError(problems)

    @property
    def position_limit(self) -> int:
        """Exclusive upper bound of the positions that any row of any step can have.

        The bound is exact: the newest token has no position yet, and rows never exceed the tokens
        that a request may still gain, but a step that is planned while an earlier one is
        uncommitted starts behind all rows of that one.
        Position-indexed buffers need this many rows.
        """
        return self.max_model_len + self.num_draft_tokens - 1

    @property
    def state_slots(self) -> int:
        """State slots including the reserved slot 0."""
        if self.num_state_slots is not None:
            return self.num_state_slots
        return int(self.max_running * 1.2) + 2

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the reserved block 0."""
        return self.num_blocks - 1

    @property
    def replay_tokens(self) -> int:
        """Tokens to recompute before the first new token after a hit without saved rings."""
        if self.num_window_layers == 0:
            return 0
        if self.replay == "approximate":
            return self.window_size
        return (self.window_size - 1) * self.num_window_layers

    def first_needed(self, num_tokens: int, hit_len: int) -> int:
        """Returns the first position that is computed for its own sake behind a cache hit.

        The last token is always computed, since somebody has to produce the logits; so are the
        tokens that the decoder half keeps, since nothing of theirs outlives a request.

        Args:
            num_tokens: Tokens of the prompt.
            hit_len: How many of them are in the global cache.
        """
        return min(hit_len, max(0, num_tokens - max(1, self.keep_tokens)))

    def blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def _range_problems(self) -> list[str]:
        minimum = {
            "max_model_len": 2,
            "num_blocks": 2,
            "max_running": 1,
            "max_tokens_per_step": 1,
            "block_size": 1,
            "num_draft_tokens": 0,
            "prefill_all_interval": 1,
            "prefill_any_interval": 1,
            "idle_check_interval": 1,
            "priority_aging": 0,
            "window_size": 1,
            "num_window_layers": 0,
            "keep_tokens": 0,
            "num_snapshot_slots": 0,
            "ring_slack": 0,
            "snapshot_min_gain": 1,
        }
        problems = [
            f"`{name}` must be at least {least}: {getattr(self, name)}"
            for name, least in minimum.items()
            if getattr(self, name) < least
        ]
        choices = {"policy": Policy, "preemption": Preemption, "role": Role, "replay": Replay}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                allowed = ", ".join(get_args(kind))
                problems.append(f"`{name}` must be one of {allowed}: {getattr(self, name)!r}")
        if not 0.0 < self.prefill_usage_limit <= 1.0:
            problems.append(f"`prefill_usage_limit` must be in (0, 1]: {self.prefill_usage_limit}")
        if self.vocab_size is not None and self.vocab_size < 1:
            problems.append(f"`vocab_size` must be at least 1 or None: {self.vocab_size}")
        return problems

    def _cross_problems(self) -> list[str]:
        problems = []
        rows = self.max_running * (1 + self.num_draft_tokens)
        if self.max_tokens_per_step < rows:
            problems.append(
                f"`max_tokens_per_step` must be at least max_running * (1 + num_draft_tokens) = "
                f"{rows}: {self.max_tokens_per_step}; raise it or lower `max_running`"
            )
        if not self.chunked_prefill and self.max_tokens_per_step < self.max_model_len:
            problems.append(
                f"without `chunked_prefill`, `max_tokens_per_step` must be at least "
                f"`max_model_len` = {self.max_model_len}: {self.max_tokens_per_step}"
            )
        if self.state_slots < self.max_running + 1:
            problems.append(
                f"`num_state_slots` must be at least max_running + 1 = {self.max_running + 1} "
                f"(slot 0 is reserved): {self.num_state_slots}"
            )
        if self.role == "decode" and self.preemption != "abort":
            problems.append(
                "`role` = decode needs `preemption` = abort: a decode rank cannot recompute"
            )
        # What is taken back after a prompt must leave a whole window of the rows that were kept.
        least = self.window_size + self.num_draft_tokens + 1
        if 0 < self.keep_tokens < least:
            problems.append(
                f"`keep_tokens` must be 0 or at least window_size + num_draft_tokens + 1 = "
                f"{least}: {self.keep_tokens}"
            )
        if self.num_snapshot_slots and not self.prefix_cache:
            problems.append("`num_snapshot_slots` needs `prefix_cache` = True")
        return problems
