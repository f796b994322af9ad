"""A small model with every mechanism of the text model, for tests and tools."""

from __future__ import annotations

from typing import Any

from di_engine.config import engram_primes

__all__ = ["VOCAB_SIZE", "small_config"]

VOCAB_SIZE = 96


def small_config(**changes: object) -> dict[str, Any]:
    """`config.json` of a model with a window of 8, 6 layers, 96 tokens and plain weights.

    Args:
        changes: Keys of `text_config` with other values.
    """
    primes = engram_primes(2, 3, 41, 2)
    text = {
        "model_type": "deepseek_v41_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_lora_rank": 32,
        "o_groups": 2,
        "hidden_act": "silu",
        "swiglu_limit": 2.0,
        "rms_norm_eps": 1e-20,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
        "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 512,
        },
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "sliding_window": 8,
        "compress_ratios": [0, 2, 2, 1, 1, 1],
        "compress_rope_theta": 160000,
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 5],
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_topk": 8,
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 4,
        "candidate_block_size": 4,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [0, 2],
        "engram_num_embeddings": [sum(layer) for layer in primes],
        "engram_max_ngram_size": 3,
        "engram_vocab_size": 41,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": VOCAB_SIZE,
        "num_nextn_predict_layers": 0,
        "dspark_block_size": 0,
        "dspark_noise_token_id": 4,
        "dspark_target_layer_ids": [],
        "dspark_markov_rank": 0,
        "dspark_n_routed_experts": 0,
        "dspark_num_experts_per_tok": 0,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": 3,
        "text_config": text | changes,
    }
