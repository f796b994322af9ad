"""A whole engine around the counting model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, LoadProgress
from di_engine.core.engine import Engine
from di_engine.core.metrics import EngineMetrics
from di_engine.core.step_timer import StepTimer
from di_engine.llm.grammars import Grammars
from di_engine.llm.request_manager import RequestManager
from di_engine.platforms import resolve_device
from di_engine.runner.model_runner import ModelRunner
from di_engine.runner.speculation import Speculation
from di_engine.runner.sync_guard import forbid_host_sync
from di_engine.testing.byte_tokenizer import ByteTokenizer
from di_engine.testing.counting_model import CountingModel
from di_scheduler import RowBudget, Scheduler, SchedulerConfig

__all__ = ["CountingEngine"]


class _ByteModelConfig:
    """The facts that are read from a model configuration outside the model."""

    vocab_size = ByteTokenizer.vocab_size
    eos_token_id = ByteTokenizer.eos_token_id


class CountingEngine:
    """Scheduler, runner, step loop and request handling around a `CountingModel`.

    Attributes:
        model: The model; its `batches` show what was run.
        scheduler: The scheduler.
        runner: The runner.
        engine: The step loop.
        metrics: What the scheduler reports.
        requests: What `LLM` is made of.
    """

    def __init__(
        self,
        *,
        nan_after: Collection[int] = (),
        clock: Callable[[], float] = lambda: 0.0,
        overlap: bool = False,
        grammars: Grammars | None = None,
        speculate: Callable[[SchedulerConfig], Speculation] | None = None,
        row_budget: RowBudget | None = None,
        forbids_syncs: bool = False,
        **scheduler: Any,
    ) -> None:
        """Builds the engine.

        Args:
            nan_after: Tokens after which the model fails.
            clock: Seconds, for step times and request times.
            overlap: Whether steps overlap.
            grammars: Compiles what requests ask of their output.
            speculate: Makes drafts and verification for the scheduler's limits.
            row_budget: Rows per request; None verifies every draft.
            forbids_syncs: Whether reading device values while a step is enqueued is an error.
            **scheduler: Fields of `SchedulerConfig` that differ from the small defaults.
        """
        tokenizer = ByteTokenizer()
        vocab_size = tokenizer.vocab_size
        eos_token_ids = (tokenizer.eos_token_id,)
        settings: dict[str, Any] = {
            "max_model_len": 512,
            "num_blocks": 64,
            "max_running": 8,
            "max_tokens_per_step": 64,
            "eos_token_ids": eos_token_ids,
            "vocab_size": vocab_size,
        }
        settings |= scheduler
        self._max_model_len: int = settings["max_model_len"]
        self.model = CountingModel(vocab_size, nan_after=nan_after)
        self.metrics = EngineMetrics()
        config = SchedulerConfig(**settings)
        self.scheduler = Scheduler(config, row_budget=row_budget, metrics=self.metrics)
        runner = ModelRunner(
            self.model,
            None,
            vocab_size=vocab_size,
            history_len=2,
            num_state_slots=self.scheduler.config.state_slots,
            device=torch.device("cpu"),
            sync_guard=(
                partial(forbid_host_sync, resolve_device("cpu")) if forbids_syncs else nullcontext
            ),
            clock=clock,
            speculation=None if speculate is None else speculate(config),
        )
        self.runner = runner
        self.engine = Engine(self.scheduler, runner, timer=StepTimer(clock), overlap=overlap)
        self.requests = RequestManager(
            self.engine,
            tokenizer,
            vocab_size=vocab_size,
            max_model_len=settings["max_model_len"],
            eos_token_ids=eos_token_ids,
            clock=clock,
            grammars=grammars,
        )

    def assemble(self, config: EngineConfig, progress: LoadProgress | None = None) -> EngineParts:
        """Stands in for `di_engine.core.assembly.assemble`: this engine, whatever the model."""
        if progress is not None:
            progress(1, 1, "nothing")
        model: Any = config.model.model_copy(update={"max_model_len": self._max_model_len})
        model_config: Any = _ByteModelConfig()
        tokenizer: Any = ByteTokenizer()
        return EngineParts(
            self.engine,
            config.model_copy(update={"model": model}),
            model_config,
            tokenizer,
            resolve_device("cpu"),
            cache_bytes=0,
            metrics=self.metrics,
        )
