"""The stage that fits the confidences of the exported drafter, in the engine.

Requests continue held-out documents, so that a prompt is computed once for many drafted blocks:
thousands of them are cheap on a CPU. Every other wave of requests fits the temperatures, the rest
judge them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.runner.request import EngineRequest
from di_engine.runner.speculation import StepVerification
from di_spec import ConfidenceCalibrator, calibration_error
from di_spec.sampling import SamplingParams
from di_spec.verify import VerifyMode
from tiny.stages import Log, Run
from tiny.state import save_state
from tiny.trials import held_out_contexts

_MODES: tuple[tuple[VerifyMode, float], ...] = (("ratio", 1.0), ("coupled", 1.0), ("greedy", 0.0))
_CONTEXT = 128
_NUM_TOKENS = 40
_REPEATS = 20

Floats = NDArray[np.floating[Any]]
Blocks = tuple[NDArray[np.int64], NDArray[np.int64], Floats]
"""Drafts verified and accepted of every block, [blocks], and confidence logits [blocks, R]."""


def run_calibration(run: Run, checkpoint: Path, num_blocks: int, log: Log) -> dict[str, Any]:
    """Fits and judges temperatures for every mode of verification.

    Args:
        run: Settings; `run.data` has the held-out documents, `run.out` receives what is found;
            `run.trial_batch` requests make a wave.
        checkpoint: The exported directory.
        num_blocks: Drafted blocks per mode, at least; half of them fit, half of them judge.
        log: Receives progress.

    Returns:
        By mode what `judge` returns.
    """
    found: dict[str, Any] = {}
    for mode, temperature in _MODES:
        parts = assemble(_config(checkpoint, mode, run.trial_batch))
        waves: list[Blocks] = []
        while len(waves) < 2 or sum(len(wave[0]) for wave in waves) < num_blocks:
            waves.append(_run_wave(parts, _prompts(run, len(waves)), temperature, len(waves)))
            done = sum(len(wave[0]) for wave in waves)
            log({"stage": "calibrate", "mode": mode, "waves": len(waves), "blocks": done})
        found[mode] = judge(mode, _joined(waves[::2]), _joined(waves[1::2]))
        log({"mode": mode, **found[mode]})
    save_state(run.out, "calibration", {}, found)
    return found


def judge(mode: VerifyMode, fitting: Blocks, judging: Blocks) -> dict[str, Any]:
    """Fits temperatures to some blocks and compares predictions with what became of others.

    `error_of_chance` is what predictions that are right would show with as many blocks: outcomes
    are drawn from the fitted predictions. The expected calibration error is biased upwards by it.

    Returns:
        Temperatures and numbers of blocks; calibration errors by position and over all.
    """
    fit = ConfidenceCalibrator.fit(mode, fitting[2], fitting[0], fitting[1])
    plain = ConfidenceCalibrator.identity(mode, judging[2].shape[1])
    verified, accepted, logits = judging
    places = np.arange(logits.shape[1])
    is_seen = verified[:, None] > places
    happened = accepted[:, None] > places
    fitted = np.cumprod(fit.apply(logits), axis=1)
    rng = np.random.default_rng(0)
    chance = [_errors(fitted, _draw(rng, fit.apply(logits)), is_seen) for _ in range(_REPEATS)]
    return {
        "temperatures": [round(value, 4) for value in fit.temperatures],
        "blocks_fitting": len(fitting[0]),
        "blocks_judging": len(verified),
        "mean_length": 1.0 + float(accepted[verified == logits.shape[1]].mean()),
        "error_before": _errors(np.cumprod(plain.apply(logits), axis=1), happened, is_seen),
        "error_after": _errors(fitted, happened, is_seen),
        "error_of_chance": {
            name: round(float(np.mean([draw[name] for draw in chance])), 4) for name in chance[0]
        },
    }


def _draw(rng: np.random.Generator, confidence: Floats) -> NDArray[np.bool_]:
    return np.logical_and.accumulate(rng.random(confidence.shape) < confidence, axis=1)


def _errors(
    predicted: Floats, happened: NDArray[np.bool_], is_seen: NDArray[np.bool_]
) -> dict[str, float]:
    """Calibration errors of the prefixes up to each position, and of all together."""
    errors = {
        str(place + 1): calibration_error(predicted[seen, place], happened[seen, place])
        for place, seen in enumerate(is_seen.T)
    }
    errors["all"] = calibration_error(predicted[is_seen], happened[is_seen])
    return {name: round(value, 4) for name, value in errors.items()}


def _config(checkpoint: Path, mode: VerifyMode, max_running: int) -> EngineConfig:
    values = {
        "model.path": str(checkpoint),
        "model.arithmetic": "float32",
        "scheduler.max_running": max_running,
        "speculation.drafter": "dspark",
        "speculation.verification": mode,
        "speculation.budget": "all",
    }
    return EngineConfig.load(overrides=values, environ={}, override_origin="argument")


def _prompts(run: Run, wave: int) -> list[NDArray[np.int32]]:
    stream = run.stream("held_out")
    begins, _ = held_out_contexts(stream, run.trial_batch, _CONTEXT, run.seed + 5 + wave)
    return [stream.tokens[begin : begin + _CONTEXT].astype(np.int32) for begin in begins]


def _run_wave(
    parts: EngineParts, prompts: list[NDArray[np.int32]], temperature: float, wave: int
) -> Blocks:
    steps: list[StepVerification] = []
    speculation = parts.engine.speculation
    assert speculation is not None, "the configuration has a drafter"
    speculation.on_verified = steps.append
    for index, prompt in enumerate(prompts):
        seed = wave * len(prompts) + index
        request = EngineRequest(
            request_id=f"{wave}-{index}",
            prompt_ids=prompt,
            sampling=SamplingParams(temperature=temperature, seed=seed),
            max_tokens=_NUM_TOKENS,
            ignore_eos=True,
            reads_prefix_cache=False,
        )
        parts.engine.add(request)
    while parts.engine.has_work:
        parts.engine.step()
    return (
        np.concatenate([step.num_verified for step in steps]),
        np.concatenate([step.num_accepted for step in steps]),
        np.concatenate([step.confidence for step in steps]),
    )


def _joined(waves: list[Blocks]) -> Blocks:
    verified, accepted, confidence = zip(*waves, strict=True)
    return np.concatenate(verified), np.concatenate(accepted), np.concatenate(confidence)
