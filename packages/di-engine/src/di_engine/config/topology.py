"""Conditions between the fields of a model configuration.

Every condition is a fact of the architecture (DeepInfer 0.1.0 `cross_layer.py` states the segment
rules) or a limit of this engine; each problem names the fields, their values and what would work.
"""

from __future__ import annotations

from collections.abc import Iterator

from di_engine.config.engram_primes import engram_primes
from di_engine.config.model_config import ModelConfig

__all__ = ["check_model"]

SUPPORTED_RATIOS = (0, 1, 2)
MAX_ENGRAM_COLUMNS = 4096  # table rows per token and layer; the release has 24
_GROUP = 32  # channels that share one scale in every quantised format


def check_model(config: ModelConfig) -> list[str]:
    """Returns one line per violated condition; an empty list means the configuration is sound."""
    problems = [
        *_check_sizes(config),
        *_check_token_ids(config),
        *_check_sources(config),
        *_check_engram(config),
        *_check_drafter(config),
        *_check_vision(config),
    ]
    if not problems:
        problems = [*_check_segments(config), *_check_candidates(config)]
    return problems


def _check_sizes(config: ModelConfig) -> Iterator[str]:
    if config.num_attention_heads % config.o_groups:
        yield (
            f"`num_attention_heads`: {config.num_attention_heads} and `o_groups`: "
            f"{config.o_groups}, supported: a number of groups that divides the heads"
        )
    for name, size in (("head_dim", config.head_dim), ("index_head_dim", config.index_head_dim)):
        if size % _GROUP:
            yield f"`{name}`: {size}, supported: multiples of {_GROUP}, the cache record group"
    rope = config.qk_rope_head_dim
    limit = min([config.head_dim] + ([config.index_head_dim] if config.index_head_dim else []))
    if rope % 2 or rope > limit:
        yield (
            f"`qk_rope_head_dim`: {rope}, supported: even numbers up to {limit}, the smaller of "
            "`head_dim` and `index_head_dim`"
        )
    if config.num_experts_per_tok > config.n_routed_experts:
        yield (
            f"`num_experts_per_tok`: {config.num_experts_per_tok}, supported: 1 to "
            f"`n_routed_experts`: {config.n_routed_experts}"
        )
    if config.is_quantized:
        yield from _check_quantized_sizes(config)


def _check_quantized_sizes(config: ModelConfig) -> Iterator[str]:
    sizes = {
        "hidden_size": config.hidden_size,
        "q_lora_rank": config.q_lora_rank,
        "moe_intermediate_size": config.moe_intermediate_size,
        "o_groups` x `o_lora_rank": config.o_groups * config.o_lora_rank,
    }
    if config.engram_layer_ids:
        sizes["engram_head_dim"] = config.engram_head_dim
    for name, size in sizes.items():
        if size % _GROUP:
            yield f"`{name}`: {size}, supported with `quantization_config`: multiples of {_GROUP}"


def _check_token_ids(config: ModelConfig) -> Iterator[str]:
    ids = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    if config.image_token_id is not None:
        ids["image_token_id"] = config.image_token_id
    if config.engram_layer_ids:
        ids["engram_pad_token_id"] = config.engram_pad_token_id
    if config.num_nextn_predict_layers:
        ids["dspark_noise_token_id"] = config.dspark_noise_token_id
    for name, token_id in ids.items():
        if token_id >= config.vocab_size:
            yield (
                f"`{name}`: {token_id}, supported: 0 to {config.vocab_size - 1} "
                f"(`vocab_size`: {config.vocab_size})"
            )


def _check_sources(config: ModelConfig) -> Iterator[str]:
    """Lists of layers: lengths, ranges, order, and ratios the engine has a compressor for."""
    layers, blocks = config.num_hidden_layers, config.num_nextn_predict_layers
    ratios = config.compress_ratios
    if len(ratios) != layers + blocks:
        yield (
            f"`compress_ratios`: {len(ratios)} entries, supported: {layers + blocks} "
            f"(`num_hidden_layers`: {layers} + `num_nextn_predict_layers`: {blocks})"
        )
    unsupported = sorted(set(ratios) - set(SUPPORTED_RATIOS))
    if unsupported:
        yield f"`compress_ratios`: {unsupported} among the entries, supported: 0, 1, 2"
    if any(ratios[layers:]):
        yield (
            f"`compress_ratios`: {list(ratios[layers:])} for the drafter blocks, supported: 0 "
            "(drafter attention is sliding window only)"
        )
    for name in ("kv_source_layer_ids", "index_source_layer_ids", "dspark_target_layer_ids"):
        yield from _check_layer_list(name, getattr(config, name), layers)
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        windows = [s for s in getattr(config, name) if s < len(ratios) and ratios[s] == 0]
        if windows:
            yield (
                f"`{name}`: {windows} have `compress_ratios` 0, supported: layers with ratio 1 or 2"
            )
    if config.candidate_source_layer_id >= layers:
        yield (
            f"`candidate_source_layer_id`: {config.candidate_source_layer_id}, supported: -1 or a "
            f"layer below `num_hidden_layers`: {layers}"
        )


def _check_layer_list(name: str, ids: tuple[int, ...], num_layers: int) -> Iterator[str]:
    if any(layer >= num_layers for layer in ids) or list(ids) != sorted(set(ids)):
        yield (
            f"`{name}`: {list(ids)}, supported: ascending layer ids without repetition below "
            f"`num_hidden_layers`: {num_layers}"
        )


def _check_segments(config: ModelConfig) -> Iterator[str]:
    """Every selection segment lies inside one KV segment, and a segment has one ratio."""
    for kv_source in config.kv_source_layer_ids:
        if not config.is_index_source(kv_source):
            yield (
                f"`index_source_layer_ids`: {list(config.index_source_layer_ids)} lacks layer "
                f"{kv_source} of `kv_source_layer_ids`; it would use entries selected among "
                "another layer's keys, supported: every KV source is an index source"
            )
    for layer in range(config.num_hidden_layers):
        ratio = config.ratio(layer)
        if ratio == 0:
            continue
        source = config.kv_source(layer)
        if source is None:
            yield (
                f"`kv_source_layer_ids`: {list(config.kv_source_layer_ids)} has no layer up to "
                f"{layer}, whose `compress_ratios` entry is {ratio}"
            )
        elif config.ratio(source) != ratio:
            yield (
                f"`compress_ratios`: layer {layer} has {ratio}, its KV source {source} has "
                f"{config.ratio(source)}, supported: one ratio per KV segment"
            )


def _check_candidates(config: ModelConfig) -> Iterator[str]:
    source = config.candidate_source_layer_id
    if source < 0:
        return
    if not config.is_index_source(source):
        yield (
            f"`candidate_source_layer_id`: {source}, supported: -1 or one of "
            f"`index_source_layer_ids`: {list(config.index_source_layer_ids)}"
        )
        return
    for layer in config.index_source_layer_ids:
        if layer > source and config.ratio(layer) != config.ratio(source):
            yield (
                f"`compress_ratios`: layer {layer} has {config.ratio(layer)}, it selects inside "
                f"the candidate blocks of `candidate_source_layer_id`: {source}, which has "
                f"{config.ratio(source)}, supported: equal ratios"
            )
    covered = config.candidate_topk_blocks * config.candidate_block_size
    if covered < config.index_topk:
        yield (
            f"`candidate_topk_blocks`: {config.candidate_topk_blocks} x `candidate_block_size`: "
            f"{config.candidate_block_size} = {covered} entries, supported: at least `index_topk`: "
            f"{config.index_topk}"
        )


def _check_engram(config: ModelConfig) -> Iterator[str]:
    ids = config.engram_layer_ids
    if not ids:
        if config.engram_num_embeddings:
            yield (
                f"`engram_num_embeddings`: {list(config.engram_num_embeddings)} with no "
                "`engram_layer_ids`, supported: an empty list"
            )
        return
    if len(set(ids)) != len(ids) or max(ids) >= config.num_hidden_layers:
        yield (
            f"`engram_layer_ids`: {list(ids)}, supported: different layer ids below "
            f"`num_hidden_layers`: {config.num_hidden_layers}"
        )
    if config.engram_compressed_vocab_size > config.vocab_size:
        yield (
            f"`engram_compressed_vocab_size`: {config.engram_compressed_vocab_size}, supported: 1 "
            f"to `vocab_size`: {config.vocab_size}"
        )
    if config.engram_columns > MAX_ENGRAM_COLUMNS:
        yield (
            f"`engram_n_heads`: {config.engram_n_heads} x {config.engram_orders} n-gram orders, "
            f"supported: up to {MAX_ENGRAM_COLUMNS} together"
        )
        return
    primes = engram_primes(
        len(ids), config.engram_max_ngram_size, config.engram_vocab_size, config.engram_n_heads
    )
    rows = [sum(layer) for layer in primes]
    if list(config.engram_num_embeddings) != rows:
        yield (
            f"`engram_num_embeddings`: {list(config.engram_num_embeddings)}, supported: {rows} "
            f"(the prime table sizes from `engram_vocab_size`: {config.engram_vocab_size}, "
            f"`engram_max_ngram_size`: {config.engram_max_ngram_size}, `engram_n_heads`: "
            f"{config.engram_n_heads})"
        )


def _check_drafter(config: ModelConfig) -> Iterator[str]:
    if not config.num_nextn_predict_layers:
        return
    if not config.dspark_target_layer_ids:
        yield "`dspark_target_layer_ids`: [], supported: at least one layer id with drafter blocks"
    if config.dspark_num_experts_per_tok > config.dspark_n_routed_experts:
        yield (
            f"`dspark_num_experts_per_tok`: {config.dspark_num_experts_per_tok}, supported: 1 to "
            f"`dspark_n_routed_experts`: {config.dspark_n_routed_experts}"
        )


def _check_vision(config: ModelConfig) -> Iterator[str]:
    vision = config.vision
    if vision is not None and vision.hidden_size % vision.num_attention_heads:
        yield (
            f"`vision_config.hidden_size`: {vision.hidden_size}, supported: multiples of "
            f"`vision_config.num_attention_heads`: {vision.num_attention_heads}"
        )
