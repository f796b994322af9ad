"""Whether a grammar that compiles for seconds is felt by anybody else.

Unconstrained requests come one behind another, in turns with and without a slow grammar compiling
beside them, so that both kinds meet the same machine. What counts is their time to the first token
and the longest turn of the step loop.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from di_engine.bench.variants import variant
from di_engine.config import EngineConfig
from di_engine.core.assembly import assemble
from di_engine.core.step_timer import StepTimer
from di_engine.core.trace import StepTrace
from di_engine.llm.grammars import Grammars
from di_engine.llm.llm import make_request_manager
from di_engine.llm.output_schema import import_structured
from di_engine.llm.request_manager import RequestManager
from di_engine.llm.request_state import RequestState
from di_engine.llm.sampling_params import SamplingParams

__all__ = ["StructuredSettings", "bench_structured"]

_FIRST_REPEATS = 1000
_FIRST_TOKEN_ID = 3


@dataclass(frozen=True, slots=True)
class StructuredSettings:
    """What comes together.

    Attributes:
        compile_s: Seconds that the slow grammar takes to compile alone, at least.
        num_rounds: Slow grammars, each behind a quiet turn of the same length.
        prompt_len: Prompt tokens of the unconstrained requests.
        output_len: Tokens of each.
    """

    compile_s: float = 5.0
    num_rounds: int = 3
    prompt_len: int = 64
    output_len: int = 8


@dataclass(slots=True)
class _Turn:
    """What was seen in the turns of one kind.

    Attributes:
        first_token_s: Time to the first token of each request.
        step_s: Time of each turn of the step loop.
    """

    first_token_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """In milliseconds."""
        return {
            "requests": len(self.first_token_s),
            "time_to_first_token_ms": _summary(self.first_token_s),
            "step_ms": _summary(self.step_s),
        }


def bench_structured(
    config: EngineConfig, settings: StructuredSettings, trace: StepTrace | None = None
) -> dict[str, Any]:
    """Measures time to first token with and without a grammar compiling.

    Args:
        config: The engine; the compile process is preloaded and given time.
        settings: What comes together.
        trace: Takes the spans of the steps and of the compiles.

    Returns:
        How long the grammar compiles alone and beside requests, times to the first token and of
        steps in quiet and in compiling turns, and the ratio of their medians.

    Raises:
        UnsupportedEnvironmentError: If `di-structured` is not installed.
    """
    longest_s = 60 * settings.compile_s
    config = variant(
        config, preload_compiler=True, compile_timeout_s=max(60.0, longest_s), grammar_cache_bytes=0
    )
    parts = assemble(config)
    parts.engine.timer = StepTimer(sink=trace)
    requests = make_request_manager(parts)
    try:
        alone_s, slow_schemas = _find_slow(requests, settings.compile_s)
        prompts = _prompts(parts.model_config.vocab_size, settings.prompt_len)
        quiet, compiling, beside_s = _Turn(), _Turn(), []
        params = SamplingParams(temperature=0, max_tokens=settings.output_len, ignore_eos=True)
        _serve(requests, next(prompts), params, _Turn())  # warm
        for _, schema in zip(range(settings.num_rounds), slow_schemas, strict=False):
            state = requests.submit(next(prompts), SamplingParams(output_schema=schema), 0)
            begin_s = parts.engine.timer.clock()
            while requests.num_compiling:
                _serve(requests, next(prompts), params, compiling)
            end_s = parts.engine.timer.clock()
            if state.error is not None:
                raise RuntimeError(f"the slow grammar failed: {state.error}")
            beside_s.append(state.metrics.compile_s or 0.0)
            requests.abort([state])
            _drain(requests)
            if trace is not None:
                trace.compile_span("slow grammar", begin_s, end_s)
            stop_s = time.monotonic() + end_s - begin_s
            while time.monotonic() < stop_s:
                _serve(requests, next(prompts), params, quiet)
    finally:
        requests.close()
    medians = [statistics.median(turn.first_token_s) for turn in (quiet, compiling)]
    return {
        "benchmark": "structured",
        "device": str(parts.device.torch_device),
        "prompt_len": settings.prompt_len,
        "output_len": settings.output_len,
        "rounds": settings.num_rounds,
        "compile_alone_s": alone_s,
        "compile_beside_requests_s": beside_s,
        "quiet": quiet.summary(),
        "compiling": compiling.summary(),
        "ratio": medians[1] / medians[0],
    }


def _find_slow(requests: RequestManager, least_s: float) -> tuple[float, Iterator[Any]]:
    """A grammar that takes long enough, timed alone, and endlessly many like it.

    xgrammar's time grows with the square of the bound of a repetition inside a JSON string.
    """
    structured = import_structured()
    grammars: Grammars = requests.grammars

    def schema(repeats: int) -> Any:
        return structured.OutputSchema.json_schema(
            {"type": "string", "pattern": f"^[a-z]{{0,{repeats}}}$"}
        )

    grammars.schema(schema(_FIRST_REPEATS), ())
    repeats, seconds = _FIRST_REPEATS, 0.0
    while seconds < least_s:
        begin = time.monotonic()
        grammars.submit(schema(repeats)).result()
        seconds = time.monotonic() - begin
        if seconds < least_s:
            growth = min(3.0, max(1.1, 1.1 * math.sqrt(least_s / max(seconds, 1e-3))))
            repeats = math.ceil(repeats * growth)
    return seconds, (schema(repeats + number) for number in itertools.count(1))


def _serve(
    requests: RequestManager, prompt: list[int], params: SamplingParams, turn: _Turn
) -> None:
    """Runs one unconstrained request to its end."""
    state: RequestState = requests.submit(prompt, params, 0)
    while not state.finished:
        begin = time.monotonic()
        requests.step()
        turn.step_s.append(time.monotonic() - begin)
    first_token_s = state.metrics.time_to_first_token_s
    if first_token_s is None:
        raise RuntimeError(f"an unconstrained request failed: {state.error}")
    turn.first_token_s.append(first_token_s)


def _drain(requests: RequestManager) -> None:
    while requests.has_unfinished:
        requests.step()


def _prompts(vocab_size: int, prompt_len: int) -> Iterator[list[int]]:
    """Prompts that share no prefix."""
    random = np.random.default_rng(0)
    while True:
        yield random.integers(_FIRST_TOKEN_ID, vocab_size, prompt_len).tolist()


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1e3 * value for value in seconds)
    return {
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "min": ordered[0],
        "max": ordered[-1],
    }
