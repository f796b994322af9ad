"""Requests that come and go while an engine runs, and what each of them got."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from di_engine.core.engine import Engine
from di_engine.runner.request import EngineRequest, LogprobsSpec, PositionLogprobs
from di_spec.sampling import SamplingParams

__all__ = ["Arrival", "Received", "random_mix", "run_mix"]

_MAX_STEPS = 100_000


@dataclass(frozen=True)
class Arrival:
    """A request of a mix: when it comes, when it is aborted, and what it is."""

    request: EngineRequest
    at_step: int
    abort_at: int | None = None


@dataclass
class Received:
    """What a request got.

    Attributes:
        token_ids: Its tokens.
        logprobs: Their log-probabilities, where wanted.
        prompt_logprobs: Those of its prompt, where wanted.
        reason: Why it ended.
        num_cached_tokens: Prompt tokens that were not computed; no part of a comparison.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    reason: str | None = None
    num_cached_tokens: int = field(default=0, compare=False)


def run_mix(engine: Engine, mix: Sequence[Arrival]) -> dict[str, Received]:
    """Runs a mix to its end; every request must end exactly once.

    Raises:
        AssertionError: If one does not, or the scheduler's books do not add up.
    """
    received = {arrival.request.request_id: Received() for arrival in mix}
    last = max(arrival.at_step for arrival in mix)
    for step in range(_MAX_STEPS):
        for arrival in mix:
            if arrival.at_step == step:
                engine.add(arrival.request)
            if arrival.abort_at == step:
                engine.abort([arrival.request.request_id])
        if step > last and not engine.has_work:
            break
        for event in engine.step():
            got = received[event.request_id]
            assert got.reason is None, "an event after the terminal one"
            got.token_ids += event.token_ids
            got.logprobs += event.logprobs or []
            got.prompt_logprobs = event.prompt_logprobs or got.prompt_logprobs
            got.reason = event.finish_reason
            got.num_cached_tokens = max(got.num_cached_tokens, event.num_cached_tokens)
        engine.scheduler.check_integrity()
    assert all(got.reason is not None for got in received.values()), "a request has no end"
    return received


def random_mix(
    seed: int,
    *,
    vocab_size: int,
    num_requests: int,
    max_tokens: int,
    prefixes: Sequence[Sequence[int]] = (),
    is_greedy: bool | None = None,
    ignores_eos: bool | None = None,
) -> list[Arrival]:
    """Makes requests of many kinds, the same for the same seed.

    Args:
        seed: Seed of everything.
        vocab_size: Token ids are below it.
        num_requests: How many.
        max_tokens: Most output tokens of one.
        prefixes: Beginnings that prompts may share.
        is_greedy: Whether all requests are greedy or none; None mixes.
        ignores_eos: Whether all run to their length; None mixes stops and lengths.
    """
    rng = random.Random(seed)  # noqa: S311  # a test's numbers
    mix = []
    for number in range(num_requests):
        prefix = rng.choice([[], *map(list, prefixes)])
        prompt = prefix[: rng.randint(0, len(prefix))]
        prompt += [rng.randrange(3, vocab_size) for _ in range(rng.randint(1, 6))]
        greedy = rng.random() < 0.5 if is_greedy is None else is_greedy
        runs_on = rng.random() < 0.5 if ignores_eos is None else ignores_eos
        stops = [] if runs_on else [rng.randrange(vocab_size) for _ in range(rng.randint(0, 20))]
        length = max_tokens if ignores_eos else rng.randint(1, max_tokens)
        sampling = SamplingParams(
            temperature=0.0 if greedy else rng.choice([0.7, 1.0, 3.0]),
            top_k=rng.choice([-1, 5]),
            top_p=rng.choice([1.0, 0.9]),
            min_p=rng.choice([0.0, 0.01]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            presence_penalty=rng.choice([0.0, 0.0, 0.5]),
            bad_words=rng.choice([(), ((5, 6), (7,))]),
            min_tokens=rng.choice([0, min(3, length)]),
            stop_token_ids=tuple(stops),
            seed=number,
        )
        request = EngineRequest(
            request_id=f"r{number}",
            prompt_ids=np.array(prompt, np.int32),
            sampling=sampling,
            max_tokens=length,
            min_tokens=sampling.min_tokens,
            stop_token_ids=tuple(stops),
            ignore_eos=runs_on,
            logprobs=LogprobsSpec(
                rng.choice([None, None, 0, 2]), None, rng.choice(["raw", "processed"])
            ),
        )
        mix.append(Arrival(request, rng.randint(0, 12)))
    return mix
