"""Choice of compressed entries: an index source layer scores all visible ones and keeps the best.

The candidate source also keeps the best blocks of entries; index sources after it ("re-index"
layers) score those blocks alone (DeepSeek-V4.1 reference `inference/model.py`; DeepInfer 0.1.0
`candidate_blocks.py`). Equal scores are decided for the lower entry.
"""

from __future__ import annotations

from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.step import EntryPlan, Step
from di_engine.model.weights import WeightReader
from di_kernels import ops


class Indexer:
    """Replaces the step's selection by this layer's own.

    Args:
        config: The model.
        layer: Index source layer.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader) -> None:
        prefix = f"layers.{layer}.attn.indexer"
        self.layer = layer
        self.ratio = config.ratio(layer)
        source = config.kv_source(layer)
        assert source is not None, "an index source reads the keys of a KV source"
        self.source = source
        self.is_candidate_source = config.is_candidate_source(layer)
        self.uses_candidates = config.uses_candidates(layer)
        self.num_heads = config.index_n_heads
        self.topk = config.index_topk
        self.block_size = config.candidate_block_size
        self.num_candidates = config.candidate_topk_blocks * config.candidate_block_size
        self.is_packed = weights.numerics.is_packed
        self.batch_invariant = weights.numerics.deterministic
        self.wq_b = weights.linear(f"{prefix}.wq_b")
        self.head_weights = weights.linear(f"{prefix}.weights_proj")

    def __call__(self, x: Tensor, q_latent: Tensor, step: Step) -> None:
        """Chooses entries for every row.

        Args:
            x: Layer input, shape [T, H].
            q_latent: Normalised query latent, shape [T, q_lora_rank].
            step: The step; its selection is replaced.
        """
        plan = step.entries[self.ratio]
        entries = self._select(x, q_latent, plan, step)
        step.selected_slots = ops.entries_to_slots(
            entries,
            step.batch.block_tables,
            step.row_request,
            step.cache.layout.block_tokens // self.ratio,
        )
        step.tap(f"layers.{self.layer}.topk_positions", entries)

    def _select(self, x: Tensor, q_latent: Tensor, plan: EntryPlan, step: Step) -> Tensor:
        """Numbers of the chosen entries, ascending, -1 padded, shape [T, at most topk]."""
        if plan.max_visible <= self.topk:
            # Every row sees few enough entries to take them all; so do the candidates, which hold
            # at least `topk` entries.
            return ops.select_all(plan.num_visible, plan.max_visible)

        q = self.wq_b(q_latent).view(x.shape[0], self.num_heads, -1)
        q = ops.apply_rope(q, step.compressed_rotations.forward)
        if self.is_packed:
            q = ops.mxfp4_fake_quantize(q)
        head_weights = self.head_weights(x)
        if self.uses_candidates and step.candidate_blocks is not None:
            return self._select_in_candidates(q, head_weights, plan, step, step.candidate_blocks)

        scores = ops.index_scores(
            q,
            head_weights,
            step.cache.index_keys(self.source),
            step.batch.block_tables,
            step.row_request,
            plan.num_visible,
            max_entries=plan.max_visible,
            batch_invariant=self.batch_invariant,
        )
        if self.is_candidate_source and plan.max_visible > self.num_candidates:
            step.candidate_blocks = ops.select_candidate_blocks(
                scores,
                plan.num_visible,
                block_size=self.block_size,
                num_blocks=self.num_candidates // self.block_size,
            )
            step.tap(f"layers.{self.layer}.candidate_blocks", step.candidate_blocks)
        return ops.select_topk(scores, plan.num_visible, self.topk)

    def _select_in_candidates(
        self, q: Tensor, head_weights: Tensor, plan: EntryPlan, step: Step, blocks: Tensor
    ) -> Tensor:
        scores = ops.candidate_scores(
            q,
            head_weights,
            step.cache.index_keys(self.source),
            step.batch.block_tables,
            step.row_request,
            plan.num_visible,
            blocks,
            block_size=self.block_size,
            max_entries=plan.max_visible,
            batch_invariant=self.batch_invariant,
        )
        visible = ops.candidate_visible(blocks, plan.num_visible, self.block_size)
        compact = ops.select_topk(scores, visible, self.topk)
        return ops.expand_candidates(compact, blocks, self.block_size)
