"""Parameters by release name, their initial values, and the tensors a forward pass computes with.

Routed experts are kept stacked (``ffn.experts.w13`` [E, 2I, H], ``ffn.experts.w2`` [E, H, I]);
export takes them apart. Everything else has the name it has in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tiny.config import Sizes
from tiny.quantise import rows_mxfp8, weight_mxfp4, weight_mxfp8

_MXFP8_SUFFIXES = (
    "attn.wq_a.weight",
    "attn.wq_b.weight",
    "attn.wkv.weight",
    "attn.wo_a.weight",
    "attn.wo_b.weight",
    "indexer.wq_b.weight",
    "shared_experts.w13",
    "shared_experts.w2",
    "engram.wkv.weight",
    "main_proj.weight",
)
_MXFP4_SUFFIXES = ("ffn.experts.w13", "ffn.experts.w2")
_FLOAT32_SUFFIXES = ("_fn", "_base", "_scale", "attn_sink", ".gate.weight")
_EMBEDDING_SCALE = 0.3
_TABLE_SCALE = 0.3


class Initial:
    """Draws initial values.

    Args:
        sizes: The model.
        seed: Seed of the generator.
    """

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes = sizes
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float) -> Tensor:
        """Normal values around 0."""
        return torch.randn(*shape, generator=self.generator) * scale

    def linear(self, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        """A matrix that keeps the variance of its input, times `gain` squared."""
        return self.normal(rows, columns, scale=gain * columns**-0.5)

    def backbone(self) -> dict[str, Tensor]:
        """Parameters of the text model."""
        s = self.sizes
        made = {
            "embed.weight": self.normal(s.vocab_size, s.hidden_size, scale=_EMBEDDING_SCALE),
            "head.weight": self.linear(s.vocab_size, s.hidden_size, 0.5),
            "norm.weight": torch.ones(s.hidden_size),
        }
        for layer in range(s.num_hidden_layers):
            prefix = f"layers.{layer}."
            made |= self.block(prefix, s.n_routed_experts, s.num_hidden_layers)
            made |= dict(self.compression(prefix, layer))
            if layer in s.engram_layer_ids:
                made |= self.engram(prefix, s.engram_layer_ids.index(layer))
        return made

    def drafter(self) -> dict[str, Tensor]:
        """Parameters of the drafter."""
        s = self.sizes
        last = f"mtp.{s.num_nextn_predict_layers - 1}."
        features = len(s.dspark_target_layer_ids) * s.hidden_size
        made = {
            "mtp.0.main_proj.weight": self.linear(s.hidden_size, features),
            "mtp.0.main_norm.weight": torch.ones(s.hidden_size),
            f"{last}norm.weight": torch.ones(s.hidden_size),
            f"{last}markov_head.embed.weight": self.normal(
                s.vocab_size, s.dspark_markov_rank, scale=0.3
            ),
            f"{last}markov_head.head.weight": self.normal(
                s.vocab_size, s.dspark_markov_rank, scale=0.1
            ),
            f"{last}confidence_head.proj.weight": torch.zeros(
                1, s.hidden_size + s.dspark_markov_rank
            ),
        }
        for block in range(s.num_nextn_predict_layers):
            made |= self.block(
                f"mtp.{block}.", s.dspark_n_routed_experts, s.num_nextn_predict_layers
            )
        return made

    def block(self, prefix: str, experts: int, depth: int) -> dict[str, Tensor]:
        """What every layer has: norms, hyper-connections, attention, experts."""
        s = self.sizes
        heads = s.num_attention_heads * s.head_dim
        joined = s.o_groups * s.o_lora_rank
        inner = s.moe_intermediate_size
        out = (2 * depth) ** -0.5
        made = {
            "attn_norm.weight": torch.ones(s.hidden_size),
            "ffn_norm.weight": torch.ones(s.hidden_size),
            "attn.wq_a.weight": self.linear(s.q_lora_rank, s.hidden_size),
            "attn.q_norm.weight": torch.ones(s.q_lora_rank),
            "attn.wq_b.weight": self.linear(heads, s.q_lora_rank),
            "attn.wkv.weight": self.linear(s.head_dim, s.hidden_size),
            "attn.kv_norm.weight": torch.ones(s.head_dim),
            "attn.wo_a.weight": self.linear(joined, heads // s.o_groups),
            "attn.wo_b.weight": self.linear(s.hidden_size, joined, out),
            "attn.attn_sink": torch.zeros(s.num_attention_heads),
            "ffn.gate.weight": self.linear(experts, s.hidden_size),
            "ffn.experts.w13": self.normal(
                experts, 2 * inner, s.hidden_size, scale=s.hidden_size**-0.5
            ),
            "ffn.experts.w2": self.normal(experts, s.hidden_size, inner, scale=out * inner**-0.5),
            "ffn.shared_experts.w13": self.linear(2 * inner, s.hidden_size),
            "ffn.shared_experts.w2": self.linear(s.hidden_size, inner, out),
        }
        for part in ("attn", "ffn"):
            made |= self.hyper_connection(f"hc_{part}_")
        return {f"{prefix}{name}": value for name, value in made.items()}

    def hyper_connection(self, prefix: str) -> dict[str, Tensor]:
        """Nearly the identity on the copies, which start a little different from each other."""
        s = self.sizes
        copies = s.hc_mult
        residual = 3 * torch.eye(copies).flatten()
        spread = self.normal(2 * copies, scale=0.3)
        return {
            f"{prefix}fn": self.linear(s.num_mixes, copies * s.hidden_size),
            f"{prefix}base": torch.cat((spread, residual)),
            f"{prefix}scale": torch.full((3,), 0.1),
        }

    def compression(self, prefix: str, layer: int) -> Iterator[tuple[str, Tensor]]:
        """Compressor of KV sources, indexer of index sources."""
        s = self.sizes
        name = f"{prefix}attn."
        if layer in s.index_source_layer_ids:
            rows = s.index_n_heads * s.index_head_dim
            yield f"{name}indexer.wq_b.weight", self.linear(rows, s.q_lora_rank)
            yield f"{name}indexer.weights_proj.weight", self.linear(s.index_n_heads, s.hidden_size)
        if layer in s.kv_source_layer_ids:
            yield f"{name}indexer.wk.weight", self.linear(s.index_head_dim, s.head_dim)
            yield f"{name}indexer.k_norm.weight", torch.ones(s.index_head_dim)
            yield f"{name}compressor.wkv.weight", self.linear(s.head_dim, s.hidden_size)
            if s.compress_ratios[layer] > 1:
                yield f"{name}compressor.wgate.weight", self.linear(s.head_dim, s.hidden_size, 0.3)
            yield f"{name}compressor.norm.weight", torch.ones(s.head_dim)

    def engram(self, prefix: str, index: int) -> dict[str, Tensor]:
        """Table, projection and gate vectors of one Engram layer."""
        s = self.sizes
        rows = sum(engram_primes(s)[index])
        outputs = (s.hc_mult + 1) * s.hidden_size
        table = self.normal(rows, s.engram_head_dim, scale=_TABLE_SCALE)
        return {
            f"{prefix}engram.embed.weight": table,
            f"{prefix}engram.wkv.weight": self.linear(
                outputs, s.engram_columns * s.engram_head_dim
            ),
            f"{prefix}engram.q_weight": torch.ones(s.hc_mult, s.hidden_size),
            f"{prefix}engram.k_weight": torch.ones(s.hc_mult, s.hidden_size),
        }


def engram_primes(sizes: Sizes) -> list[list[int]]:
    """Primes of the columns of every Engram layer: the next unused ones from the start."""
    count = len(sizes.engram_layer_ids) * sizes.engram_columns
    found: list[int] = []
    candidate = max(sizes.engram_vocab_size, 2)
    while len(found) < count:
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            found.append(candidate)
        candidate += 1
    columns = sizes.engram_columns
    return [found[start : start + columns] for start in range(0, count, columns)]


def compute_weights(
    parameters: dict[str, Tensor], dtype: torch.dtype, quantised: bool
) -> dict[str, Tensor]:
    """Tensors for a forward pass: rounded to the export formats if asked, in the compute dtype."""
    made = {}
    for name, value in parameters.items():
        if quantised and name.endswith(_MXFP8_SUFFIXES):
            value = _shared_rows(name, value)
        elif quantised and name.endswith(_MXFP4_SUFFIXES):
            value = weight_mxfp4(value)
        elif quantised and name.endswith("engram.embed.weight"):
            value = rows_mxfp8(value)
        made[name] = value if name.endswith(_FLOAT32_SUFFIXES) else value.to(dtype)
    return made


def _shared_rows(name: str, value: Tensor) -> Tensor:
    """MXFP8 rounding; stacked gate and up rows have tiles of their own in the file."""
    if name.endswith("w13"):
        gate, up = value.chunk(2)
        return torch.cat((weight_mxfp8(gate), weight_mxfp8(up)))
    return weight_mxfp8(value)
