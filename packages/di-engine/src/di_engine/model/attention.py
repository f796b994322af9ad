"""Multi-query attention over the sliding window and the selected compressed entries.

One vector per position is key and value at once, so the output carries the rotations of the
positions it came from; it is rotated back at the query's position. One softmax runs over both kinds
of keys and a learned sink logit per head (DeepSeek-V4.1 reference `inference/model.py`; technical
report 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.compressor import Compressor
from di_engine.model.indexer import Indexer
from di_engine.model.step import Step
from di_engine.model.weights import WeightReader
from di_kernels import RecordPool, ops

_GATHERED_AT_ONCE = 1 << 22
"""Numbers of keys that a step may lay out at once on a CPU; longer ones go some rows at a time."""


class Attention:
    """Attention of one layer.

    Every layer has its own queries, window keys, sink and output projection. KV source layers also
    write compressed entries, index source layers choose among them; the others read the entries and
    the choice of the latest sources.

    Args:
        config: The model.
        layer: Backbone layer, or behind those a drafter block.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader) -> None:
        prefix = f"{config.block_name(layer)}.attn"
        self.layer = layer
        self.ratio = config.ratio(layer)
        self.source = config.kv_source(layer)
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.q_rank = config.q_lora_rank
        self.num_groups = config.o_groups
        self.norm_eps = config.rms_norm_eps
        self.is_packed = weights.numerics.is_packed
        self.batch_invariant = weights.numerics.deterministic

        self.wq_a_wkv = weights.linear(f"{prefix}.wq_a", f"{prefix}.wkv")
        self.q_norm = weights.wide(f"{prefix}.q_norm.weight")
        self.kv_norm = weights.wide(f"{prefix}.kv_norm.weight")
        self.wq_b = weights.linear(f"{prefix}.wq_b")
        self.sink = weights.wide(f"{prefix}.attn_sink")
        # The reference multiplies by the expanded matrix, its input unquantised.
        wo_a = weights.dense_matrix(f"{prefix}.wo_a")
        self.wo_a = wo_a.view(self.num_groups, config.o_lora_rank, -1)
        self.wo_b = weights.linear(f"{prefix}.wo_b")

        self.compressor = Compressor(config, layer, weights) if config.is_kv_source(layer) else None
        self.indexer = Indexer(config, layer, weights) if config.is_index_source(layer) else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Attends from every row.

        Args:
            x: Normalised layer input, shape [T, H].
            step: The step; caches are written, the selection is replaced by index sources.

        Returns:
            Shape [T, H].
        """
        num_rows = x.shape[0]
        rotations = step.compressed_rotations if self.ratio else step.window_rotations
        q_latent, kv = self.wq_a_wkv(x).split([self.q_rank, self.head_dim], dim=-1)
        q_latent = ops.rms_norm(q_latent, self.q_norm, self.norm_eps)
        q = self.wq_b(q_latent)
        kv = ops.rms_norm(kv, self.kv_norm, self.norm_eps)
        # Both turn by the same angles: the key is one more head.
        heads = torch.cat([q, kv], dim=-1).view(num_rows, self.num_heads + 1, self.head_dim)
        heads = ops.apply_rope(heads, rotations.forward)
        q, kv = heads[:, :-1], heads[:, -1]

        if self.compressor is not None and step.writes_entries:
            self.compressor(x, step)
        if self.indexer is not None:
            self.indexer(x, q_latent, step)
        window, window_slots = self._window(kv, step)
        out = self._attend(q, window, window_slots, step)
        out = ops.apply_rope(out, rotations.inverse)
        out = ops.grouped_linear(
            out.view(num_rows, self.num_groups, -1), self.wo_a, batch_invariant=self.batch_invariant
        )
        return self.wo_b(out.flatten(1))

    def _attend(self, q: Tensor, window: RecordPool, window_slots: Tensor, step: Step) -> Tensor:
        """Outputs of all heads, shape [T, heads, head_dim]."""
        selection = None if self.source is None else step.selection
        num_keys = window_slots.shape[1] + (0 if selection is None else selection.slots.shape[1])
        if q.device.type != "cpu" or q.shape[0] * num_keys * self.head_dim > _GATHERED_AT_ONCE:
            return ops.sparse_attention(
                q,
                window,
                window_slots,
                self.sink,
                selected=None if selection is None else selection.pool,
                selected_slots=None if selection is None else selection.slots,
                batch_invariant=self.batch_invariant,
            )
        # A CPU reads the selected entries once for all layers that share the selection.
        keys = ops.read_records(window, window_slots, self.sink.dtype)
        is_valid = step.window.is_valid
        if selection is not None:
            keys = torch.cat([keys, selection.read(self.sink.dtype)], dim=1)
            is_valid = selection.is_valid
        return ops.sink_attention(
            q, keys, is_valid, self.sink, batch_invariant=self.batch_invariant
        )

    def _window(self, kv: Tensor, step: Step) -> tuple[RecordPool, Tensor]:
        """Stores the new window keys; returns the pool and slots that the rows read."""
        plan, ring = step.window, step.cache.window(self.layer)
        if plan.history_slots is None:
            assert plan.store_slots is not None, "keys are read from where they are stored"
            ops.write_records(ring, plan.store_slots, kv)
            return ring, plan.read_slots
        history = ops.read_records(ring, plan.history_slots, kv.dtype)
        stored = ops.mxfp8_fake_quantize(kv) if self.is_packed else kv
        table = RecordPool(torch.cat([history, stored]), "plain", self.head_dim)
        if plan.store_slots is not None:
            ops.write_records(ring, plan.store_slots, kv)
        return table, plan.read_slots
