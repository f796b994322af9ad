"""Choice of compressed entries: an index source layer scores all visible ones and keeps the best.

The candidate source also keeps the best blocks of entries; index sources after it ("re-index"
layers) score those blocks alone (DeepSeek-V4.1 reference `inference/model.py`; DeepInfer 0.1.0
`candidate_blocks.py`). Equal scores are decided for the lower entry.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.step import EntryPlan, Selection, Step
from di_engine.model.weights import WeightReader
from di_kernels import ops

_PRODUCTS_AT_ONCE = 1 << 26
"""Dot products of one scoring call: bounds the memory of long prompt chunks over long contexts."""


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
        slots = ops.entries_to_slots(
            entries,
            step.batch.block_tables,
            step.row_request,
            step.cache.layout.block_tokens // self.ratio,
        )
        step.selection = Selection(step.cache.entries(self.source), slots, step.window.is_valid)
        if step.taps is not None:
            step.tap(f"layers.{self.layer}", topk_positions=entries)

    def _select(self, x: Tensor, q_latent: Tensor, plan: EntryPlan, step: Step) -> Tensor:
        """Numbers of the chosen entries, ascending, -1 padded, shape [T, at most topk]."""
        if plan.max_visible <= self.topk:
            # Every row sees few enough entries to take them all; so do the candidates, which hold
            # at least `topk` entries.
            return ops.select_all(plan.num_visible, plan.max_visible)

        num_rows = x.shape[0]
        q = self.wq_b(q_latent).view(num_rows, self.num_heads, -1)
        q = ops.apply_rope(q, step.compressed_rotations.forward)
        if self.is_packed:
            q = ops.mxfp4_fake_quantize(q)
        head_weights = self.head_weights(x)
        rows_at_once = max(1, _PRODUCTS_AT_ONCE // (self.num_heads * plan.max_visible))
        parts = []
        for start in range(0, num_rows, rows_at_once):
            rows = slice(start, start + rows_at_once)
            parts.append(self._select_rows(q[rows], head_weights[rows], rows, plan, step))
        blocks = [part for _, part in parts if part is not None]
        if blocks:
            step.candidate_blocks = torch.cat(blocks)
            if step.taps is not None:
                step.tap(f"layers.{self.layer}", candidate_blocks=step.candidate_blocks)
        return torch.cat([entries for entries, _ in parts])

    def _select_rows(
        self, q: Tensor, head_weights: Tensor, rows: slice, plan: EntryPlan, step: Step
    ) -> tuple[Tensor, Tensor | None]:
        """Chosen entries of some rows, and their candidate blocks if this layer chooses them."""
        num_visible = plan.num_visible[rows]
        scored = (
            q,
            head_weights,
            step.cache.index_keys(self.source),
            step.batch.block_tables,
            step.row_request[rows],
            num_visible,
        )
        if self.uses_candidates and step.candidate_blocks is not None:
            blocks = step.candidate_blocks[rows]
            scores = ops.candidate_scores(
                *scored,
                blocks,
                block_size=self.block_size,
                max_entries=plan.max_visible,
                batch_invariant=self.batch_invariant,
            )
            visible = ops.candidate_visible(blocks, num_visible, self.block_size)
            compact = ops.select_topk(scores, visible, self.topk)
            return ops.expand_candidates(compact, blocks, self.block_size), None

        scores = ops.index_scores(
            *scored, max_entries=plan.max_visible, batch_invariant=self.batch_invariant
        )
        entries = ops.select_topk(scores, num_visible, self.topk)
        if not self.is_candidate_source or plan.max_visible <= self.num_candidates:
            return entries, None
        return entries, ops.select_candidate_blocks(
            scores,
            num_visible,
            block_size=self.block_size,
            num_blocks=self.num_candidates // self.block_size,
        )
