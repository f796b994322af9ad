"""Tokens per second of decode and prefill steps, and where the time of a step goes."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from di_engine.bench.floor import device_rates, step_work
from di_engine.core.assembly import EngineParts
from di_engine.core.engine import Engine
from di_engine.core.step_timer import StepTimer, StepTimes
from di_engine.core.trace import StepTrace
from di_engine.doctor import package_versions
from di_engine.errors import InvalidRequestError
from di_engine.model.numerics import Numerics
from di_engine.runner.request import EngineRequest
from di_spec.sampling import SamplingParams

__all__ = ["BenchSettings", "bench_decode", "bench_prefill", "git_revision"]


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What to measure.

    Attributes:
        batch_size: Requests side by side.
        prompt_len: Prompt tokens of each.
        num_steps: Decode steps of one repetition.
        num_warmup: Steps (decode) or repetitions (prefill) before measuring.
        num_repeats: Repetitions; the median counts.
        temperature: Of every request; 0 is greedy.
    """

    batch_size: int = 1
    prompt_len: int = 64
    num_steps: int = 64
    num_warmup: int = 4
    num_repeats: int = 5
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class _Repetition:
    """One measured stretch: wall seconds, tokens that count, phases."""

    wall_s: float
    num_tokens: int
    times: StepTimes


def bench_decode(
    parts: EngineParts, settings: BenchSettings, trace: StepTrace | None = None
) -> dict[str, Any]:
    """Measures decode steps: every request makes one token in each, or more with drafts.

    The prompts are computed before the clock starts.

    Args:
        parts: The engine.
        settings: What to measure.
        trace: Takes the spans of the measured steps. Phases then do not wait for the device.

    Raises:
        InvalidRequestError: If prompt and steps exceed the model's length.
    """
    num_steps = settings.num_warmup + settings.num_steps * settings.num_repeats + 2
    num_new = num_steps * (1 + (parts.config.speculation.num_draft_tokens or 0))
    _check_length(parts, settings.prompt_len + num_new, settings.batch_size)
    engine = _timed_engine(parts, trace)
    started = _add_requests(parts, settings, max_tokens=num_new, tag="decode")
    while started:
        started -= {event.request_id for event in engine.step() if event.token_ids}
    for _ in range(settings.num_warmup):
        engine.step()
    if trace is not None:
        trace.clear()
    repetitions = []
    for _ in range(settings.num_repeats):
        engine.timer.reset()
        begin = engine.timer.clock()
        num_tokens = sum(
            len(event.token_ids) for _ in range(settings.num_steps) for event in engine.step()
        )
        wall_s = engine.timer.clock() - begin
        repetitions.append(_Repetition(wall_s, num_tokens, engine.timer.reset()))
    engine.abort(_request_ids(settings, "decode"))
    while engine.has_work:
        engine.step()
    return _report("decode", parts, settings, repetitions)


def bench_prefill(
    parts: EngineParts, settings: BenchSettings, trace: StepTrace | None = None
) -> dict[str, Any]:
    """Measures prompts from submission to the first token of all of them; see `bench_decode`.

    Raises:
        InvalidRequestError: If the prompt exceeds the model's length.
    """
    _check_length(parts, settings.prompt_len + 1, settings.batch_size)
    engine = _timed_engine(parts, trace)
    repetitions = []
    for number in range(settings.num_warmup + settings.num_repeats):
        engine.timer.reset()
        begin = engine.timer.clock()
        _add_requests(parts, settings, max_tokens=1, tag=f"prefill-{number}")
        while engine.has_work:
            engine.step()
        wall_s = engine.timer.clock() - begin
        if number >= settings.num_warmup:
            num_tokens = settings.batch_size * settings.prompt_len
            repetitions.append(_Repetition(wall_s, num_tokens, engine.timer.reset()))
    return _report("prefill", parts, settings, repetitions)


def _timed_engine(parts: EngineParts, trace: StepTrace | None) -> Engine:
    """The engine, with phases that wait for the device, so that each counts its own work.

    A trace shows the loop as it is: nothing waits for its sake.
    """
    synchronize = parts.device.synchronize if trace is None else None
    parts.engine.timer = StepTimer(parts.engine.timer.clock, synchronize, trace)
    return parts.engine


def _check_length(parts: EngineParts, num_tokens: int, batch_size: int) -> None:
    limit = parts.config.model.max_model_len
    if limit is not None and num_tokens > limit:
        raise InvalidRequestError(
            f"prompt and generated tokens of one request are {num_tokens}, "
            f"`model.max_model_len` is {limit}: lower `--prompt-len`, `--num-steps` or "
            "`--num-repeats`",
            param="prompt_len",
        )
    if batch_size > parts.config.scheduler.max_running:
        raise InvalidRequestError(
            f"the batch size is {batch_size}, `scheduler.max_running` is "
            f"{parts.config.scheduler.max_running}: raise it or measure a smaller batch",
            param="batch_size",
        )


def _request_ids(settings: BenchSettings, tag: str) -> list[str]:
    return [f"{tag}-{index}" for index in range(settings.batch_size)]


def _add_requests(
    parts: EngineParts, settings: BenchSettings, max_tokens: int, tag: str
) -> set[str]:
    """Submits random prompts, the same in every run."""
    random = np.random.default_rng(0)
    vocab_size = parts.model_config.vocab_size
    for index, request_id in enumerate(_request_ids(settings, tag)):
        parts.engine.add(
            EngineRequest(
                request_id=request_id,
                prompt_ids=random.integers(0, vocab_size, settings.prompt_len, dtype=np.int32),
                sampling=SamplingParams(temperature=settings.temperature, seed=index),
                max_tokens=max_tokens,
                ignore_eos=True,
                reads_prefix_cache=False,  # every repetition computes the same prompts
            )
        )
    return set(_request_ids(settings, tag))


def _report(
    kind: str,
    parts: EngineParts,
    settings: BenchSettings,
    repetitions: list[_Repetition],
) -> dict[str, Any]:
    rates = sorted(r.num_tokens / r.wall_s for r in repetitions)
    num_steps = sum(r.times.num_steps for r in repetitions)
    wall_s = sum(r.wall_s for r in repetitions)
    phases = {
        name: sum(getattr(r.times, f"{name}_s") for r in repetitions) / num_steps * 1e3
        for name in ("schedule", "model", "sample")
    }
    phases["other"] = wall_s / num_steps * 1e3 - sum(phases.values())
    median = statistics.median(rates)
    return {
        "benchmark": kind,
        "model": parts.config.model.path,
        "device": parts.device.name,
        "arithmetic": parts.config.model.arithmetic,
        "deterministic": parts.config.deterministic,
        "torch_threads": torch.get_num_threads(),
        "batch_size": settings.batch_size,
        "prompt_len": settings.prompt_len,
        "num_steps": num_steps,
        "num_repeats": settings.num_repeats,
        "tokens_per_s": {"median": median, "min": rates[0], "max": rates[-1]},
        "step_ms": {"total": wall_s / num_steps * 1e3, **phases},
        "floor": _floor(parts, repetitions),
        "memory": _memory(parts),
        "versions": {name: v for name, v in package_versions().items() if v is not None},
        "git_revision": git_revision(),
    }


def _floor(parts: EngineParts, repetitions: list[_Repetition]) -> dict[str, float]:
    """Least time of an average step against its measured time."""
    num_steps = sum(r.times.num_steps for r in repetitions)
    rows_per_step = round(sum(r.times.num_tokens for r in repetitions) / num_steps)
    measured_s = sum(r.wall_s for r in repetitions) / num_steps
    dtype = Numerics(arithmetic=parts.config.model.arithmetic).compute_dtype
    bytes_per_s, flops_per_s = device_rates(parts.device, dtype)
    work = step_work(parts.model_config, rows_per_step, dtype.itemsize)
    floor_s = work.floor_s(bytes_per_s, flops_per_s)
    return {
        "rows_per_step": rows_per_step,
        "weight_bytes": work.weight_bytes,
        "flops": work.flops,
        "bytes_per_s": bytes_per_s,
        "flops_per_s": flops_per_s,
        "floor_ms": floor_s * 1e3,
        "measured_ms": measured_s * 1e3,
        "ratio": measured_s / floor_s,
    }


def _memory(parts: EngineParts) -> dict[str, int]:
    unit = 1 if sys.platform == "darwin" else 1024  # kilobytes on Linux
    memory = {
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "cache_bytes": parts.cache_bytes,
    }
    device_peak_bytes = parts.device.platform.peak_memory(parts.device.index)
    if device_peak_bytes is not None:
        memory["device_peak_bytes"] = device_peak_bytes
    return memory


def git_revision() -> str | None:
    """Revision of the source tree; None when installed from a wheel."""
    try:
        found = subprocess.run(  # fixed arguments
            ["git", "rev-parse", "HEAD"],  # noqa: S607  # whichever git the developer has
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return found.stdout.strip() or None
