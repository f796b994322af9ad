"""A small model with every mechanism on, random weights, and a way to run requests through it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from di_engine.cache import BLOCK_TOKENS, Cache
from di_engine.checkpoint import expected_tensors
from di_engine.config import ModelConfig
from di_engine.config.engram_primes import engram_primes
from di_engine.model import Backbone, Numerics, RequestRows, StepBatch
from di_kernels import ops

VOCAB = 96
ENGRAM = {"num_layers": 2, "max_ngram_size": 3, "start": 41, "n_heads": 2}

TEXT_CONFIG = {
    "model_type": "deepseek_v41_text",
    "vocab_size": VOCAB,
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
    "engram_num_embeddings": [sum(primes) for primes in engram_primes(*ENGRAM.values())],
    "engram_max_ngram_size": ENGRAM["max_ngram_size"],
    "engram_vocab_size": ENGRAM["start"],
    "engram_n_heads": ENGRAM["n_heads"],
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": VOCAB,
    "num_nextn_predict_layers": 0,
    "dspark_block_size": 0,
    "dspark_noise_token_id": 4,
    "dspark_target_layer_ids": [],
    "dspark_markov_rank": 0,
    "dspark_n_routed_experts": 0,
    "dspark_num_experts_per_tok": 0,
}


QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}


def make_config(is_quantized=False, **changes) -> ModelConfig:
    """The small model's configuration with some keys of `text_config` replaced."""
    quantization = {"quantization_config": QUANTIZATION} if is_quantized else {}
    return ModelConfig.from_dict(
        quantization
        | {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "image_token_id": 3,
            "text_config": TEXT_CONFIG | changes,
        }
    )


class RandomSource:
    """Random tensors for a configuration: unit norms, variance-keeping matrices, lively gates."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {}
        for name, spec in expected_tensors(config, ("text",)).items():
            if spec.dtypes[0] == "F8_E8M0":
                continue  # comes with its weight
            noise = torch.randn(spec.shape, generator=generator)
            if name.endswith("norm.weight") or name.endswith(("hc_attn_scale", "hc_ffn_scale")):
                value = 1 + 0.1 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif noise.dim() == 2 and "embed" not in name:
                value = noise * spec.shape[1] ** -0.5
            else:
                value = noise
            self._store(name, value, spec.dtypes[0], generator)

    def _store(self, name, value, dtype, generator) -> None:
        if dtype == "F32":
            self.tensors[name] = value
        elif dtype == "BF16":
            self.tensors[name] = value.bfloat16()
        else:
            if dtype == "I8":
                columns = 2 * value.shape[1]
                noise = torch.randn(value.shape[0], columns, generator=generator)
                weight = ops.mxfp4_weight_quantize(noise * columns**-0.5)
                data, scale = weight.data.view(torch.int8), weight.scale
            elif ".engram.embed" in name:
                data, scale = ops.mxfp8_quantize(value)
            else:
                weight = ops.mxfp8_weight_quantize(value)
                data, scale = weight.data, weight.scale
            self.tensors[name] = data
            scale_name = name.removesuffix("weight") + "scale"
            self.tensors[scale_name] = scale.view(torch.float8_e8m0fnu)

    def get(self, name: str) -> torch.Tensor:
        return self.tensors[name].clone()

    def names(self) -> Sequence[str]:
        return list(self.tensors)

    def close(self) -> None:
        pass


@dataclass
class Runner:
    """Runs requests, known by number, through one model; every row's logits come back.

    Blocks of the requests are interleaved in the pool, so that no test passes by accident of
    contiguous memory.
    """

    backbone: Backbone
    num_requests: int = 1
    max_tokens: int = 2 * BLOCK_TOKENS
    lookahead: int = 0
    taps: dict[str, torch.Tensor] | None = None
    num_computed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_blocks = -(-self.max_tokens // BLOCK_TOKENS)
        self.cache = Cache.allocate(
            self.backbone.config,
            self.backbone.numerics,
            num_blocks=self.num_requests * self.num_blocks,
            num_state_slots=self.num_requests,
            lookahead=self.lookahead,
        )

    def rows(self, request: int, token_ids: Sequence[int], length: int, **fields) -> RequestRows:
        """The next `length` rows of a request whose tokens are `token_ids`."""
        start = self.num_computed.get(request, 0)
        return RequestRows(
            token_ids=token_ids[start : start + length],
            num_computed=start,
            block_table=[i * self.num_requests + request for i in range(self.num_blocks)],
            state_slot=self.num_requests - 1 - request,
            history=token_ids[:start],
            logits="all",
            **fields,
        )

    def step(self, *chunks: tuple[int, Sequence[int], int], **fields) -> list[torch.Tensor]:
        """One step of (request, token ids, length) chunks; logits of each chunk's rows."""
        requests = [self.rows(*chunk, **fields) for chunk in chunks]
        batch = StepBatch.build(requests, ngram_size=self.backbone.config.engram_max_ngram_size)
        hidden = self.backbone.forward(batch, self.cache, self.taps)
        for request, _, length in chunks:
            self.num_computed[request] = self.num_computed.get(request, 0) + length
        return list(self.backbone.logits(hidden).split([length for _, _, length in chunks]))

    def feed(self, token_ids: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Request 0 in chunks of `lengths`; logits of all rows."""
        return torch.cat([self.step((0, token_ids, length))[0] for length in lengths])


def load(config: ModelConfig, numerics: Numerics, seed: int = 0, **options) -> Backbone:
    """A backbone with random weights."""
    token_map = np.arange(VOCAB) if config.engram_layer_ids else None
    source = RandomSource(config, seed)
    return Backbone.load(config, source, numerics, token_map=token_map, **options)


def tokens(seed: int, length: int) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


class ModelKit:
    """What the tests of this folder build models with."""

    make_config = staticmethod(make_config)
    source = RandomSource
    load = staticmethod(load)
    runner = Runner
    tokens = staticmethod(tokens)


@pytest.fixture(scope="session")
def kit() -> type[ModelKit]:
    return ModelKit


NUMERICS = {
    "float32-compute": Numerics("float32", "compute", deterministic=True),
    "float64-packed": Numerics("float64", "packed", deterministic=True),
    "native-packed": Numerics("native", "packed", deterministic=True),
    "native-mxfp8": Numerics("native", "packed", "mxfp8", deterministic=True),
}


@pytest.fixture(scope="session", params=NUMERICS)
def backbone(request) -> Backbone:
    """The small model in deterministic mode, in each arithmetic and cache format."""
    numerics = NUMERICS[request.param]
    return load(make_config(is_quantized=numerics.is_native), numerics)
