"""Builds an engine from its configuration: device, model, cache, scheduler, runner."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from di_engine.cache import Cache, CacheLayout, RingSnapshots
from di_engine.checkpoint import (
    Part,
    Resident,
    TensorSource,
    dummy_source,
    open_checkpoint,
    resolve_model,
)
from di_engine.config import EngineConfig, ModelConfig
from di_engine.core.engine import Engine
from di_engine.core.metrics import EngineMetrics
from di_engine.core.speculation_parts import DraftSource, build_speculation, overlaps
from di_engine.core.step_timer import StepTimer
from di_engine.errors import CapacityError, CheckpointError
from di_engine.model.backbone import Backbone
from di_engine.model.drafter import Drafter, DraftingModel
from di_engine.model.numerics import Numerics
from di_engine.model.token_map import build_token_map
from di_engine.platforms import Device, resolve_device
from di_engine.runner.model_runner import ModelRunner
from di_engine.runner.sync_guard import forbid_host_sync
from di_engine.tokenizer import Tokenizer
from di_scheduler import Scheduler, SchedulerConfig

__all__ = ["EngineParts", "LoadProgress", "assemble", "pool_blocks"]

logger = logging.getLogger(__name__)

LoadProgress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, what) while weights are fetched or read."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """An engine and what its users need beside it.

    Attributes:
        engine: The step loop.
        config: Configuration with every default filled in.
        model_config: The checkpoint's own configuration.
        tokenizer: The checkpoint's tokenizer, or None if it has none.
        device: Where the model runs.
        cache_bytes: Memory of blocks, state slots and snapshots.
        metrics: Counters, gauges and request times.
    """

    engine: Engine
    config: EngineConfig
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    device: Device
    cache_bytes: int
    metrics: EngineMetrics = field(default_factory=EngineMetrics)


def assemble(
    config: EngineConfig,
    progress: LoadProgress | None = None,
    draft_source: DraftSource | None = None,
) -> EngineParts:
    """Loads a model and builds the engine around it.

    Args:
        config: How to run it.
        progress: Told how loading goes on.
        draft_source: Drafts or row budgets in place of the configured ones, for experiments.

    Raises:
        ConfigError, CheckpointError, CapacityError, UnsupportedEnvironmentError: As the message
            says; nothing is left behind.
    """
    device = resolve_device(config.device)
    directory = resolve_model(config.model.path, config.model.revision, progress=progress)
    model_config = ModelConfig.from_directory(directory)
    config = config.with_model(model_config)
    numerics = Numerics(
        arithmetic=config.model.arithmetic,
        cache_storage=config.cache.storage,
        global_format=config.cache.global_format or model_config.global_format,
        deterministic=config.deterministic,
    )
    tokenizer = _load_tokenizer(config, directory, model_config)
    model = _load_model(config, directory, model_config, numerics, device, tokenizer, progress)
    lookahead, with_drafter = _lookahead(config), isinstance(model, DraftingModel)
    layout = CacheLayout.from_config(
        model_config, numerics, lookahead=lookahead, with_drafter=with_drafter
    )
    scheduler_config = _scheduler_config(config, model_config, layout, device)
    cache = Cache.allocate(
        model_config,
        numerics,
        num_blocks=scheduler_config.num_blocks,
        num_state_slots=scheduler_config.state_slots,
        device=device.torch_device,
        lookahead=lookahead,
        with_drafter=with_drafter,
    )
    snapshots = None
    if scheduler_config.num_snapshot_slots:
        snapshots = RingSnapshots(
            layout,
            scheduler_config.num_snapshot_slots,
            device.torch_device,
            _kept_layers(config, model_config),
        )
    speculation, row_budget = build_speculation(
        config, model_config, scheduler_config, model, cache, device, draft_source
    )
    forbids_syncs = config.observability.forbid_host_syncs
    runner = ModelRunner(
        model,
        cache,
        vocab_size=model_config.vocab_size,
        history_len=max(0, model_config.engram_max_ngram_size - 1),
        num_state_slots=scheduler_config.state_slots,
        device=device.torch_device,
        snapshots=snapshots,
        truncation=config.prefill.truncation,
        num_mask_threads=config.structured.mask_threads,
        make_event=lambda: device.platform.event(device.index),
        sync_guard=partial(forbid_host_sync, device) if forbids_syncs else nullcontext,
        speculation=speculation,
    )
    metrics = EngineMetrics()
    metrics.speculation = None if speculation is None else speculation.metrics
    engine = Engine(
        Scheduler(scheduler_config, row_budget=row_budget, metrics=metrics),
        runner,
        timer=StepTimer(),
        overlap=overlaps(config),
        log_every_steps=config.observability.log_every_steps,
    )
    cache_bytes = cache.num_bytes + (0 if snapshots is None else snapshots.num_bytes)
    return EngineParts(engine, config, model_config, tokenizer, device, cache_bytes, metrics)


def pool_blocks(
    wanted: int,
    available_bytes: int,
    layout: CacheLayout,
    num_state_slots: int,
    num_snapshot_slots: int = 0,
    num_kept_layers: int | None = None,
) -> int:
    """Number of cache blocks that are wanted and fit.

    Args:
        wanted: Blocks at which no request can ever lack one.
        available_bytes: Memory that the cache may take.
        layout: Sizes of a block and of a state slot.
        num_state_slots: State slots that come out of the same memory.
        num_snapshot_slots: Saved window rings that come out of it too.
        num_kept_layers: Layers of a saved ring; None for all.

    Raises:
        CapacityError: If not even one block fits beside the state slots.
    """
    state_bytes = num_state_slots * layout.bytes_per_state_slot
    snapshot_bytes = num_snapshot_slots * RingSnapshots.bytes_per_slot(layout, num_kept_layers)
    fitting = (available_bytes - state_bytes - snapshot_bytes) // max(1, layout.bytes_per_block)
    if fitting < 2:
        raise CapacityError(
            f"the cache does not fit: {num_state_slots} state slots take {state_bytes} bytes, "
            f"{num_snapshot_slots} snapshots {snapshot_bytes} and a block "
            f"{layout.bytes_per_block}, {available_bytes} bytes are available; lower "
            "`scheduler.max_running` or `cache.snapshot_slots`, or raise `cache.memory_fraction`"
        )
    return min(wanted, fitting)


def _lookahead(config: EngineConfig) -> int:
    """Ring entries beyond the window: rows that may be taken back.

    A ring is saved at a block boundary after the steps that may have run past it: the one in which
    the boundary was crossed and, with overlap, the one in flight.
    """
    num_drafts = config.speculation.num_draft_tokens or 0
    if not (config.cache.prefix_cache and config.cache.snapshot_slots):
        return num_drafts
    return (num_drafts + 1) * (2 if overlaps(config) else 1)


def _kept_layers(config: EngineConfig, model_config: ModelConfig) -> int | None:
    """Layers whose rings are saved, the first ones; None for all, those of the drafter included."""
    return None if config.prefill.truncation == "off" else model_config.decoder_start


def _scheduler_config(
    config: EngineConfig, model_config: ModelConfig, layout: CacheLayout, device: Device
) -> SchedulerConfig:
    scheduler, cache = config.scheduler, config.cache
    max_model_len, max_tokens_per_step = config.model.max_model_len, scheduler.max_tokens_per_step
    assert max_model_len is not None, "filled by `with_model`"
    assert max_tokens_per_step is not None, "filled by `with_model`"
    num_state_slots = math.floor(scheduler.max_running * cache.state_slot_ratio) + 2
    num_snapshot_slots = cache.snapshot_slots if cache.prefix_cache else 0
    # What a drafter reads lies one layer lower, so that its windows add nothing to a replay.
    num_window_layers = model_config.num_hidden_layers
    if config.prefill.truncation != "off":
        # The decoder half runs the same rows whatever is cached: only the layers below it count.
        assert model_config.decoder_start is not None, "checked by `with_model`"
        num_window_layers = model_config.decoder_start
    exact_replay = (model_config.sliding_window - 1) * num_window_layers
    num_blocks = cache.num_blocks
    if num_blocks is None:
        available = device.available_memory() * cache.memory_fraction
        per_request = math.ceil(max_model_len / cache.block_size) + 1
        num_blocks = pool_blocks(
            scheduler.max_running * per_request + 1,
            int(available),
            layout,
            num_state_slots,
            num_snapshot_slots,
            _kept_layers(config, model_config),
        )
    return SchedulerConfig(
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        max_running=scheduler.max_running,
        max_tokens_per_step=max_tokens_per_step,
        block_size=cache.block_size,
        num_state_slots=num_state_slots,
        num_draft_tokens=config.speculation.num_draft_tokens or 0,
        drafts_after_prefill=True,
        chunked_prefill=scheduler.chunked_prefill,
        policy=scheduler.policy,
        preemption=scheduler.preemption,
        priority_aging=scheduler.priority_aging,
        eos_token_ids=(model_config.eos_token_id,),
        vocab_size=model_config.vocab_size,
        prefix_cache=cache.prefix_cache,
        window_size=model_config.sliding_window,
        num_window_layers=num_window_layers,
        keep_tokens=config.prefill.keep_tokens or 0,
        replay=cache.replay,
        num_snapshot_slots=num_snapshot_slots,
        snapshot_min_gain=min(2 * cache.block_size, max(1, exact_replay)),
        ring_slack=layout.ring_len - model_config.sliding_window,
    )


def _load_tokenizer(
    config: EngineConfig, directory: Path, model_config: ModelConfig
) -> Tokenizer | None:
    source = Path(config.model.tokenizer) if config.model.tokenizer else directory
    if not (source / "tokenizer.json").is_file():
        if config.model.tokenizer:
            raise CheckpointError(
                f"`model.tokenizer` has no `tokenizer.json`: {source}; give the directory of a "
                "tokenizer or leave it out"
            )
        logger.warning("`%s` has no `tokenizer.json`: only token ids can be served", source)
        return None
    return Tokenizer.from_directory(source, model_config)


def _load_model(
    config: EngineConfig,
    directory: Path,
    model_config: ModelConfig,
    numerics: Numerics,
    device: Device,
    tokenizer: Tokenizer | None,
    progress: LoadProgress | None,
) -> Backbone | DraftingModel:
    """The text model, with its drafter where that is used."""
    uses_drafter = config.speculation.drafter == "dspark" and config.speculation.num_draft_tokens
    parts: tuple[Part, ...] = ("text", "drafter") if uses_drafter else ("text",)
    is_dummy = config.model.load_format == "dummy"
    source: TensorSource
    if is_dummy:
        source = dummy_source(model_config, parts=parts, seed=config.seed)
    else:
        source = open_checkpoint(
            directory,
            model_config,
            parts=parts,
            resident=_resident_format(numerics, device),
            available_bytes=device.available_memory(),
            progress=progress,
        )
    with source:
        backbone = Backbone.load(
            model_config,
            source,
            numerics,
            device.torch_device,
            token_map=_token_map(model_config, tokenizer, is_dummy),
        )
        if not uses_drafter:
            return backbone
        return DraftingModel(backbone, Drafter.load(model_config, source, backbone))


def _resident_format(numerics: Numerics, device: Device) -> Resident:
    """How weights are kept: widened once on a CPU, as stored where kernels unpack them."""
    if device.torch_device.type != "cpu":
        return "stored"
    return "bfloat16" if numerics.arithmetic == "native" else numerics.arithmetic


def _token_map(
    model_config: ModelConfig, tokenizer: Tokenizer | None, is_dummy: bool
) -> npt.NDArray[np.int64] | None:
    """Compressed id of each token for the n-gram tables; None if the model has none."""
    if not model_config.engram_layer_ids:
        return None
    if tokenizer is not None:
        return build_token_map(tokenizer.backend, model_config.vocab_size)
    if not is_dummy:
        raise CheckpointError(
            "the model has Engram layers, whose lookup is made from the tokenizer, and no "
            "`tokenizer.json` was found: give its directory as `model.tokenizer`"
        )
    return np.arange(model_config.vocab_size) % model_config.engram_compressed_vocab_size
