"""What speculation brings: acceptance, rows, expectation against outcome, tokens per second."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from di_engine.bench.throughput import git_revision
from di_engine.bench.variants import variant
from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.core.speculation_parts import drafter_name
from di_engine.doctor import package_versions
from di_engine.errors import InvalidRequestError
from di_engine.runner.request import EngineRequest
from di_engine.runner.speculation import StepVerification
from di_spec import ConfidenceCalibrator
from di_spec.sampling import SamplingParams

__all__ = ["SpeculationSettings", "bench_speculation"]


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """What to measure.

    Attributes:
        batch_size: Requests side by side.
        num_tokens: Output tokens of each.
        temperature: Of every request; 0 is greedy.
        num_repeats: Runs with and without drafts, in turn; the median counts.
        prompt_len: Tokens of random prompts, where none are given.
    """

    batch_size: int = 1
    num_tokens: int = 64
    temperature: float = 0.0
    num_repeats: int = 3
    prompt_len: int = 64


class _Verifications:
    """Collects what steps verify."""

    def __init__(self) -> None:
        self.steps: list[StepVerification] = []

    def __call__(self, step: StepVerification) -> None:
        self.steps.append(step)

    def rows_per_step(self) -> dict[str, int]:
        """How many steps had how many rows of decoding requests."""
        counts = Counter(int((step.num_verified + 1).sum()) for step in self.steps)
        return {str(rows): counts[rows] for rows in sorted(counts)}

    def by_position(self) -> list[dict[str, Any]]:
        """Predicted and observed chance that a verified draft is reached and accepted."""
        verified, accepted, survival, _ = self._flat()
        positions = []
        for place in range(survival.shape[1]):
            is_seen = verified > place
            count = int(is_seen.sum())
            positions.append(
                {
                    "position": place + 1,
                    "num_verified": count,
                    "predicted": float(survival[is_seen, place].mean()) if count else None,
                    "observed": float((accepted[is_seen] > place).mean()) if count else None,
                }
            )
        return positions

    def fit(self, config: EngineConfig) -> ConfidenceCalibrator:
        """Temperatures that make the confidences come true."""
        mode = config.speculation.verification
        assert mode is not None, "filled where there are drafts"
        verified, accepted, _, confidence = self._flat()
        return ConfidenceCalibrator.fit(mode, confidence, verified, accepted)

    def _flat(self) -> tuple[npt.NDArray[Any], ...]:
        names = ("num_verified", "num_accepted", "survival", "confidence")
        return tuple(np.concatenate([getattr(step, name) for step in self.steps]) for name in names)


def bench_speculation(
    config: EngineConfig,
    settings: SpeculationSettings,
    prompts: Sequence[str] = (),
    calibration_file: Path | None = None,
) -> dict[str, Any]:
    """Runs the same requests without drafts and with them, in turn.

    Args:
        config: The engine, with a drafter.
        settings: What to measure.
        prompts: Texts, used in turn; random token ids if empty.
        calibration_file: Where to save temperatures fitted to what was observed.

    Raises:
        InvalidRequestError: Without a drafter, or if the requests do not fit the model's length.
    """
    if config.speculation.drafter == "none":
        raise InvalidRequestError(
            "nothing is drafted: give `--drafter dspark` or `--drafter ngram`",
            param="speculation.drafter",
        )
    unused = {"num_draft_tokens": None, "verification": None, "budget": None}
    plain = assemble(variant(config, drafter="none", calibration=None, **unused))
    drafted = assemble(config)
    requests = _requests(drafted, settings, prompts)
    verifications = _Verifications()
    speculation = drafted.engine.speculation
    if speculation is None:
        raise InvalidRequestError(
            "nothing is drafted: `speculation.num_draft_tokens` is 0",
            param="speculation.num_draft_tokens",
        )
    speculation.on_verified = verifications
    rates: dict[str, list[float]] = {"plain": [], "speculative": []}
    outputs: dict[str, list[list[int]]] = {}
    for _ in range(settings.num_repeats):
        for name, parts in (("plain", plain), ("speculative", drafted)):
            outputs[name], rate = _run(parts, requests)
            rates[name].append(rate)
    if calibration_file is not None:
        fit = verifications.fit(drafted.config)
        fit.save(calibration_file, drafter_name(drafted.config))
    same = [a == b for a, b in zip(outputs["plain"], outputs["speculative"], strict=True)]
    section = drafted.config.speculation
    return {
        "benchmark": "speculation",
        "model": config.model.path,
        "device": drafted.device.name,
        "arithmetic": config.model.arithmetic,
        "deterministic": config.deterministic,
        "torch_threads": torch.get_num_threads(),
        "drafter": section.drafter,
        "num_draft_tokens": section.num_draft_tokens,
        "verification": section.verification,
        "budget": section.budget,
        "batch_size": settings.batch_size,
        "num_tokens": settings.num_tokens,
        "temperature": settings.temperature,
        "prompts": "given" if prompts else f"{settings.prompt_len} random token ids",
        "tokens_per_s": {
            **{name: _spread(values) for name, values in rates.items()},
            "ratio": statistics.median(rates["speculative"]) / statistics.median(rates["plain"]),
        },
        "share_of_equal_outputs": sum(same) / len(same),
        **speculation.metrics.summary(),
        "survival_at": verifications.by_position(),
        "rows_per_step": verifications.rows_per_step(),
        "versions": {name: v for name, v in package_versions().items() if v is not None},
        "git_revision": git_revision(),
    }


def _requests(
    parts: EngineParts, settings: SpeculationSettings, prompts: Sequence[str]
) -> list[EngineRequest]:
    rng = np.random.default_rng(0)
    vocab_size = parts.model_config.vocab_size
    tokenizer = parts.tokenizer
    if prompts and tokenizer is None:
        raise InvalidRequestError("the model has no tokenizer: leave `--prompts` out")
    requests = []
    for index in range(settings.batch_size):
        if prompts and tokenizer is not None:
            text = prompts[index % len(prompts)]
            prompt_ids = np.array(tokenizer.encode(text, add_special_tokens=True), np.int32)
        else:
            prompt_ids = rng.integers(0, vocab_size, settings.prompt_len, dtype=np.int32)
        length, limit = len(prompt_ids) + settings.num_tokens, parts.config.model.max_model_len
        if limit is not None and length > limit:
            raise InvalidRequestError(
                f"prompt and output of a request are {length} tokens, `model.max_model_len` is "
                f"{limit}: raise it, shorten the prompts or lower `--num-tokens`",
                param="num_tokens",
            )
        requests.append(
            EngineRequest(
                request_id=f"speculation-{index}",
                prompt_ids=prompt_ids,
                sampling=SamplingParams(temperature=settings.temperature, seed=index),
                max_tokens=settings.num_tokens,
                ignore_eos=True,
                reads_prefix_cache=False,  # every repetition computes the same prompts
            )
        )
    return requests


def _run(parts: EngineParts, requests: list[EngineRequest]) -> tuple[list[list[int]], float]:
    """Outputs of the requests, and tokens per second from their first tokens on."""
    engine, clock = parts.engine, parts.engine.timer.clock
    outputs: dict[str, list[int]] = {}
    for request in requests:
        outputs[request.request_id] = []
        engine.add(request)
    begin_s, num_before = clock(), 0
    is_started = False
    while engine.has_work:
        for event in engine.step():
            outputs[event.request_id] += event.token_ids
        if not is_started and all(outputs.values()):
            is_started = True
            begin_s, num_before = clock(), sum(map(len, outputs.values()))
    num_tokens = sum(map(len, outputs.values())) - num_before
    return list(outputs.values()), num_tokens / max(clock() - begin_s, 1e-9)


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
