"""Names, shapes and formats of every tensor of a checkpoint, derived from its configuration.

Sources: tensor listing of the DeepSeek-V4.1-Flash safetensors headers, DeepInfer 0.1.0 name map.
For the release configuration this yields 96,085 tensors and 510,286,023,000 payload bytes, the
`metadata.total_size` of its index file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from di_engine.config import ModelConfig

__all__ = ["ALL_PARTS", "Part", "TensorSpec", "expected_tensors", "part_of_name", "plain_name"]

Part = Literal["text", "drafter", "vision"]
ALL_PARTS: tuple[Part, ...] = ("text", "drafter", "vision")

TILE = 32  # an MXFP8 weight scale covers 32 x 32 values, an MXFP4 one 1 x 32

# Bits of one element by safetensors dtype name; `I8` holds two FP4 codes where a spec says so.
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}

_PREFIX = "model."
_PART_PREFIXES: tuple[tuple[str, Part], ...] = (
    ("mtp.", "drafter"),
    ("vision.", "vision"),
    ("aligner.", "vision"),
    ("image_", "vision"),
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor has to look like.

    Attributes:
        name: Name without the optional `model.` prefix.
        shape: Stored shape; two FP4 codes share one element of an `I8` tensor.
        dtypes: Accepted safetensors dtype names, the preferred one first.
        part: Which part of the model reads it.
        group: Row of the size table it is counted in.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    part: Part
    group: str

    @property
    def num_bytes(self) -> int:
        """Payload bytes in the preferred dtype."""
        return prod(self.shape) * DTYPE_BITS[self.dtypes[0]] // 8

    @property
    def num_parameters(self) -> int:
        """Logical parameters: an FP4 byte counts two, a scale byte none."""
        if self.dtypes[0] == "F8_E8M0":
            return 0
        return prod(self.shape) * (2 if self.dtypes[0] == "I8" else 1)


def plain_name(name: str) -> str:
    """Returns a stored tensor name without the optional `model.` prefix."""
    return name.removeprefix(_PREFIX)


def part_of_name(name: str) -> Part:
    """Returns the part of the model that a plain tensor name belongs to, by its prefix."""
    return next((part for prefix, part in _PART_PREFIXES if name.startswith(prefix)), "text")


def expected_tensors(
    config: ModelConfig, parts: tuple[Part, ...] = ALL_PARTS
) -> dict[str, TensorSpec]:
    """Returns every tensor a checkpoint of this configuration holds, by plain name.

    Args:
        config: The model configuration; its `quantization` decides the stored formats.
        parts: Which parts to list: the text backbone, the drafter, the vision tower.
    """
    listing = _Listing(config)
    specs: list[TensorSpec] = []
    if "text" in parts:
        specs += listing.text()
    if "drafter" in parts:
        specs += listing.drafter()
    if "vision" in parts:
        specs += listing.vision()
    return {spec.name: spec for spec in specs}


class _Listing:
    """Generates the specs; one method per building block of the architecture."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.plain = ("BF16",) if config.is_quantized else ("BF16", "F32")

    # Formats.

    def dense(self, name: str, shape: tuple[int, ...], part: Part, group: str) -> TensorSpec:
        """A tensor that quantised checkpoints keep in BF16."""
        return TensorSpec(name, shape, self.plain, part, group)

    def single(self, name: str, shape: tuple[int, ...], part: Part, group: str) -> TensorSpec:
        """A tensor that is always F32."""
        return TensorSpec(name, shape, ("F32",), part, group)

    def mxfp8(
        self, name: str, rows: int, columns: int, part: Part, group: str
    ) -> Iterator[TensorSpec]:
        """A linear weight with one scale per 32 x 32 tile, or BF16 without quantisation."""
        if not self.config.is_quantized:
            yield self.dense(f"{name}.weight", (rows, columns), part, group)
            return
        scales = (-(-rows // TILE), -(-columns // TILE))
        yield TensorSpec(f"{name}.weight", (rows, columns), ("F8_E4M3",), part, group)
        yield TensorSpec(f"{name}.scale", scales, ("F8_E8M0",), part, group)

    def mxfp4(
        self, name: str, rows: int, columns: int, part: Part, group: str
    ) -> Iterator[TensorSpec]:
        """An expert weight, two codes per byte, one scale per row and 32 inputs."""
        if not self.config.is_quantized:
            yield self.dense(f"{name}.weight", (rows, columns), part, group)
            return
        yield TensorSpec(f"{name}.weight", (rows, columns // 2), ("I8",), part, group)
        yield TensorSpec(f"{name}.scale", (rows, columns // TILE), ("F8_E8M0",), part, group)

    # Text backbone.

    def text(self) -> Iterator[TensorSpec]:
        config = self.config
        vocabulary = (config.vocab_size, config.hidden_size)
        yield self.dense("embed.weight", vocabulary, "text", "embed")
        yield self.dense("head.weight", vocabulary, "text", "head")
        yield self.dense("norm.weight", (config.hidden_size,), "text", "layer norms + final norm")
        for layer in range(config.num_hidden_layers):
            prefix = f"layers.{layer}."
            yield from self.layer_norms(prefix, "text", "layer norms + final norm")
            yield from self.hyper_connections(prefix, "text", "hyper-connections")
            yield from self.attention(prefix, "text", "attention linears, norms, sinks")
            yield from self.index_and_compressor(prefix, layer)
            yield from self.router(prefix, config.n_routed_experts, "text", "routers")
            yield from self.experts(prefix, config.n_routed_experts, "text", "routed experts")
            yield from self.shared_expert(prefix, "text", "shared experts")
            if config.has_engram(layer):
                yield from self.engram(prefix, config.engram_index(layer))

    def layer_norms(self, prefix: str, part: Part, group: str) -> Iterator[TensorSpec]:
        for name in ("attn_norm", "ffn_norm"):
            shape = (self.config.hidden_size,)
            yield self.dense(f"{prefix}{name}.weight", shape, part, group)

    def hyper_connections(self, prefix: str, part: Part, group: str) -> Iterator[TensorSpec]:
        copies = self.config.hc_mult
        mixes = copies * (2 + copies)
        for sub_layer in ("attn", "ffn"):
            name = f"{prefix}hc_{sub_layer}_"
            shape = (mixes, copies * self.config.hidden_size)
            yield self.single(f"{name}fn", shape, part, group)
            yield self.single(f"{name}base", (mixes,), part, group)
            yield self.single(f"{name}scale", (3,), part, group)

    def attention(self, prefix: str, part: Part, group: str) -> Iterator[TensorSpec]:
        c = self.config
        heads = c.num_attention_heads * c.head_dim
        output = c.o_groups * c.o_lora_rank
        name = f"{prefix}attn."
        yield from self.mxfp8(f"{name}wq_a", c.q_lora_rank, c.hidden_size, part, group)
        yield self.dense(f"{name}q_norm.weight", (c.q_lora_rank,), part, group)
        yield from self.mxfp8(f"{name}wq_b", heads, c.q_lora_rank, part, group)
        yield from self.mxfp8(f"{name}wkv", c.head_dim, c.hidden_size, part, group)
        yield self.dense(f"{name}kv_norm.weight", (c.head_dim,), part, group)
        yield from self.mxfp8(f"{name}wo_a", output, heads // c.o_groups, part, group)
        yield from self.mxfp8(f"{name}wo_b", c.hidden_size, output, part, group)
        yield self.single(f"{name}attn_sink", (c.num_attention_heads,), part, group)

    def index_and_compressor(self, prefix: str, layer: int) -> Iterator[TensorSpec]:
        c = self.config
        name = f"{prefix}attn."
        if c.is_index_source(layer):
            rows = c.index_n_heads * c.index_head_dim
            yield from self.mxfp8(f"{name}indexer.wq_b", rows, c.q_lora_rank, "text", "indexer")
            shape: tuple[int, ...] = (c.index_n_heads, c.hidden_size)
            yield self.dense(f"{name}indexer.weights_proj.weight", shape, "text", "indexer")
        if c.is_kv_source(layer):
            shape = (c.index_head_dim, c.head_dim)
            yield self.dense(f"{name}indexer.wk.weight", shape, "text", "indexer")
            shape = (c.index_head_dim,)
            yield self.dense(f"{name}indexer.k_norm.weight", shape, "text", "indexer")
            linears = ("wkv", "wgate") if c.ratio(layer) > 1 else ("wkv",)
            for linear in linears:
                shape = (c.head_dim, c.hidden_size)
                yield self.dense(f"{name}compressor.{linear}.weight", shape, "text", "compressor")
            shape = (c.head_dim,)
            yield self.dense(f"{name}compressor.norm.weight", shape, "text", "compressor")

    def router(self, prefix: str, experts: int, part: Part, group: str) -> Iterator[TensorSpec]:
        name = f"{prefix}ffn.gate."
        yield self.dense(f"{name}weight", (experts, self.config.hidden_size), part, group)
        yield self.single(f"{name}bias", (experts,), part, group)
        yield self.single(f"{name}bias_vl", (experts,), part, group)

    def experts(self, prefix: str, experts: int, part: Part, group: str) -> Iterator[TensorSpec]:
        hidden, inner = self.config.hidden_size, self.config.moe_intermediate_size
        for expert in range(experts):
            name = f"{prefix}ffn.experts.{expert}."
            yield from self.mxfp4(f"{name}w1", inner, hidden, part, group)
            yield from self.mxfp4(f"{name}w3", inner, hidden, part, group)
            yield from self.mxfp4(f"{name}w2", hidden, inner, part, group)

    def shared_expert(self, prefix: str, part: Part, group: str) -> Iterator[TensorSpec]:
        hidden, inner = self.config.hidden_size, self.config.moe_intermediate_size
        name = f"{prefix}ffn.shared_experts."
        yield from self.mxfp8(f"{name}w1", inner, hidden, part, group)
        yield from self.mxfp8(f"{name}w3", inner, hidden, part, group)
        yield from self.mxfp8(f"{name}w2", hidden, inner, part, group)

    def engram(self, prefix: str, index: int) -> Iterator[TensorSpec]:
        c = self.config
        rows = c.engram_num_embeddings[index]
        name = f"{prefix}engram."
        if c.is_quantized:
            shape = (rows, c.engram_head_dim)
            scales = (rows, c.engram_head_dim // TILE)
            yield TensorSpec(f"{name}embed.weight", shape, ("F8_E4M3",), "text", "Engram tables")
            yield TensorSpec(f"{name}embed.scale", scales, ("F8_E8M0",), "text", "Engram tables")
        else:
            shape = (rows, c.engram_head_dim)
            yield self.dense(f"{name}embed.weight", shape, "text", "Engram tables")
        group = "Engram projections and gate vectors"
        outputs = (c.hc_mult + 1) * c.hidden_size
        inputs = c.engram_columns * c.engram_head_dim
        yield from self.mxfp8(f"{name}wkv", outputs, inputs, "text", group)
        for vector in ("q_weight", "k_weight"):
            shape = (c.hc_mult, c.hidden_size)
            yield self.dense(f"{name}{vector}", shape, "text", group)

    # Drafter.

    def drafter(self) -> Iterator[TensorSpec]:
        c = self.config
        last = c.num_nextn_predict_layers - 1
        experts = c.dspark_n_routed_experts
        small = "drafter routers, hyper-connections, norms"
        for block in range(c.num_nextn_predict_layers):
            prefix = f"mtp.{block}."
            yield from self.layer_norms(prefix, "drafter", small)
            yield from self.hyper_connections(prefix, "drafter", small)
            yield from self.attention(prefix, "drafter", "drafter attention")
            yield from self.router(prefix, experts, "drafter", small)
            yield from self.experts(prefix, experts, "drafter", "drafter routed experts")
            yield from self.shared_expert(prefix, "drafter", "drafter shared experts")
            if block == 0:
                yield from self.drafter_input(prefix)
            if block == last:
                yield from self.drafter_output(prefix)

    def drafter_input(self, prefix: str) -> Iterator[TensorSpec]:
        c = self.config
        inputs = len(c.dspark_target_layer_ids) * c.hidden_size
        yield from self.mxfp8(f"{prefix}main_proj", c.hidden_size, inputs, "drafter", _DRAFTER_ENDS)
        shape = (c.hidden_size,)
        yield self.dense(f"{prefix}main_norm.weight", shape, "drafter", _DRAFTER_ENDS)

    def drafter_output(self, prefix: str) -> Iterator[TensorSpec]:
        c = self.config
        markov = (c.vocab_size, c.dspark_markov_rank)
        confidence = (1, c.hidden_size + c.dspark_markov_rank)
        for name, shape in (
            ("norm.weight", (c.hidden_size,)),
            ("markov_head.embed.weight", markov),
            ("markov_head.head.weight", markov),
            ("confidence_head.proj.weight", confidence),
        ):
            yield self.dense(f"{prefix}{name}", shape, "drafter", _DRAFTER_ENDS)

    # Vision.

    def vision(self) -> Iterator[TensorSpec]:
        vision = self.config.vision
        if vision is None:
            return
        width, inner, hidden = vision.hidden_size, vision.intermediate_size, self.config.hidden_size
        patch = 3 * vision.patch_size**2
        cell = width * vision.downsample_ratio**2
        shapes: dict[str, tuple[int, ...]] = {
            "vision.patch_embed.proj.weight": (width, patch),
            "vision.patch_embed.proj.bias": (width,),
        }
        for block in range(vision.num_hidden_layers):
            name = f"vision.blocks.{block}."
            shapes[f"{name}norm1.weight"] = (width,)
            shapes[f"{name}norm2.weight"] = (width,)
            shapes[f"{name}attn.wqkv.weight"] = (3 * width, width)
            shapes[f"{name}attn.wqkv.bias"] = (3 * width,)
            shapes[f"{name}attn.wo.weight"] = (width, width)
            shapes[f"{name}attn.wo.bias"] = (width,)
            shapes[f"{name}mlp.w1.weight"] = (2 * inner, width)
            shapes[f"{name}mlp.w2.weight"] = (width, inner)
        shapes["vision.norm.weight"] = (width,)
        for name, shape in shapes.items():
            yield self.dense(name, shape, "vision", "vision tower")
        for name, shape in (
            ("aligner.w1.weight", (hidden, cell)),
            ("aligner.w1.bias", (hidden,)),
            ("aligner.w2.weight", (hidden, hidden)),
            ("aligner.w2.bias", (hidden,)),
        ):
            yield self.dense(name, shape, "vision", "aligner")
        for name in ("image_start", "image_end", "image_newline"):
            yield self.dense(name, (hidden,), "vision", "image delimiter vectors")


_DRAFTER_ENDS = "drafter projections, Markov and confidence heads"
