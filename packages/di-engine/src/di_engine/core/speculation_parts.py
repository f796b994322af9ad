"""Builds what speculation needs around a model: drafter, budget, calibration, latency table."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from di_engine.cache import Cache
from di_engine.config import EngineConfig, ModelConfig
from di_engine.errors import ConfigError
from di_engine.model.backbone import Backbone
from di_engine.model.drafter import DraftingModel
from di_engine.platforms import Device
from di_engine.runner.drafting import DeviceDrafter, DsparkDrafter
from di_engine.runner.row_budget import AdaptiveRows, measure_latency
from di_engine.runner.slot_state import SlotState
from di_engine.runner.speculation import Speculation
from di_scheduler import RowBudget, SchedulerConfig
from di_spec import (
    BudgetPlanner,
    CalibrationError,
    ConfidenceCalibrator,
    CostModel,
    LatencyCache,
    LatencyKey,
    LatencyTable,
    NgramDrafter,
)

logger = logging.getLogger(__name__)

__all__ = ["DraftSource", "build_speculation", "drafter_name", "overlaps"]


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Drafts and budgets from elsewhere, for experiments and tests.

    Attributes:
        wrap: Makes the drafter to use of the configured one.
        row_budget: Rows per request in place of the configured budget.
    """

    wrap: Callable[[DeviceDrafter], DeviceDrafter] | None = None
    row_budget: RowBudget | None = None


def drafter_name(config: EngineConfig) -> str:
    """What a calibration of the configured drafter is saved under."""
    revision = f" at {config.model.revision}" if config.model.revision else ""
    return f"{config.speculation.drafter} of {config.model.path}{revision}"


def overlaps(config: EngineConfig) -> bool:
    """Whether steps overlap: as configured, except that n-grams read every token on the host."""
    return config.scheduler.overlap and config.speculation.drafter != "ngram"


def build_speculation(
    config: EngineConfig,
    model_config: ModelConfig,
    scheduler_config: SchedulerConfig,
    model: Backbone | DraftingModel,
    cache: Cache,
    device: Device,
    source: DraftSource | None = None,
) -> tuple[Speculation | None, RowBudget | None]:
    """Builds speculation as configured.

    Args:
        config: Filled configuration.
        model_config: The model.
        scheduler_config: Limits of the scheduler.
        model: The model; a `DraftingModel` for `dspark`.
        cache: Its cache.
        device: Where it runs.
        source: What replaces drafter or budget.

    Returns:
        None and None without drafts; no budget where every draft is verified.

    Raises:
        ConfigError: The calibration does not fit.
    """
    section, num_drafts = config.speculation, scheduler_config.num_draft_tokens
    mode = section.verification
    if num_drafts == 0 or mode is None:
        return None, None
    source = source or DraftSource()
    planner = row_budget = None
    if source.row_budget is not None:
        row_budget = source.row_budget
    elif section.budget == "adaptive":
        table = _latency_table(config, model_config, scheduler_config, model, cache, device)
        # Overlapped steps are planned before the newest survivals are known.
        planner = BudgetPlanner(CostModel(table), lag=0 if overlaps(config) else 1)
        row_budget = AdaptiveRows(planner)
    drafter: DeviceDrafter | None = None
    if isinstance(model, DraftingModel):
        drafter = DsparkDrafter(
            model.drafter,
            cache,
            num_draft_tokens=num_drafts,
            mode=mode,
            vocab_size=model_config.vocab_size,
        )
        if source.wrap is not None:
            drafter = source.wrap(drafter)
    speculation = Speculation(
        SlotState(scheduler_config.state_slots, num_drafts, device.torch_device),
        num_draft_tokens=num_drafts,
        mode=mode,
        drafter=drafter,
        host_drafter=NgramDrafter(num_drafts) if drafter is None else None,
        calibrator=_calibrator(config),
        planner=planner,
    )
    return speculation, row_budget


def _calibrator(config: EngineConfig) -> ConfidenceCalibrator | None:
    section = config.speculation
    if section.calibration is None or section.verification is None:
        return None
    try:
        calibrator = ConfidenceCalibrator.load(
            section.calibration, drafter_name(config), section.verification
        )
    except CalibrationError as error:
        raise ConfigError(f"`speculation.calibration`: {error}") from error
    if len(calibrator.temperatures) < (section.num_draft_tokens or 0):
        raise ConfigError(
            f"`speculation.calibration` has {len(calibrator.temperatures)} positions and "
            f"`speculation.num_draft_tokens` is {section.num_draft_tokens}: fit again with as many "
            "drafts, or use fewer"
        )
    return calibrator


def _latency_table(
    config: EngineConfig,
    model_config: ModelConfig,
    scheduler_config: SchedulerConfig,
    model: Backbone | DraftingModel,
    cache: Cache,
    device: Device,
) -> LatencyTable:
    """The table of a start before this one, if it was kept and is fresh; else a new one."""
    key = LatencyKey(
        device=device.name,
        model=hashlib.sha256(repr(model_config).encode()).hexdigest(),
        settings={
            "num_draft_tokens": scheduler_config.num_draft_tokens,
            "max_running": scheduler_config.max_running,
            "arithmetic": config.model.arithmetic,
            "cache_storage": config.cache.storage,
            "deterministic": config.deterministic,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        },
    )
    directory = config.speculation.latency_dir
    kept = None if directory is None else LatencyCache(directory)
    table = None if kept is None else kept.find(key)
    if table is not None:
        return table
    table = measure_latency(
        model,
        cache,
        max_running=scheduler_config.max_running,
        num_draft_tokens=scheduler_config.num_draft_tokens,
        ngram_size=model_config.engram_max_ngram_size if model_config.engram_layer_ids else 0,
        synchronize=device.synchronize,
    )
    if kept is not None:
        try:
            kept.save(key, table)
        except OSError as error:
            logger.warning("the latency table is not kept: %s", error)
    return table
