"""A small model with every mechanism on, random weights, and a way to run requests through it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from di_engine.cache import BLOCK_TOKENS, Cache
from di_engine.checkpoint import expected_tensors
from di_engine.config import ModelConfig
from di_engine.model import Backbone, Numerics, RequestRows, StepBatch
from di_engine.testing.small_model import VOCAB_SIZE, small_config
from di_kernels import ops

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
    return ModelConfig.from_dict(quantization | small_config(**changes))


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
    token_map = np.arange(VOCAB_SIZE) if config.engram_layer_ids else None
    source = RandomSource(config, seed)
    return Backbone.load(config, source, numerics, token_map=token_map, **options)


def tokens(seed: int, length: int) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


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
