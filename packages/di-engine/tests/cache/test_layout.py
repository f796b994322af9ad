"""Sizes and addresses of the caches."""

import pytest
import torch

from di_engine.cache import Cache, CacheLayout
from di_engine.config import ModelConfig
from di_engine.errors import ConfigError
from di_engine.model import Numerics

RELEASE_TEXT = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 129280,
    "hidden_size": 5120,
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 1048576,
    "rope_theta": 10000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "sliding_window": 128,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "compress_rope_theta": 160000,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 16000000,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
}


def make_config(**changes) -> ModelConfig:
    return ModelConfig.from_dict(
        {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "image_token_id": 129264,
            "text_config": RELEASE_TEXT | changes,
        }
    )


@pytest.fixture(scope="module")
def release():
    return make_config()


def test_a_release_block_has_the_published_size_and_sections(release):
    layout = CacheLayout.from_config(release, Numerics())
    assert layout.bytes_per_block == 114_048
    assert (layout.window_record, layout.main_record) == (528, 288)
    assert layout.index_codes + layout.index_scales == 68
    sections = [(s.layer, s.index_offset, s.main_offset) for s in layout.sections]
    assert sections == [(2, 0, 4352), (8, 22784, 27136), (14, 45568, 49920), (20, 68352, 77056)]


def test_a_token_of_context_costs_890_bytes(release):
    layout = CacheLayout.from_config(release, Numerics())
    per_token = sum((layout.main_record + 68) / section.ratio for section in layout.sections)
    assert per_token == 890


def test_mxfp8_entries_cost_1490_bytes_per_token(release):
    layout = CacheLayout.from_config(release, Numerics(global_format="mxfp8"))
    assert layout.main_record == 528
    assert sum((layout.main_record + 68) / section.ratio for section in layout.sections) == 1490
    assert layout.bytes_per_block >= 1490 * 128


def test_state_of_a_request_follows_the_published_ring_sizes(release):
    layout = CacheLayout.from_config(release, Numerics())
    rings = 2_703_360
    state = 3 * 2 * 4096  # three pooling layers, two rows of gates and values
    assert layout.bytes_per_state_slot == rings + state
    longer = CacheLayout.from_config(release, Numerics(), lookahead=6)
    assert longer.ring_len == 134
    assert longer.bytes_per_state_slot == 40 * 70_752 + 3 * 8 * 4096


@pytest.mark.parametrize("storage", ["packed", "compute"])
@pytest.mark.parametrize("global_format", ["fp4", "mxfp8"])
@pytest.mark.parametrize(
    ("head_dim", "index_head_dim"), [(512, 128), (96, 32), (64, 96), (160, 64)]
)
def test_sections_do_not_overlap_and_records_tile_the_stride(
    storage, global_format, head_dim, index_head_dim
):
    config = make_config(head_dim=head_dim, index_head_dim=index_head_dim, qk_rope_head_dim=16)
    numerics = Numerics(cache_storage=storage, global_format=global_format)
    layout = CacheLayout.from_config(config, numerics)
    end = 0
    for section in layout.sections:
        assert section.index_offset >= end
        index_len = section.entries_per_block * (layout.index_codes + layout.index_scales)
        assert section.main_offset >= section.index_offset + index_len
        end = section.main_offset + section.entries_per_block * layout.main_record
    assert layout.block_stride >= end
    for record in (layout.main_record, layout.index_codes, max(layout.index_scales, 1)):
        assert layout.block_stride % record == 0


@pytest.mark.parametrize("storage", ["packed", "compute"])
def test_an_allocated_cache_has_the_announced_size(storage):
    config = make_config(
        num_hidden_layers=22,
        compress_ratios=[0] * 2 + [2] * 18 + [1] * 2 + [0] * 3,
        index_source_layer_ids=[2, 8, 14, 20],
        dspark_target_layer_ids=[19, 20, 21],
        head_dim=64,
    )
    numerics = Numerics(cache_storage=storage)
    cache = Cache.allocate(config, numerics, num_blocks=3, num_state_slots=5, lookahead=2)
    layout = CacheLayout.from_config(config, numerics, lookahead=2)
    assert (cache.num_blocks, cache.num_state_slots) == (3, 5)
    assert cache.blocks.nbytes == 3 * layout.bytes_per_block
    assert cache.num_bytes == 3 * layout.bytes_per_block + 5 * layout.bytes_per_state_slot
    assert cache.blocks.is_contiguous()


def test_only_sources_have_a_section(release):
    layout = CacheLayout.from_config(release, Numerics())
    with pytest.raises(
        ValueError, match=r"layer 3 is not a KV source: sources are \[2, 8, 14, 20\]"
    ):
        layout.section(3)


def test_wrong_sizes_are_named(release):
    with pytest.raises(ValueError, match="`lookahead` must be at least 0: -1"):
        CacheLayout.from_config(release, Numerics(), lookahead=-1)
    with pytest.raises(ValueError, match="`num_blocks` and `num_state_slots`"):
        Cache.allocate(release, Numerics(), num_blocks=0, num_state_slots=1)


def test_unknown_numerics_are_all_named():
    with pytest.raises(ConfigError, match=r"`arithmetic`.*'bf16'.*`global_format`.*'int4'"):
        Numerics(arithmetic="bf16", global_format="int4")
    assert Numerics(arithmetic="float64").wide_dtype == torch.float64
