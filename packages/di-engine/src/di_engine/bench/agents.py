"""What the prefix cache saves when agents keep adding to their conversations."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from di_engine.bench.variants import variant
from di_engine.config import EngineConfig
from di_engine.llm.llm import LLM
from di_engine.llm.sampling_params import SamplingParams

__all__ = ["MODES", "AgentSettings", "bench_agents"]

MODES: dict[str, dict[str, Any]] = {
    "off": {"prefix_cache": False},
    "snapshots": {"prefix_cache": True, "replay": "exact"},
    "exact replay": {"prefix_cache": True, "replay": "exact", "snapshot_slots": 0},
    "approximate replay": {"prefix_cache": True, "replay": "approximate", "snapshot_slots": 0},
}
"""Ways to enter a cached prefix, and the fields that choose them."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The trace.

    Attributes:
        num_sessions: Agents that work side by side.
        num_turns: Requests of each.
        system_len: Tokens that all begin with: system prompt and tools.
        turn_len: Tokens that a turn adds before the model answers, on average; half as many to
            half as many again.
        output_len: Tokens of each answer.
    """

    num_sessions: int = 3
    num_turns: int = 4
    system_len: int = 1500
    turn_len: int = 300
    output_len: int = 32


def bench_agents(config: EngineConfig, settings: AgentSettings, mode: str) -> dict[str, Any]:
    """Plays the trace in one mode; the same prompts in every mode.

    Args:
        config: The engine; the fields of the mode are replaced.
        settings: The trace.
        mode: One of `MODES`.

    Returns:
        Prompt tokens in all, those an unlimited cache would not compute, those computed and those
        replayed, the share of the ideal that was saved, and the prefill times of the requests.
    """
    params = SamplingParams(temperature=0, max_tokens=settings.output_len, ignore_eos=True)
    prefill_s: list[float] = []
    prompt_tokens = ideal_tokens = 0
    with LLM(variant(config, **MODES[mode])) as llm:
        vocab_size = llm.model_config.vocab_size
        random = np.random.default_rng(0)
        system = random.integers(3, vocab_size, settings.system_len)
        histories = [system.copy() for _ in range(settings.num_sessions)]
        for turn in range(settings.num_turns):
            for number, history in enumerate(histories):
                ideal_tokens += _known(settings, history, turn, number)
                shortest, longest = settings.turn_len // 2, settings.turn_len * 3 // 2
                added_len = int(random.integers(max(1, shortest), longest + 1))
                added = random.integers(3, vocab_size, added_len)
                histories[number] = np.concatenate((history, added))
            prompt_tokens += sum(map(len, histories))
            # The first agent goes ahead, so that there is a system prompt to find.
            prompts = [history.tolist() for history in histories]
            outputs = llm.generate(prompts[:1], params) + llm.generate(prompts[1:], params)
            for number, output in enumerate(outputs):
                prefill_s.append(output.metrics.prefill_s or 0.0)
                answer = np.array(output.outputs[0].token_ids)
                histories[number] = np.concatenate((histories[number], answer))
        counters = dict(llm.metrics.counters)
    computed = counters["prompt_tokens"]
    return {
        "benchmark": "agents",
        "mode": mode,
        "prompt_tokens": prompt_tokens,
        "ideal_tokens": ideal_tokens,
        "computed_tokens": computed,
        "replayed_tokens": counters.get("replayed_tokens", 0),
        "hit_rate": counters.get("cache_hits", 0) / prompt_tokens,
        "share_of_ideal": (prompt_tokens - computed) / ideal_tokens,
        "prefill_s": {"total": sum(prefill_s), "median": statistics.median(prefill_s)},
        "snapshot_saves": counters.get("snapshot_saves", 0),
        "snapshot_restores": counters.get("snapshot_restores", 0),
    }


def _known(settings: AgentSettings, history: npt.NDArray[np.int64], turn: int, number: int) -> int:
    """Tokens at the start of the next prompt that somebody has computed."""
    if turn == 0:
        return 0 if number == 0 else settings.system_len
    return len(history) - 1  # the newest token has no keys yet
