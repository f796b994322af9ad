"""A plain transformer for comparison: multi-head attention, SwiGLU, rotary positions, pre-norm.

Its parameters take about as many bytes in BF16 and its tokenizer, data and training time are the
tiny model's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from di_kernels.ops import rope_cos_sin, rope_frequencies
from tiny import layers

_HEAD_SIZE = 32
_ROPE_BASE = 10_000.0


class Plain:
    """Forward pass and initial values.

    Args:
        vocab_size: Tokens.
        hidden: Width, a multiple of 32.
        depth: Layers.
    """

    def __init__(self, vocab_size: int, hidden: int, depth: int) -> None:
        self.vocab_size, self.hidden, self.depth = vocab_size, hidden, depth
        self.inner = 32 * round(hidden * 8 / 3 / 32)
        self._rotary: dict[int, tuple[Tensor, Tensor]] = {}

    @staticmethod
    def of_size(vocab_size: int, num_parameters: int, depth: int) -> Plain:
        """The widest model with at most so many parameters."""
        models = (Plain(vocab_size, width, depth) for width in range(32, 2048, 32))
        return max(
            (model for model in models if model.num_parameters <= num_parameters),
            key=lambda model: model.hidden,
            default=Plain(vocab_size, 32, depth),
        )

    @property
    def num_parameters(self) -> int:
        """Parameters, embedding and head included."""
        per_layer = 4 * self.hidden**2 + 3 * self.hidden * self.inner + 2 * self.hidden
        return 2 * self.vocab_size * self.hidden + self.depth * per_layer + self.hidden

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Initial values by name."""
        generator = torch.Generator().manual_seed(seed)
        hidden, inner = self.hidden, self.inner

        def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
            deviation = gain / math.sqrt(columns)
            return torch.randn(rows, columns, generator=generator).mul_(deviation)

        out = (2 * self.depth) ** -0.5
        made = {
            "embed.weight": matrix(self.vocab_size, hidden, 0.3 * hidden**0.5),
            "head.weight": matrix(self.vocab_size, hidden, 0.5),
            "norm.weight": torch.ones(hidden),
        }
        for layer in range(self.depth):
            made |= {
                f"{layer}.attn_norm.weight": torch.ones(hidden),
                f"{layer}.ffn_norm.weight": torch.ones(hidden),
                f"{layer}.qkv.weight": matrix(3 * hidden, hidden),
                f"{layer}.out.weight": matrix(hidden, hidden, out),
                f"{layer}.up.weight": matrix(2 * inner, hidden),
                f"{layer}.down.weight": matrix(hidden, inner, out),
            }
        return made

    def __call__(self, w: dict[str, Tensor], tokens: Tensor) -> Tensor:
        """Normalised final hidden states [B, N, H] of tokens [B, N]."""
        batch, length = tokens.shape
        if length not in self._rotary:
            frequencies = rope_frequencies(_HEAD_SIZE, _ROPE_BASE).to(tokens.device)
            positions = torch.arange(length, device=tokens.device)
            self._rotary[length] = rope_cos_sin(positions, frequencies)
        cos, sin = self._rotary[length]
        x = embedding(tokens, w["embed.weight"])
        for layer in range(self.depth):
            inputs = layers.rms_norm(x, w[f"{layer}.attn_norm.weight"])
            qkv = linear(inputs, w[f"{layer}.qkv.weight"])
            q, k, v = qkv.view(batch, length, 3, -1, _HEAD_SIZE).permute(2, 0, 3, 1, 4)
            q, k = layers.rotate(q, cos, sin), layers.rotate(k, cos, sin)
            attended = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(attended.transpose(1, 2).flatten(-2), w[f"{layer}.out.weight"])
            inputs = layers.rms_norm(x, w[f"{layer}.ffn_norm.weight"])
            gate, up = linear(inputs, w[f"{layer}.up.weight"]).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, w[f"{layer}.down.weight"])
        return layers.rms_norm(x, w["norm.weight"])
