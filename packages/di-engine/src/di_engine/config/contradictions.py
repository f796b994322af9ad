"""Rules between fields of `EngineConfig`, and between it and the model.

Every problem names both fields, their values, and values that would work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from di_engine.config.model_config import ModelConfig

if TYPE_CHECKING:
    from di_engine.config.engine_config import EngineConfig

__all__ = ["check_engine", "check_engine_with_model", "least_keep_tokens"]


def check_engine(config: EngineConfig) -> list[str]:
    """Returns the contradictions that show without knowing the model."""
    return [
        *_check_step_size(config),
        *_check_cache(config),
        *_check_prefill(config),
        *_check_speculation(config),
    ]


def check_engine_with_model(config: EngineConfig, model: ModelConfig) -> list[str]:
    """Returns the contradictions of a filled configuration with the model and within itself."""
    return [
        *_check_step_size(config),
        *_check_length(config, model),
        *_check_truncation(config, model),
        *_check_drafter(config, model),
    ]


def least_keep_tokens(model: ModelConfig, num_draft_tokens: int = 0) -> int:
    """Returns the fewest prompt tokens that a truncated prefill must keep.

    Whatever is taken back after a prompt, a whole window of kept tokens must be left: the window
    and the tokens of one step (DeepInfer 0.1.0: window + `MAX_BACKTRACKING_TOKENS`).
    """
    return model.sliding_window + num_draft_tokens + 1


def _check_step_size(config: EngineConfig) -> Iterator[str]:
    scheduler = config.scheduler
    step, length = scheduler.max_tokens_per_step, config.model.max_model_len
    if step is None:
        return
    num_drafts = config.speculation.num_draft_tokens or 0
    rows = scheduler.max_running * (1 + num_drafts)
    if step < rows:
        drafts = f" and {num_drafts} for its drafts" if num_drafts else ""
        most = step // (1 + num_drafts)
        yield (
            f"`scheduler.max_tokens_per_step`: {step} and `scheduler.max_running`: "
            f"{scheduler.max_running}: a decode step has one row per running request{drafts}; use "
            f"`scheduler.max_tokens_per_step` of at least {rows}, or `scheduler.max_running` of at "
            f"most {most}"
        )
    if not scheduler.chunked_prefill and length is not None and step < length:
        yield (
            f"`scheduler.max_tokens_per_step`: {step} and `model.max_model_len`: {length} with "
            "`scheduler.chunked_prefill`: false: a whole prompt must fit into a step; use "
            f"`scheduler.max_tokens_per_step` of at least {length}, `model.max_model_len` of at "
            f"most {step}, or `scheduler.chunked_prefill`: true"
        )


def _check_cache(config: EngineConfig) -> Iterator[str]:
    cache = config.cache
    if cache.storage == "compute" and cache.global_format is not None:
        yield (
            f"`cache.global_format`: {cache.global_format} and `cache.storage`: compute: only "
            "packed records have a format; use `cache.storage`: packed, or leave "
            "`cache.global_format` out"
        )
    if cache.num_blocks is not None and "memory_fraction" in cache.model_fields_set:
        yield (
            f"`cache.num_blocks`: {cache.num_blocks} and `cache.memory_fraction`: "
            f"{cache.memory_fraction}: both decide the size of the pool; leave one of them out"
        )


def _check_prefill(config: EngineConfig) -> Iterator[str]:
    prefill = config.prefill
    if prefill.truncation == "off" and prefill.keep_tokens is not None:
        yield (
            f"`prefill.keep_tokens`: {prefill.keep_tokens} and `prefill.truncation`: off: all "
            "tokens are kept; use `prefill.truncation`: mask or compact, or leave "
            "`prefill.keep_tokens` out"
        )


def _check_truncation(config: EngineConfig, model: ModelConfig) -> Iterator[str]:
    prefill = config.prefill
    if prefill.truncation == "off":
        return
    if model.decoder_start is None:
        yield (
            f"`prefill.truncation`: {prefill.truncation} and `kv_source_layer_ids`: [] of the "
            "model: there is no last KV source to cut behind; use `prefill.truncation`: off"
        )
        return
    late = [layer for layer in model.engram_layer_ids if layer >= model.decoder_start]
    if late:
        yield (
            f"`prefill.truncation`: {prefill.truncation} and `engram_layer_ids`: {late} of the "
            f"model, which lie in its decoder half (layers {model.decoder_start} and up) and need "
            "all rows; use `prefill.truncation`: off"
        )
    least = least_keep_tokens(model, config.speculation.num_draft_tokens or 0)
    if prefill.keep_tokens is not None and prefill.keep_tokens < least:
        yield (
            f"`prefill.keep_tokens`: {prefill.keep_tokens} and `sliding_window`: "
            f"{model.sliding_window} of the model: the window and what may be taken back must "
            f"remain; use `prefill.keep_tokens` of at least {least}"
        )


def _check_speculation(config: EngineConfig) -> Iterator[str]:
    speculation = config.speculation
    if speculation.drafter == "none":
        given = speculation.model_fields_set & {"num_draft_tokens", "verification", "budget"}
        for name in sorted(given):
            if getattr(speculation, name) not in (0, None):
                yield (
                    f"`speculation.{name}`: {getattr(speculation, name)} and "
                    "`speculation.drafter`: none: nothing is drafted; use `speculation.drafter`: "
                    f"dspark or ngram, or leave `speculation.{name}` out"
                )
    if config.deterministic and speculation.verification in ("ratio", "block"):
        yield (
            f"`speculation.verification`: {speculation.verification} and `deterministic`: true: "
            "its tokens depend on how many drafts are verified, and so on other requests; use "
            "`speculation.verification`: coupled or greedy, or `deterministic`: false"
        )
    if speculation.drafter == "ngram" and (
        config.scheduler.overlap and "overlap" in config.scheduler.model_fields_set
    ):
        yield (
            "`speculation.drafter`: ngram and `scheduler.overlap`: true: its drafts are made on "
            "the host from the newest tokens; use `scheduler.overlap`: false, or "
            "`speculation.drafter`: dspark"
        )


def _check_drafter(config: EngineConfig, model: ModelConfig) -> Iterator[str]:
    speculation = config.speculation
    if speculation.drafter != "dspark":
        return
    if model.num_nextn_predict_layers == 0:
        yield (
            "`speculation.drafter`: dspark and `num_nextn_predict_layers`: 0 of the model: it has "
            "no drafter; use `speculation.drafter`: none or ngram"
        )
        return
    num_drafts, block = speculation.num_draft_tokens, model.dspark_block_size
    if num_drafts is not None and num_drafts > block:
        yield (
            f"`speculation.num_draft_tokens`: {num_drafts} and `dspark_block_size`: {block} of the "
            f"model: the drafter was trained for blocks of {block}; use "
            f"`speculation.num_draft_tokens` of at most {block}"
        )


def _check_length(config: EngineConfig, model: ModelConfig) -> Iterator[str]:
    length, limit = config.model.max_model_len, model.max_position_embeddings
    if length is None:
        return
    if length > limit:
        yield (
            f"`model.max_model_len`: {length} and `max_position_embeddings`: {limit} of the model; "
            f"use `model.max_model_len` of at most {limit}"
        )
    size, blocks = config.cache.block_size, config.cache.num_blocks
    # One block is reserved for rows without a request.
    needed = -(-length // size) + 1
    if blocks is not None and blocks < needed:
        yield (
            f"`cache.num_blocks`: {blocks} and `model.max_model_len`: {length}: one request of "
            f"full length needs {needed} blocks of {size} tokens (one is reserved); use "
            f"`cache.num_blocks` of at least {needed}, or `model.max_model_len` of at most "
            f"{(blocks - 1) * size}"
        )
