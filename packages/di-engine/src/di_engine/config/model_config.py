"""`ModelConfig`: what a `config.json` of the DeepSeek-V4.1 architecture says, checked and typed.

Field names are the keys of the file. Sources: the `config.json` of DeepSeek-V4.1-Flash, DeepInfer
0.1.0 `hugging_face/config.py` and `cross_layer.py`, vLLM `configs/deepseek_v41.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from di_engine.errors import ConfigError

__all__ = ["ModelConfig", "QuantizationConfig", "RopeScaling", "VisionConfig"]

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """YaRN parameters, applied to the layers that have compressed entries."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """Formats of a quantised checkpoint: MXFP8 linears, MXFP4 routed experts, UE8M0 scales."""

    quant_method: str = "fp8"
    activation_scheme: str = "dynamic"
    weight_block_size: tuple[int, int] = (32, 32)
    scale_fmt: str = "ue8m0"
    expert_dtype: str = "fp4"


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision tower and the limits of image preparation (pixels, tokens)."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One checkpoint's architecture. Build it with `from_dict` or `from_directory`.

    Layers are counted from 0. `compress_ratios` has an entry per backbone layer and then one per
    drafter block; all other per-layer questions are answered by the methods. `quantization` is None
    for a checkpoint of BF16 and F32 tensors, `vision` is None without a vision tower,
    `candidate_source_layer_id` is -1 without candidate blocks. `global_format` is the record format
    the checkpoint asks for in the global cache. `unknown_keys` are keys of the file with no meaning
    here; they change nothing and are reported.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    rms_norm_eps: float
    max_position_embeddings: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int

    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float

    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float

    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int

    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    quantization: QuantizationConfig | None
    vision: VisionConfig | None
    global_format: Literal["fp4", "mxfp8"]
    unknown_keys: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Parses the object of a `config.json`.

        Raises:
            ConfigError: Listing every missing, unsupported or contradictory field with its value
                and what is supported.
        """
        from di_engine.config.model_parse import parse_model_config

        return parse_model_config(values)

    @classmethod
    def from_directory(cls, directory: str | Path) -> ModelConfig:
        """Parses `config.json` of a checkpoint directory.

        Raises:
            ConfigError: The file is absent, is not a JSON object, or describes something that is
                not supported.
        """
        path = Path(directory) / CONFIG_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"no `{CONFIG_FILE}` in `{directory}`; give a checkpoint directory in the "
                "Hugging Face layout"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"`{path}` is not readable JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"`{path}` holds a {type(values).__name__}, expected an object")
        try:
            return cls.from_dict(values)
        except ConfigError as error:
            raise ConfigError(f"`{path}`: {error}") from None

    # Questions about one backbone layer.

    @property
    def decoder_start(self) -> int | None:
        """First layer of the decoder half: the last KV source; None without any.

        From there on a layer leaves nothing in the global cache, but for that layer's own entries.
        """
        return max(self.kv_source_layer_ids, default=None)

    def ratio(self, layer: int) -> int:
        """Tokens per compressed entry of a layer; 0 means sliding window only."""
        return self.compress_ratios[layer]

    def kv_source(self, layer: int) -> int | None:
        """Layer whose compressed entries this layer reads; None for a window-only layer."""
        return self._source(layer, self.kv_source_layer_ids)

    def index_source(self, layer: int) -> int | None:
        """Layer whose selected entries this layer reads; None for a window-only layer."""
        return self._source(layer, self.index_source_layer_ids)

    def _source(self, layer: int, sources: tuple[int, ...]) -> int | None:
        if self.ratio(layer) == 0:
            return None
        return max((source for source in sources if source <= layer), default=None)

    def is_kv_source(self, layer: int) -> bool:
        """Whether the layer owns a compressor and index keys."""
        return layer in self.kv_source_layer_ids

    def is_index_source(self, layer: int) -> bool:
        """Whether the layer scores and selects entries itself."""
        return layer in self.index_source_layer_ids

    def is_candidate_source(self, layer: int) -> bool:
        """Whether the layer selects the candidate blocks that later index sources stay inside."""
        return layer == self.candidate_source_layer_id

    def uses_candidates(self, layer: int) -> bool:
        """Whether the layer selects its entries inside the candidate blocks."""
        return 0 <= self.candidate_source_layer_id < layer and self.is_index_source(layer)

    def has_engram(self, layer: int) -> bool:
        """Whether the layer starts with an Engram lookup."""
        return layer in self.engram_layer_ids

    def engram_index(self, layer: int) -> int:
        """Place of an Engram layer in `engram_layer_ids`."""
        return self.engram_layer_ids.index(layer)

    # Questions about any block; those of the drafter are numbered behind the layers.

    def block_name(self, layer: int) -> str:
        """Common part of a block's tensor names, such as `layers.3` or `mtp.0`."""
        num_layers = self.num_hidden_layers
        return f"layers.{layer}" if layer < num_layers else f"mtp.{layer - num_layers}"

    def num_experts(self, layer: int) -> int:
        """Routed experts of a block."""
        is_backbone = layer < self.num_hidden_layers
        return self.n_routed_experts if is_backbone else self.dspark_n_routed_experts

    def num_active_experts(self, layer: int) -> int:
        """Routed experts that a token takes in a block."""
        is_backbone = layer < self.num_hidden_layers
        return self.num_experts_per_tok if is_backbone else self.dspark_num_experts_per_tok

    # Sizes that follow from others.

    @property
    def is_quantized(self) -> bool:
        """Whether linears are stored as MXFP8 and routed experts as MXFP4."""
        return self.quantization is not None

    @property
    def nope_head_dim(self) -> int:
        """Leading channels of a head that carry no rotation."""
        return self.head_dim - self.qk_rope_head_dim

    @property
    def engram_orders(self) -> int:
        """Number of n-gram orders, 2 to `engram_max_ngram_size`."""
        return self.engram_max_ngram_size - 1

    @property
    def engram_columns(self) -> int:
        """Table rows looked up per token and Engram layer."""
        return self.engram_orders * self.engram_n_heads
