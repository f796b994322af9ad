"""The text model: embedding, layers, final norm, output head.

Reads top to bottom; one file per mechanism beside it. Facts: DeepSeek-V4.1 reference
(`inference/model.py`, `inference/engram.py`) and technical report (arXiv 2609.19969).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_engine.cache import Cache
from di_engine.checkpoint import TensorSource
from di_engine.config import ModelConfig
from di_engine.errors import ConfigError
from di_engine.model.batch import StepBatch
from di_engine.model.engram import EngramHasher
from di_engine.model.layer import Layer
from di_engine.model.numerics import Numerics
from di_engine.model.step import Step, StepPlanner
from di_engine.model.truncation import Truncation
from di_engine.model.weights import WeightReader
from di_kernels import ops
from di_kernels.ops import YarnScaling


class Backbone:
    """The text model of one rank. Make it with `load`.

    Args:
        config: The model.
        weights: Where weights come from.
        token_map: Compressed id of each token id, for models with Engram.
    """

    def __init__(
        self, config: ModelConfig, weights: WeightReader, token_map: NDArray[np.int64] | None
    ) -> None:
        self.config = config
        self.numerics = weights.numerics
        self.device = weights.device
        self.planner = _planner(config, self.numerics, self.device)
        self.hasher = None
        if config.engram_layer_ids:
            if token_map is None:
                raise ConfigError(
                    f"`token_map` is required: the model has Engram layers "
                    f"{list(config.engram_layer_ids)}; build it from the checkpoint's tokenizer"
                )
            self.hasher = EngramHasher(config, token_map, self.device)
        self.embedding = weights.tensor("embed.weight")
        self.layers = [Layer(config, i, weights) for i in range(config.num_hidden_layers)]
        self.norm = weights.wide("norm.weight")
        self.head = weights.wide_linear("head")
        first_copy = torch.zeros(config.hc_mult, dtype=self.numerics.wide_dtype)
        first_copy[0] = 1.0
        self.first_mix = first_copy.to(self.device)

    @staticmethod
    def load(
        config: ModelConfig,
        source: TensorSource,
        numerics: Numerics,
        device: torch.device | str = "cpu",
        *,
        token_map: NDArray[np.int64] | None = None,
        keep_packed: bool | None = None,
    ) -> Backbone:
        """Takes the weights of the text model from `source`.

        Drafter and vision tensors are left alone. What memory the weights take is told in
        `di_engine.model.weights`.

        Args:
            config: The model.
            source: Checkpoint tensors by name.
            numerics: Arithmetic and cache storage.
            device: Where the model runs.
            token_map: Compressed id of each token id (`build_token_map`), shape [vocab_size];
                required by models with Engram layers.
            keep_packed: Whether quantised matrices stay in the checkpoint's formats; None expands
                them on a CPU only.

        Raises:
            CheckpointError: A tensor is missing.
            ConfigError: The token map is missing or belongs to another tokenizer.
        """
        return Backbone(config, WeightReader(source, numerics, device, keep_packed), token_map)

    @torch.inference_mode()
    def forward(
        self, batch: StepBatch, cache: Cache, taps: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Runs the rows of a step through all layers.

        Args:
            batch: The rows.
            cache: Read and written.
            taps: When given, receives intermediate tensors by name (``layers.3.attn_out``).

        Returns:
            Normalised final hidden states, compute dtype, shape [T, H]; zeros for rows that a
            truncation drops. `taps` of the decoder half hold the remaining rows alone.
        """
        return self.run(self.start(batch, cache, taps))

    def run(self, step: Step) -> Tensor:
        """Runs all layers of a step; returns what `forward` does."""
        streams, pre_mix = self.embed(step.batch)
        truncation = step.batch.truncation
        if truncation is None:
            return self._run(self.layers, streams, pre_mix, step)
        assert self.config.decoder_start is not None, "checked with the engine's configuration"
        encoder = self.layers[: self.config.decoder_start]
        decoder = self.layers[self.config.decoder_start :]
        for layer in encoder:
            streams, pre_mix = layer(streams, pre_mix, step)
        if truncation.kept is None:
            return self._run(decoder, streams, pre_mix, self._decoder_step(truncation, step))
        decoder[0].write_entries(streams, pre_mix, step)
        return self._run_kept(decoder, streams, pre_mix, step, truncation, truncation.kept.rows)

    def _run(self, layers: Sequence[Layer], streams: Tensor, pre_mix: Tensor, step: Step) -> Tensor:
        """Hidden states behind the last of `layers`."""
        for layer in layers:
            streams, pre_mix = layer(streams, pre_mix, step)
        return self.finish(streams, pre_mix, step)

    def _run_kept(
        self,
        layers: Sequence[Layer],
        streams: Tensor,
        pre_mix: Tensor,
        step: Step,
        truncation: Truncation,
        rows: Tensor,
    ) -> Tensor:
        """Hidden states behind the last of `layers` of some rows, zeros for the others."""

        def spread(values: Tensor) -> Tensor:
            spread_out = values.new_zeros(step.batch.num_rows, *values.shape[1:])
            spread_out[rows] = values
            return spread_out

        features = step.draft_features
        if len(rows) == 0:
            if features is not None:
                features += [torch.zeros_like(streams) for x in layers if x.is_draft_target]
            return streams.new_zeros(len(streams), streams.shape[-1])
        decoder = self._decoder_step(truncation, step)
        decoder.draft_features = None if features is None else []
        hidden = self._run(layers, streams[rows], pre_mix[rows], decoder)
        if features is not None:
            # A drafter stores keys for all rows. Those of dropped rows lie before every window.
            features += [spread(streams) for streams in decoder.draft_features or ()]
        return spread(hidden)

    def _decoder_step(self, truncation: Truncation, step: Step) -> Step:
        """The step as the decoder half sees it."""
        decoder = self.planner.plan(truncation.apply(step.batch), step.cache)
        decoder.taps = step.taps
        decoder.draft_features = step.draft_features
        decoder.candidate_blocks = step.candidate_blocks
        if truncation.kept is not None:
            decoder.writes_entries = False
            if step.candidate_blocks is not None:
                decoder.candidate_blocks = step.candidate_blocks[truncation.kept.rows]
        return decoder

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states of shape [L, H]: wide dtype, shape [L, vocab_size]."""
        return self.head(hidden)

    def start(self, batch: StepBatch, cache: Cache, taps: dict[str, Tensor] | None = None) -> Step:
        """Computes what all layers of a step share."""
        step = self.planner.plan(batch, cache)
        step.taps = taps
        if self.hasher is not None:
            step.engram_rows = self.hasher(batch, step.row_request)
            if taps is not None:
                taps["engram_hash_ids"] = step.engram_rows
        return step

    def embed(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Streams that all hold the embedding, and the mix that reads the first of them."""
        rows = self.embedding[batch.token_ids].to(self.numerics.compute_dtype)
        copies = self.config.hc_mult
        streams = rows[:, None].expand(-1, copies, -1).contiguous()
        return streams, self.first_mix.expand(batch.num_rows, -1)

    def finish(self, streams: Tensor, pre_mix: Tensor, step: Step) -> Tensor:
        """Final hidden states from the last layer's streams and mix."""
        hidden = ops.hc_collapse_norm(
            streams,
            pre_mix,
            self.norm,
            self.config.rms_norm_eps,
            batch_invariant=self.numerics.deterministic,
        )
        if step.taps is not None:
            step.taps["final_norm"] = hidden
        return hidden


def _planner(config: ModelConfig, numerics: Numerics, device: torch.device) -> StepPlanner:
    layers = range(config.num_hidden_layers)
    scaling = config.rope_scaling
    yarn = None
    if scaling is not None:
        yarn = YarnScaling(
            scaling.factor,
            scaling.original_max_position_embeddings,
            scaling.beta_fast,
            scaling.beta_slow,
        )
    rotary_dim = config.qk_rope_head_dim
    return StepPlanner(
        window=config.sliding_window,
        window_offsets=torch.arange(1 - config.sliding_window, 1, device=device),
        ratios=tuple(sorted({config.ratio(layer) for layer in layers} - {0})),
        window_frequencies=ops.rope_frequencies(rotary_dim, config.rope_theta).to(device),
        compressed_frequencies=ops.rope_frequencies(
            rotary_dim, config.compress_rope_theta, yarn=yarn
        ).to(device),
        rotation_dtype=numerics.wide_dtype,
    )
