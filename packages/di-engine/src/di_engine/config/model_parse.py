"""Parsing of a DeepSeek-V4.1 `config.json`: every field read once, every problem in one error.

Required values and defaults follow DeepInfer 0.1.0 `hugging_face/config.py`; keys that it reads
with a default and that the released file does not carry are optional here too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from di_engine.config.fields import FieldReader
from di_engine.config.model_config import (
    ModelConfig,
    QuantizationConfig,
    RopeScaling,
    VisionConfig,
)
from di_engine.config.topology import check_model
from di_engine.errors import ConfigError

__all__ = ["parse_model_config"]

_log = logging.getLogger(__name__)

MODEL_TYPE = "deepseek_v41"
ARCHITECTURE = "DeepseekV41ForCausalLM"

# Values without a switch in this engine; the optional ones may be absent, none may differ.
_FIXED_TEXT_VALUES: dict[str, object] = {
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
}
_FIXED_OPTIONAL_TEXT_VALUES: dict[str, object] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dspark_target_attn_input": True,
    "hc_post_alpha": 2.0,
    "hc_post_mult_value": 2.0,
    "hc_shifted": True,
    "hidden_act": "silu",
    "model_type": "deepseek_v41_text",
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
}
_UNUSED_KEYS = (
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)


def parse_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Returns the checked configuration of a `config.json` object.

    Raises:
        ConfigError: With one line per problem.
    """
    problems: list[str] = []
    top = FieldReader(values, problems)
    _check_identity(top)
    text = top.section("text_config")
    if text is None:
        raise _error(problems)
    fields = {
        **_sizes(top, text),
        **_attention(text),
        **_experts_and_streams(text),
        **_engram(text),
        **_drafter(text),
        "quantization": _quantization(top),
        "vision": _vision(top),
    }
    top.skip("tokenizer_compatibility", *_UNUSED_KEYS)
    text.skip(*_UNUSED_KEYS)
    unknown = (*top.unread(), *text.unread())
    if not problems:
        config = ModelConfig(**fields, unknown_keys=unknown)
        problems = check_model(config)
    if problems:
        raise _error(problems)
    if unknown:
        _log.warning("`config.json`: keys without a meaning here: %s", ", ".join(unknown))
    return config


def _error(problems: list[str]) -> ConfigError:
    count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
    return ConfigError(f"{count} in the model configuration:\n  " + "\n  ".join(problems))


def _check_identity(top: FieldReader) -> None:
    top.exactly("architectures", [ARCHITECTURE])
    top.exactly("model_type", MODEL_TYPE)
    top.exactly("dtype", "bfloat16", default="bfloat16")


def _sizes(top: FieldReader, text: FieldReader) -> dict[str, Any]:
    image_token_id = top.raw("image_token_id", "a token id", None)
    if image_token_id is not None:
        image_token_id = top.integer("image_token_id", low=0)
    return {
        "vocab_size": text.integer("vocab_size"),
        "hidden_size": text.integer("hidden_size"),
        "num_hidden_layers": text.integer("num_hidden_layers"),
        "rms_norm_eps": text.number("rms_norm_eps"),
        "max_position_embeddings": text.integer("max_position_embeddings"),
        "bos_token_id": top.integer("bos_token_id", low=0),
        "eos_token_id": top.integer("eos_token_id", low=0),
        "pad_token_id": top.integer("pad_token_id", low=0),
        "image_token_id": image_token_id,
    }


def _attention(text: FieldReader) -> dict[str, Any]:
    candidate_source = text.raw("candidate_source_layer_id", "a layer id, or -1 for none")
    if candidate_source is None:
        candidate_source = -1
    elif candidate_source is not ...:
        candidate_source = text.integer("candidate_source_layer_id", low=-1)
    has_candidates = candidate_source is not ... and candidate_source >= 0
    kv_sources = text.integers("kv_source_layer_ids")
    index_sources = text.integers("index_source_layer_ids")
    key_sources = text.integers("index_k_source_layer_ids", default=kv_sources)
    if key_sources != kv_sources:
        text.problem(
            "index_k_source_layer_ids",
            list(key_sources),
            f"the value of `kv_source_layer_ids`: {list(kv_sources)}",
        )
    uses_fp4 = text.raw("use_fp4_sparse_kv", "true or false", True)
    if not isinstance(uses_fp4, bool):
        text.problem("use_fp4_sparse_kv", uses_fp4, "true or false")
    index_low = 1 if index_sources else 0
    candidate_low = 1 if has_candidates else 0
    return {
        **{key: text.integer(key) for key in _ATTENTION_SIZES},
        "num_key_value_heads": 1,
        "rope_theta": text.number("rope_theta"),
        "compress_rope_theta": text.number("compress_rope_theta"),
        "rope_scaling": _rope_scaling(text),
        "compress_ratios": text.integers("compress_ratios"),
        "kv_source_layer_ids": kv_sources,
        "index_source_layer_ids": index_sources,
        **{key: text.integer(key, low=index_low) for key in _INDEX_SIZES},
        "candidate_source_layer_id": candidate_source,
        **{key: text.integer(key, low=candidate_low) for key in _CANDIDATE_SIZES},
        "global_format": "fp4" if uses_fp4 else "mxfp8",
    }


_ATTENTION_SIZES = (
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "sliding_window",
)
_INDEX_SIZES = ("index_n_heads", "index_head_dim", "index_topk")
_CANDIDATE_SIZES = ("candidate_topk_blocks", "candidate_block_size")


def _rope_scaling(text: FieldReader) -> RopeScaling | None:
    section = text.section("rope_scaling")
    if section is None:
        return None
    type_key = "type" if section.has("type") and not section.has("rope_type") else "rope_type"
    section.exactly(type_key, "yarn")
    scaling = RopeScaling(
        factor=section.number("factor"),
        beta_fast=section.number("beta_fast"),
        beta_slow=section.number("beta_slow"),
        original_max_position_embeddings=section.integer("original_max_position_embeddings"),
    )
    section.skip("type")
    for key in section.unread():
        # An extra key such as `mscale` would change the rotation; it must not be passed over.
        short = key.rsplit(".", 1)[-1]
        section.problem(short, section.raw(short, ""), "absent")
    return scaling


def _experts_and_streams(text: FieldReader) -> dict[str, Any]:
    for key, value in _FIXED_TEXT_VALUES.items():
        text.exactly(key, value)
    for key, value in _FIXED_OPTIONAL_TEXT_VALUES.items():
        text.exactly(key, value, default=value)
    return {
        "moe_intermediate_size": text.integer("moe_intermediate_size"),
        "n_routed_experts": text.integer("n_routed_experts"),
        "n_shared_experts": 1,
        "num_experts_per_tok": text.integer("num_experts_per_tok"),
        "routed_scaling_factor": text.number("routed_scaling_factor"),
        "swiglu_limit": text.number("swiglu_limit"),
        "hc_mult": text.integer("hc_mult"),
        "hc_sinkhorn_iters": text.integer("hc_sinkhorn_iters"),
        "hc_eps": text.number("hc_eps"),
    }


def _engram(text: FieldReader) -> dict[str, Any]:
    layers = text.integers("engram_layer_ids")
    low = 1 if layers else 0
    # A model without Engram layers needs no sizes for them.
    optional: Any = ... if layers else 0
    return {
        "engram_layer_ids": layers,
        "engram_num_embeddings": text.integers(
            "engram_num_embeddings", low=1, default=... if layers else ()
        ),
        "engram_max_ngram_size": text.integer(
            "engram_max_ngram_size", low=2 if layers else 0, default=optional
        ),
        "engram_vocab_size": text.integer("engram_vocab_size", low=low, default=optional),
        "engram_n_heads": text.integer("engram_n_heads", low=low, default=optional),
        "engram_head_dim": text.integer("engram_head_dim", low=low, default=optional),
        "engram_pad_token_id": text.integer("engram_pad_token_id", low=0, default=optional),
        "engram_compressed_vocab_size": text.integer(
            "engram_compressed_vocab_size", low=low, default=optional
        ),
    }


def _drafter(text: FieldReader) -> dict[str, Any]:
    blocks = text.integer("num_nextn_predict_layers", low=0)
    low = 1 if blocks else 0
    optional: Any = ... if blocks else 0
    sizes = (
        "dspark_block_size",
        "dspark_markov_rank",
        "dspark_n_routed_experts",
        "dspark_num_experts_per_tok",
    )
    return {
        "num_nextn_predict_layers": blocks,
        "dspark_target_layer_ids": text.integers(
            "dspark_target_layer_ids", default=... if blocks else ()
        ),
        "dspark_noise_token_id": text.integer("dspark_noise_token_id", low=0, default=optional),
        **{key: text.integer(key, low=low, default=optional) for key in sizes},
    }


def _quantization(top: FieldReader) -> QuantizationConfig | None:
    section = top.section("quantization_config", default=None)
    if section is None:
        return None
    expected = QuantizationConfig()
    section.exactly("quant_method", expected.quant_method)
    section.exactly("activation_scheme", expected.activation_scheme)
    section.exactly("weight_block_size", list(expected.weight_block_size))
    section.exactly("scale_fmt", expected.scale_fmt)
    section.exactly("expert_dtype", expected.expert_dtype)
    section.exactly("fmt", "e4m3", default="e4m3")
    return expected


def _vision(top: FieldReader) -> VisionConfig | None:
    section = top.section("vision_config", default=None)
    if section is None:
        return None
    section.exactly("model_type", "deepseek_v41_vision", default="deepseek_v41_vision")
    has_ratio = section.raw("max_wh_ratio", "a number or null", None) is not None
    sizes = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "patch_size",
        "downsample_ratio",
        "max_image_tokens",
        "min_pixels",
    )
    return VisionConfig(
        **{key: section.integer(key) for key in sizes},
        rope_theta=section.number("rope_theta"),
        max_wh_ratio=section.number("max_wh_ratio") if has_ratio else None,
    )
