"""Engram: hashed n-gram embeddings, added to the residual streams through a gate.

The rows depend on token ids alone, so they are hashed once per step for all Engram layers. A
layer concatenates its rows, projects them to one key per stream and one value, and adds the value
to each stream as far as the stream agrees with its key (DeepSeek-V4.1 reference
`inference/engram.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.batch import StepBatch
from di_engine.model.step import Step
from di_engine.model.token_map import check_token_map
from di_engine.model.weights import WeightReader
from di_kernels import ops


class EngramHasher:
    """Table rows of every token for all Engram layers.

    Args:
        config: A model with at least one Engram layer.
        token_map: Compressed id of each token id, shape [vocab_size].
        device: Where the model runs.
    """

    def __init__(
        self, config: ModelConfig, token_map: NDArray[np.int64], device: torch.device | str
    ) -> None:
        check_token_map(token_map, config)
        self.ngram_size = config.engram_max_ngram_size
        self.pad_id = int(token_map[config.engram_pad_token_id])
        # One entry more: index -1 (no token) compresses to -1.
        self.token_map = torch.from_numpy(np.append(token_map, np.int64(-1))).to(device)
        self.tables = ops.engram_hash_tables(
            config.engram_layer_ids,
            config.engram_max_ngram_size,
            config.engram_n_heads,
            config.engram_vocab_size,
            config.engram_compressed_vocab_size,
        ).to(device)

    def __call__(self, batch: StepBatch, row_request: Tensor) -> Tensor:
        """Rows of all layers, int64, shape [T, Engram layers, columns]."""
        return ops.engram_hash(
            self.token_map[self._context(batch, row_request)], self.pad_id, self.tables
        )

    def _context(self, batch: StepBatch, row_request: Tensor) -> Tensor:
        """Token ids of each row and the tokens before it, nearest first, -1 for none."""
        look_back = self.ngram_size - 1
        back = torch.arange(self.ngram_size, device=row_request.device)
        first_position = batch.context_lens - batch.query_lens
        offset = batch.positions - first_position[row_request]
        relative = offset[:, None] - back
        in_history = row_request[:, None] * look_back + relative + look_back
        num_history = batch.ngram_history.numel()
        in_step = num_history + torch.arange(batch.num_rows, device=back.device)[:, None] - back
        known = torch.cat([batch.ngram_history.flatten(), batch.token_ids])
        return known[torch.where(relative < 0, in_history, in_step)]


class Engram:
    """Engram of one layer.

    Args:
        config: The model.
        layer: A layer with Engram.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader) -> None:
        prefix = f"layers.{layer}.engram"
        self.index = config.engram_index(layer)
        self.norm_eps = config.rms_norm_eps
        self.dtype = weights.numerics.compute_dtype
        self.table = weights.engram_table(f"{prefix}.embed")
        self.wkv = weights.linear(f"{prefix}.wkv")
        self.gate_weight = weights.wide(f"{prefix}.q_weight") * weights.wide(f"{prefix}.k_weight")

    def __call__(self, streams: Tensor, step: Step) -> Tensor:
        """Adds to streams of shape [T, C, H]; rows without a lookup come back unchanged."""
        num_rows, num_copies, hidden = streams.shape
        assert step.engram_rows is not None, "a model with Engram hashes its rows"
        rows = step.engram_rows[:, self.index]
        projected = self.wkv(ops.engram_lookup(self.table, rows, self.dtype))
        keys, value = projected.split([num_copies * hidden, hidden], dim=-1)
        return ops.engram_gate(
            streams,
            keys.view(num_rows, num_copies, hidden),
            value,
            self.gate_weight,
            eps=self.norm_eps,
            row_mask=rows[:, 0] >= 0,
        )
