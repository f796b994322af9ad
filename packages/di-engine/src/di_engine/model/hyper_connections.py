"""Hyper-connections: several residual streams, mixed by coefficients computed from them.

A sub-layer reads a weighted sum of the streams and writes its output back to all of them. The
weights of the sum come from the *previous* sub-layer's coefficients, while the output is spread
with the sub-layer's own (the "shifted" form of the DeepSeek-V4.1 reference, `inference/model.py`).
So the mix handed on travels beside the streams through the whole stack.
"""

from __future__ import annotations

from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.weights import WeightReader
from di_kernels import ops
from di_kernels.ops import HyperMixes


class HyperConnection:
    """Coefficients of one sub-layer.

    Args:
        config: The model.
        name: Common part of the tensor names, such as ``layers.0.hc_attn``.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, name: str, weights: WeightReader) -> None:
        self.iterations = config.hc_sinkhorn_iters
        self.eps = config.hc_eps
        self.norm_eps = config.rms_norm_eps
        self.batch_invariant = weights.numerics.deterministic
        self.fn = weights.wide(f"{name}_fn")
        self.scale = weights.wide(f"{name}_scale")
        self.base = weights.wide(f"{name}_base")

    def __call__(self, streams: Tensor) -> HyperMixes:
        """Coefficients for streams of shape [T, C, H]."""
        return ops.hc_mixes(
            streams,
            self.fn,
            self.scale,
            self.base,
            iterations=self.iterations,
            eps=self.eps,
            norm_eps=self.norm_eps,
            batch_invariant=self.batch_invariant,
        )
