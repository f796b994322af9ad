"""`EngineConfig`: how a model is run. One typed tree, whose every value knows where it came from.

The names are the same as Python keywords, YAML keys, command line flags and environment variables
(`DI_SECTION__FIELD`, or `DI_FIELD` for the fields outside a section). Later sources win: default,
YAML file, environment, flag. This module is the only one that reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from di_engine.config.contradictions import check_engine, check_engine_with_model, least_keep_tokens
from di_engine.config.model_config import ModelConfig
from di_engine.config.origins import (
    ConfigField,
    Layer,
    describe_errors,
    merge,
    read_environment,
    read_file,
    resolve_names,
)
from di_engine.errors import ConfigError

__all__ = [
    "CacheSection",
    "EngineConfig",
    "ModelSection",
    "ObservabilitySection",
    "PrefillSection",
    "SchedulerSection",
    "SpeculationSection",
    "StructuredSection",
]

DEFAULT_MODEL_LEN = 4096
DEFAULT_STEP_TOKENS = 4096
DEFAULT_NGRAM_DRAFTS = 5


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSection(_Section):
    """Which model, and in which arithmetic."""

    path: str = Field(
        default="tiny",
        min_length=1,
        description="checkpoint directory, hub id with `model.revision`, or `tiny` (built in)",
    )
    revision: str | None = Field(
        default=None,
        description="commit of a hub id, 40 hexadecimal digits",
    )
    tokenizer: str | None = Field(
        default=None, description="directory with `tokenizer.json`; the model's own when absent"
    )
    load_format: Literal["auto", "dummy"] = Field(
        default="auto", description="`auto` reads safetensors, `dummy` makes synthetic weights"
    )
    arithmetic: Literal["native", "float32", "float64"] = Field(
        default="native",
        description="`native`: BF16 with MXFP8 activations, as released",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="tokens of prompt plus output; when absent 4096 at most",
    )


class CacheSection(_Section):
    """How keys and values are kept."""

    storage: Literal["packed", "compute"] = Field(
        default="packed",
        description="`packed` quantised records, or `compute`: the arithmetic's dtype",
    )
    global_format: Literal["fp4", "mxfp8"] | None = Field(
        default=None,
        description="packed records; the checkpoint's choice when absent",
    )
    block_size: Literal[128] = Field(default=128, description="tokens per block")
    num_blocks: int | None = Field(
        default=None,
        ge=2,
        description="blocks of the pool; sized by memory when absent",
    )
    memory_fraction: float = Field(
        default=0.9, gt=0, le=1, description="share of device memory for weights and cache together"
    )
    state_slot_ratio: float = Field(
        default=1.2, ge=1, description="state slots per request of `scheduler.max_running`"
    )
    prefix_cache: bool = Field(
        default=True, description="requests with the same prefix share its blocks"
    )
    replay: Literal["exact", "approximate"] = Field(
        default="exact",
        description="how a hit without saved rings rebuilds its windows: `exact` recomputes "
        "(window - 1) x layers tokens, `approximate` one window",
    )
    snapshot_slots: int = Field(
        default=64, ge=0, description="saved window rings, for hits without replay; 0 is none"
    )


class SchedulerSection(_Section):
    """How requests share the steps."""

    max_running: int = Field(default=256, ge=1, description="requests that run at the same time")
    max_tokens_per_step: int | None = Field(
        default=None, ge=1, description="rows of one step; default max(`model.max_model_len`, 4096)"
    )
    chunked_prefill: bool = Field(default=True, description="a prompt may be spread over steps")
    policy: Literal["mixed", "prefill_first", "decode_first"] = Field(
        default="mixed", description="which rows a step takes first"
    )
    priority_aging: int = Field(
        default=0,
        ge=0,
        description="steps of waiting that make up for one level of priority; 0 is never",
    )
    preemption: Literal["recompute", "abort"] = Field(
        default="recompute", description="what happens to a request when blocks run out"
    )
    overlap: bool = Field(
        default=True, description="the host books a step while the device runs the next"
    )


class PrefillSection(_Section):
    """How much of a prompt the decoder half of the model runs."""

    truncation: Literal["off", "mask", "compact"] = Field(
        default="off",
        description="layers behind the last KV source run all prompt tokens (`off`) or the last "
        "`prefill.keep_tokens`: `mask` hides the others' window keys, `compact` drops their rows; "
        "approximate",
    )
    keep_tokens: int | None = Field(
        default=None,
        ge=1,
        description="prompt tokens that a truncated prefill keeps; when absent the least allowed, "
        "the window and what may be taken back",
    )


class SpeculationSection(_Section):
    """Whether tokens are drafted, and how drafts are verified."""

    drafter: Literal["none", "dspark", "ngram"] = Field(
        default="none",
        description="`dspark`: the checkpoint's `mtp.*` blocks; `ngram`: repeats of the request's "
        "own text, without overlap of steps",
    )
    num_draft_tokens: int | None = Field(
        default=None,
        ge=0,
        le=16,
        description="drafts that a request verifies in a step; the trained block, or 5 with "
        "`ngram`, when absent; 0 turns drafting off",
    )
    verification: Literal["coupled", "greedy", "ratio", "block"] | None = Field(
        default=None,
        description="`coupled`: the tokens are those without drafts; `ratio`, `block`: the "
        "distribution is; `greedy`: for temperature 0 only. `coupled` with `deterministic`, else "
        "`ratio`, when absent",
    )
    budget: Literal["adaptive", "all"] = Field(
        default="adaptive",
        description="`adaptive` verifies the drafts that pay by a measured latency table, `all` "
        "every draft",
    )
    latency_dir: str | None = Field(
        default=None,
        description="directory that keeps latency tables; measured at every start when absent",
    )
    calibration: str | None = Field(
        default=None,
        description="file with temperatures of the confidences, from `di bench spec "
        "--save-calibration`; 1 when absent",
    )


class StructuredSection(_Section):
    """How grammars of constrained outputs are compiled and followed."""

    compile_workers: int = Field(
        default=1, ge=1, description="grammars that compile at a time, each in its own process"
    )
    compile_timeout_s: float = Field(
        default=20.0, gt=0, description="seconds that one grammar may take to compile"
    )
    compile_memory_bytes: int = Field(
        default=2 << 30, ge=1 << 20, description="memory that one grammar may take to compile"
    )
    grammar_cache_bytes: int = Field(
        default=512 << 20, ge=0, description="memory for compiled grammars; 0 keeps none"
    )
    preload_compiler: bool = Field(
        default=False,
        description="start the compile process with the engine (seconds, 0.6 GB), not with the "
        "first request that needs it",
    )
    mask_threads: int = Field(default=1, ge=1, description="threads that fill token masks")


class ObservabilitySection(_Section):
    """What is reported while the engine runs."""

    log_every_steps: int = Field(
        default=100, ge=0, description="steps between log lines with statistics; 0 is never"
    )
    step_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="seconds after which a step counts as stuck; `AsyncLLM` then ends its requests",
    )
    forbid_host_syncs: bool = Field(
        default=False,
        description="a host that waits for the device while a step is enqueued is an error (slow)",
    )


class EngineConfig(BaseModel):
    """The whole configuration of an engine. Frozen; `load` merges the sources.

    Raises:
        ConfigError: From every way of construction, listing each unknown key, bad value and
            contradiction.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: ModelSection = ModelSection()
    cache: CacheSection = CacheSection()
    scheduler: SchedulerSection = SchedulerSection()
    prefill: PrefillSection = PrefillSection()
    speculation: SpeculationSection = SpeculationSection()
    structured: StructuredSection = StructuredSection()
    observability: ObservabilitySection = ObservabilitySection()
    device: str = Field(
        default="auto", min_length=1, description="`auto`, `cpu`, `cuda`, `cuda:1`, ..."
    )
    deterministic: bool = Field(
        default=False, description="same request and seed, same tokens, whatever else runs"
    )
    seed: int = Field(default=0, ge=0, description="base of the seeds of requests that bring none")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(describe_errors(error, self.fields())) from None
        self._origins = dict.fromkeys(_given(values), "argument")
        problems = check_engine(self)
        if problems:
            raise _error(problems)

    @field_validator("model", mode="before")
    @classmethod
    def _accept_model_path(cls, value: object) -> object:
        """`model: DIR` is short for `model: {path: DIR}`."""
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @classmethod
    def fields(cls) -> dict[str, ConfigField]:
        """Returns every field by its `section.field` path, with type, default and help."""
        fields = {}
        for name, info in cls.model_fields.items():
            section = info.annotation
            if isinstance(section, type) and issubclass(section, _Section):
                for leaf, leaf_info in section.model_fields.items():
                    fields[f"{name}.{leaf}"] = ConfigField.of(leaf_info)
            else:
                fields[name] = ConfigField.of(info)
        return fields

    @classmethod
    def from_flat(cls, **values: Any) -> EngineConfig:
        """Builds a configuration from keywords without reading file or environment.

        Args:
            values: Sections as mappings, or single fields by their last name:
                `from_flat(model="DIR", max_running=8)`.
        """
        return cls.load(overrides=values, environ={}, override_origin="argument")

    @classmethod
    def load(
        cls,
        file: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        override_origin: str = "flag",
    ) -> EngineConfig:
        """Merges file, environment and overrides, in this order.

        Args:
            file: YAML file with the sections as mappings.
            overrides: Values by `section.field`, by field name, or sections as mappings; values of
                None are skipped, so that unset flags can be passed along.
            environ: Environment to read `DI_*` from; the process environment when None.
            override_origin: What `origins` calls the overrides.
        """
        fields = cls.fields()
        problems: list[str] = []
        layers: list[Layer] = []
        if file is not None:
            layers.append(read_file(Path(file), fields, problems))
        layers.append(
            read_environment(os.environ if environ is None else environ, fields, problems)
        )
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        layers.append(resolve_names(given, fields, problems, override_origin))
        if problems:
            raise _error(problems)
        values, origins = merge(layers)
        config = cls(**values)
        config._origins = origins
        return config

    def origins(self) -> dict[str, str]:
        """Returns where each value came from: `default`, `file NAME`, `env NAME`, `flag`, ..."""
        return {path: self._origins.get(path, "default") for path in self.fields()}

    def values(self) -> dict[str, Any]:
        """Returns every value by its `section.field` path."""
        return {path: self._value(path) for path in self.fields()}

    def _value(self, path: str) -> Any:
        value: Any = self
        for name in path.split("."):
            value = getattr(value, name)
        return value

    def with_model(self, model: ModelConfig) -> Self:
        """Fills the values that depend on the model and checks the rest against it.

        Returns:
            A copy in which `model.max_model_len`, `cache.global_format`,
            `scheduler.max_tokens_per_step`, `speculation.num_draft_tokens`,
            `speculation.verification` and, with truncation, `prefill.keep_tokens` are set.

        Raises:
            ConfigError: A value contradicts the model or, once defaults are known, another.
        """
        model_len = self.model.max_model_len or min(
            DEFAULT_MODEL_LEN, model.max_position_embeddings
        )
        num_drafts = self.speculation.num_draft_tokens
        if self.speculation.drafter == "none":
            num_drafts = 0
        elif num_drafts is None:
            uses_model = self.speculation.drafter == "dspark"
            num_drafts = model.dspark_block_size if uses_model else DEFAULT_NGRAM_DRAFTS
        filled: dict[str, str | int | None] = {
            "speculation.num_draft_tokens": num_drafts,
            "model.max_model_len": model_len,
            "cache.global_format": self.cache.global_format or model.global_format,
            "scheduler.max_tokens_per_step": self.scheduler.max_tokens_per_step
            or max(model_len, DEFAULT_STEP_TOKENS, self.scheduler.max_running * (1 + num_drafts)),
        }
        if self.prefill.truncation != "off":
            filled["prefill.keep_tokens"] = self.prefill.keep_tokens or least_keep_tokens(
                model, num_drafts
            )
        if num_drafts:
            filled["speculation.verification"] = self.speculation.verification or (
                "coupled" if self.deterministic else "ratio"
            )
        copy = self
        origins = dict(self._origins)
        for path, value in filled.items():
            if self._value(path) is None:
                section, leaf = path.split(".")
                part = getattr(copy, section).model_copy(update={leaf: value})
                copy = copy.model_copy(update={section: part})
                origins[path] = "model"
        copy._origins = origins
        problems = check_engine_with_model(copy, model)
        if problems:
            raise _error(problems)
        return copy


def _given(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, _Section):
            yield from (f"{name}.{leaf}" for leaf in value.model_fields_set)
        elif isinstance(value, Mapping):
            yield from (f"{name}.{leaf}" for leaf in value)
        else:
            yield "model.path" if name == "model" else name


def _error(problems: list[str]) -> ConfigError:
    return ConfigError("the engine configuration has problems:\n  " + "\n  ".join(problems))
