"""One layer: Engram where there is one, then attention and experts, each behind its mix."""

from __future__ import annotations

from torch import Tensor

from di_engine.config import ModelConfig
from di_engine.model.attention import Attention
from di_engine.model.engram import Engram
from di_engine.model.experts import MixtureOfExperts
from di_engine.model.hyper_connections import HyperConnection
from di_engine.model.step import Step
from di_engine.model.weights import WeightReader
from di_kernels import ops
from di_kernels.ops import HyperMixes


class Layer:
    """Backbone layer or drafter block.

    Args:
        config: The model.
        layer: Its number, from 0; drafter blocks are numbered behind the layers.
        weights: Where weights come from.
    """

    def __init__(self, config: ModelConfig, layer: int, weights: WeightReader) -> None:
        self.name = config.block_name(layer)
        self.is_draft_target = layer in config.dspark_target_layer_ids
        self.norm_eps = config.rms_norm_eps
        self.batch_invariant = weights.numerics.deterministic
        self.engram = Engram(config, layer, weights) if config.has_engram(layer) else None
        self.attention_mix = HyperConnection(config, f"{self.name}.hc_attn", weights)
        self.attention_norm = weights.wide(f"{self.name}.attn_norm.weight")
        self.attention = Attention(config, layer, weights)
        self.ffn_mix = HyperConnection(config, f"{self.name}.hc_ffn", weights)
        self.ffn_norm = weights.wide(f"{self.name}.ffn_norm.weight")
        self.experts = MixtureOfExperts(config, layer, weights)

    def __call__(self, streams: Tensor, pre_mix: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Runs the layer.

        Args:
            streams: Residual streams, compute dtype, shape [T, C, H].
            pre_mix: Mix handed on by the sub-layer before, wide dtype, shape [T, C].
            step: The step.

        Returns:
            Streams and mix for the next layer.
        """
        if self.engram is not None:
            streams = self.engram(streams, step)
            if step.taps is not None:
                step.tap(self.name, engram_out=streams)
        if self.is_draft_target and step.draft_features is not None:
            step.draft_features.append(streams)

        mixes = self.attention_mix(streams)
        x = self._collapse(streams, pre_mix, self.attention_norm)
        attended = self.attention(x, step)
        streams = self._expand(attended, streams, mixes)
        if step.taps is not None:
            step.tap(self.name, attn_norm_out=x, attn_out=attended)

        # The experts read the streams through the mix that attention's coefficients brought.
        pre_mix = mixes.pre
        mixes = self.ffn_mix(streams)
        x = self._collapse(streams, pre_mix, self.ffn_norm)
        fed = self.experts(x, step)
        streams = self._expand(fed, streams, mixes)
        if step.taps is not None:
            step.tap(self.name, ffn_norm_out=x, ffn_out=fed, stream=streams, pre_mix=mixes.pre)
        return streams, mixes.pre

    def write_entries(self, streams: Tensor, pre_mix: Tensor, step: Step) -> None:
        """Does what a KV source leaves in the global cache, and nothing else of the layer."""
        assert self.engram is None, "an Engram layer changes the streams first"
        assert self.attention.compressor is not None, "only KV sources write entries"
        x = self._collapse(streams, pre_mix, self.attention_norm)
        self.attention.compressor(x, step)

    def _collapse(self, streams: Tensor, pre_mix: Tensor, norm: Tensor) -> Tensor:
        return ops.hc_collapse_norm(
            streams, pre_mix, norm, self.norm_eps, batch_invariant=self.batch_invariant
        )

    def _expand(self, y: Tensor, streams: Tensor, mixes: HyperMixes) -> Tensor:
        return ops.hc_expand(
            y, streams, mixes.post, mixes.residual, batch_invariant=self.batch_invariant
        )
