"""Mixture of experts: square-root-softplus router, clamped SwiGLU experts, one shared expert.

The router's bias chooses, the unbiased scores weigh. The routing weight is applied before the down
projection (DeepSeek-V4.1 reference `inference/model.py`).
"""

from __future__ import annotations

from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.step import Step
from di_engine.model.weights import WeightReader
from di_kernels import ops


class MixtureOfExperts:
    """Feed-forward part of one layer.

    Args:
        config: The model.
        layer: Backbone layer, or behind those a drafter block.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader) -> None:
        self.name = config.block_name(layer)
        prefix = f"{self.name}.ffn"
        self.num_active = config.num_active_experts(layer)
        self.scaling_factor = config.routed_scaling_factor
        self.limit = config.swiglu_limit
        self.batch_invariant = weights.numerics.deterministic
        is_native = weights.numerics.is_native
        self.gate = weights.wide_linear(f"{prefix}.gate")
        self.gate_bias = weights.wide(f"{prefix}.gate.bias")
        self.w13, self.w2 = weights.experts(f"{prefix}.experts", config.num_experts(layer))
        self.quantizes_routed = is_native and weights.is_quantized(f"{prefix}.experts.0.w1")
        shared = f"{prefix}.shared_experts"
        self.shared_w13 = weights.linear(f"{shared}.w1", f"{shared}.w3").weight
        self.shared_w2 = weights.linear(f"{shared}.w2").weight
        self.quantizes_shared = is_native and weights.is_quantized(f"{shared}.w1")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Maps normalised streams x, shape [T, H], to the layer's feed-forward output."""
        indices, weights = ops.router_topk(
            self.gate(x), self.gate_bias, self.num_active, scaling_factor=self.scaling_factor
        )
        if step.taps is not None:
            step.tap(self.name, gate_indices=indices, gate_weights=weights)
        shared = ops.expert_mlp(
            x,
            self.shared_w13,
            self.shared_w2,
            limit=self.limit,
            quantize_input=self.quantizes_shared,
            batch_invariant=self.batch_invariant,
        )
        return ops.moe_experts(
            x,
            indices,
            weights,
            self.w13,
            self.w2,
            limit=self.limit,
            quantize_input=self.quantizes_routed,
            shared=shared,
            batch_invariant=self.batch_invariant,
        )
