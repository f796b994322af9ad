"""Sizes of the tiny model: small, with every mechanism of the architecture in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiny.tokenizer import VOCAB_SIZE

DRAFTER_BLOCKS = 2


def text_config(vocab_size: int = VOCAB_SIZE, hidden_size: int = 160) -> dict[str, Any]:
    """`text_config` of `config.json`, without what follows from the tokenizer."""
    return {
        "model_type": "deepseek_v41_text",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": 10,
        "rms_norm_eps": 1e-20,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        **_attention(),
        **_experts(),
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [1, 4],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 512,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "num_nextn_predict_layers": DRAFTER_BLOCKS,
        "dspark_block_size": 5,
        "dspark_target_layer_ids": [7, 8, 9],
        "dspark_markov_rank": 24,
        "dspark_n_routed_experts": 8,
        "dspark_num_experts_per_tok": 4,
    }


def _attention() -> dict[str, Any]:
    """Two window layers, two ratio-2 segments, one ratio-1 segment with a re-index layer."""
    return {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 64,
        "o_lora_rank": 64,
        "o_groups": 2,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": 32,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 1024,
        },
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1] + [0] * DRAFTER_BLOCKS,
        "kv_source_layer_ids": [2, 4, 6],
        "index_source_layer_ids": [2, 4, 6, 8],
        "index_n_heads": 4,
        "index_head_dim": 64,
        "index_topk": 32,
        "candidate_source_layer_id": 6,
        "candidate_topk_blocks": 8,
        "candidate_block_size": 8,
    }


def _experts() -> dict[str, Any]:
    """16 experts, 4 of them per token, and a shared one."""
    return {
        "moe_intermediate_size": 32,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
    }


@dataclass(frozen=True, slots=True)
class Sizes:
    """What training reads of `text_config`; field names are its keys."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: dict[str, Any]
    compress_ratios: list[int]
    kv_source_layer_ids: list[int]
    index_source_layer_ids: list[int]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: list[int]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: list[int]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    @staticmethod
    def of(text: dict[str, Any]) -> Sizes:
        """Takes the fields out of a `text_config`."""
        return Sizes(**{name: text[name] for name in Sizes.__dataclass_fields__})

    @property
    def num_mixes(self) -> int:
        """Coefficients of one hyper-connection."""
        return self.hc_mult * (2 + self.hc_mult)

    @property
    def engram_columns(self) -> int:
        """Table rows read per token and Engram layer."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads
