"""Compressed entries and index keys of a KV source layer.

Each group of `ratio` consecutive tokens becomes one entry: a softmax over the group's gates, per
channel, weighs the projected tokens; the normalised result is the latent. The entry is the latent
rotated at the group's first position, the index key a small projection of the unrotated latent
(DeepSeek-V4.1 reference `inference/model.py`; technical report 3.2). With ratio 1 there is no gate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.step import PoolingPlan, Step
from di_engine.model.weights import WeightReader
from di_kernels import ops


class Compressor:
    """Writes the entries and index keys that a step completes.

    Args:
        config: The model.
        layer: KV source layer.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader) -> None:
        prefix = f"layers.{layer}.attn"
        self.layer = layer
        self.ratio = config.ratio(layer)
        self.head_dim = config.head_dim
        self.norm_eps = config.rms_norm_eps
        values, gates = f"{prefix}.compressor.wkv", f"{prefix}.compressor.wgate"
        pools = self.ratio > 1
        self.project = weights.wide_linear(values, gates) if pools else weights.linear(values)
        self.norm = weights.wide(f"{prefix}.compressor.norm.weight")
        self.index_project = weights.linear(f"{prefix}.indexer.wk")
        self.index_norm = weights.wide(f"{prefix}.indexer.k_norm.weight")

    def __call__(self, x: Tensor, step: Step) -> None:
        """Compresses the layer input x, shape [T, H], into the global cache."""
        plan = step.entries[self.ratio]
        projected = self.project(x)
        if plan.pooling is not None:
            projected = self._pool(projected, plan.pooling, step, x.dtype)
        if projected.shape[0] == 0:
            return
        latent = ops.rms_norm(projected, self.norm, self.norm_eps)
        entry = ops.apply_rope(latent, plan.rotation)
        ops.write_records(step.cache.entries(self.layer), plan.slots, entry)

        index_key = ops.rms_norm(self.index_project(latent), self.index_norm, self.norm_eps)
        index_key = ops.apply_rope(index_key, plan.rotation)
        ops.write_records(step.cache.index_keys(self.layer), plan.slots, index_key)
        if step.taps is not None:
            step.tap(
                f"layers.{self.layer}",
                compressor_latent=latent,
                compress_kv=entry,
                index_k=index_key,
            )

    def _pool(
        self, new_rows: Tensor, plan: PoolingPlan, step: Step, out_dtype: torch.dtype
    ) -> Tensor:
        """Pools the groups that this step completes, shape [G, head_dim]; keeps the open ones."""
        state = step.cache.compressor_state(self.layer)
        members = torch.cat([ops.read_records(state, plan.history_slots, new_rows.dtype), new_rows])
        # Every row is kept, not only those of the open group: rows may be taken back later.
        ops.write_records(state, plan.store_slots, new_rows)
        values, gates = members.split(self.head_dim, dim=-1)
        return ops.compress_pool(values, gates, plan.groups, out_dtype=out_dtype)
