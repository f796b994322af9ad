"""The text model over whole sequences.

Sources of compressed entries and of selections hand their results on to the layers that reuse
them, as in the engine. Two things exist in training only: a loss that teaches index scores to
follow attention, and the loads that balance the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from di_kernels.ops import (
    EngramHashTables,
    YarnScaling,
    engram_hash,
    engram_hash_tables,
    rope_cos_sin,
    rope_frequencies,
)
from tiny import layers
from tiny.config import Sizes
from tiny.quantise import entries_nvfp4, index_mxfp4, rows_mxfp8

_UNSEEN = -1e30


@dataclass(frozen=True, slots=True)
class Mode:
    """How exactly a forward pass imitates the engine.

    Attributes:
        dtype: Compute dtype.
        sparse: Compressed entries are selected by the index scores; otherwise all are read.
        round_caches: Keys are rounded as packed caches round them.
        round_activations: Inputs of quantised linears are rounded to MXFP8.
    """

    dtype: torch.dtype = torch.bfloat16
    sparse: bool = False
    round_caches: bool = False
    round_activations: bool = False


@dataclass(slots=True)
class Rotary:
    """Cosines and sines by position for layers without and with compressed entries, [N, rd / 2]."""

    window: tuple[Tensor, Tensor]
    compressed: tuple[Tensor, Tensor]

    @staticmethod
    def of(sizes: Sizes, length: int, device: torch.device) -> Rotary:
        """Tables for positions below `length`."""
        scaling = sizes.rope_scaling
        yarn = YarnScaling(
            scaling["factor"],
            scaling["original_max_position_embeddings"],
            scaling["beta_fast"],
            scaling["beta_slow"],
        )
        positions = torch.arange(length, device=device)
        rotary = sizes.qk_rope_head_dim
        plain = rope_frequencies(rotary, sizes.rope_theta).to(device)
        scaled = rope_frequencies(rotary, sizes.compress_rope_theta, yarn=yarn).to(device)
        return Rotary(rope_cos_sin(positions, plain), rope_cos_sin(positions, scaled))


@dataclass(slots=True)
class Trace:
    """What a forward pass leaves behind beside its hidden states.

    Attributes:
        loads: Share of the tokens that each expert of each layer received, [layers, E].
        index_losses: One number per index source.
        features: Means over the copies of the streams entering the drafter's target layers.
        selected: Entries that the layers of a segment read, None for all that are visible.
    """

    loads: list[Tensor] = field(default_factory=list)
    index_losses: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Segment:
    """What the layers of a segment share."""

    ratio: int
    entries: Tensor
    index_keys: Tensor
    visible: Tensor  # [1, N, K]
    mask: Tensor  # [1 or B, N, K]
    candidates: Tensor | None = None


class Backbone:
    """Forward pass of the text model.

    Args:
        sizes: The model.
        token_map: Compressed id of each token id, int64 [vocab_size].
        device: Where it runs.
    """

    def __init__(self, sizes: Sizes, token_map: Tensor, device: torch.device) -> None:
        self.sizes = sizes
        self.device = device
        self.token_map = token_map.to(device)
        self.pad_id = int(token_map[sizes.engram_pad_token_id])
        self.hash_tables: EngramHashTables = engram_hash_tables(
            sizes.engram_layer_ids,
            sizes.engram_max_ngram_size,
            sizes.engram_n_heads,
            sizes.engram_vocab_size,
            sizes.engram_compressed_vocab_size,
        ).to(device)
        self._rotary: dict[int, Rotary] = {}

    def rotary(self, length: int) -> Rotary:
        """Rotary tables, made once per length."""
        if length not in self._rotary:
            self._rotary[length] = Rotary.of(self.sizes, length, self.device)
        return self._rotary[length]

    def __call__(
        self, w: dict[str, Tensor], biases: Tensor, tokens: Tensor, mode: Mode
    ) -> tuple[Tensor, Trace]:
        """Runs all layers.

        Args:
            w: Result of `compute_weights`.
            biases: Router biases, float32 [layers, E].
            tokens: Int64 [B, N], N a multiple of the window and of the ratios.
            mode: How to compute.

        Returns:
            Normalised final hidden states [B, N, H], and the trace.
        """
        s = self.sizes
        trace = Trace()
        engram_rows = self.engram_rows(tokens)
        streams = embedding(tokens, w["embed.weight"]).unsqueeze(2).repeat(1, 1, s.hc_mult, 1)
        pre = torch.zeros(*tokens.shape, s.hc_mult, device=tokens.device)
        pre[..., 0] = 1
        segment: _Segment | None = None
        for layer in range(s.num_hidden_layers):
            prefix = f"layers.{layer}."
            if layer in s.engram_layer_ids:
                rows = engram_rows[:, :, s.engram_layer_ids.index(layer)]
                streams = self.engram(w, f"{prefix}engram.", streams, rows)
            if layer in s.dspark_target_layer_ids:
                trace.features.append(streams.detach().float().mean(2).to(streams.dtype))
            mixes = hyper_mixes(s, w, f"{prefix}hc_attn_", streams)
            x = layers.collapse_norm(streams, pre, w[f"{prefix}attn_norm.weight"])
            y, segment = self.attention(w, layer, x, segment, mode, trace)
            streams = layers.expand(y, streams, mixes.post, mixes.residual)
            pre = mixes.pre
            mixes = hyper_mixes(s, w, f"{prefix}hc_ffn_", streams)
            x = layers.collapse_norm(streams, pre, w[f"{prefix}ffn_norm.weight"])
            y, load = experts(s, w, f"{prefix}ffn.", x, biases[layer], s.num_experts_per_tok, mode)
            trace.loads.append(load)
            streams = layers.expand(y, streams, mixes.post, mixes.residual)
            pre = mixes.pre
        return layers.collapse_norm(streams, pre, w["norm.weight"]), trace

    def engram_rows(self, tokens: Tensor) -> Tensor:
        """Table rows of every position, int64 [B, N, Engram layers, columns]."""
        batch, length = tokens.shape
        compressed = self.token_map[tokens]
        back = []
        for distance in range(self.sizes.engram_max_ngram_size):
            shifted = torch.full_like(compressed, -1)
            shifted[:, distance:] = compressed[:, : length - distance]
            back.append(shifted)
        context = torch.stack(back, dim=-1).view(batch * length, -1)
        rows = engram_hash(context, self.pad_id, self.hash_tables)
        return rows.view(batch, length, *rows.shape[1:])

    def engram(self, w: dict[str, Tensor], prefix: str, streams: Tensor, rows: Tensor) -> Tensor:
        """Adds the gated value of the looked-up rows to the streams."""
        s = self.sizes
        looked_up = embedding(rows, w[f"{prefix}embed.weight"])
        projected = linear(looked_up.flatten(-2), w[f"{prefix}wkv.weight"])
        keys, value = projected.split([s.hc_mult * s.hidden_size, s.hidden_size], dim=-1)
        weight = w[f"{prefix}q_weight"].float() * w[f"{prefix}k_weight"].float()
        keys = keys.unflatten(-1, (s.hc_mult, s.hidden_size))
        return layers.engram_gate(streams, keys, value, weight)

    def attention(
        self,
        w: dict[str, Tensor],
        layer: int,
        x: Tensor,
        segment: _Segment | None,
        mode: Mode,
        trace: Trace,
    ) -> tuple[Tensor, _Segment | None]:
        """Attention of one layer; sources replace the segment or its selection."""
        s = self.sizes
        prefix = f"layers.{layer}.attn."
        ratio = s.compress_ratios[layer]
        rotary = self.rotary(x.shape[1])
        cos, sin = rotary.compressed if ratio else rotary.window
        q_latent, q, keys = queries_and_keys(s, w, prefix, x, (cos, sin), mode)
        if layer in s.kv_source_layer_ids:
            segment = self.compress(w, prefix, x, ratio, mode)
        scores = None
        if layer in s.index_source_layer_ids and segment is not None:
            scores = self.select(w, layer, x, q_latent, segment, mode)
        sink = w[f"{prefix}attn_sink"]
        if ratio == 0 or segment is None:
            out, _ = layers.attend(q, keys, sink, s.sliding_window)
        else:
            out, read = layers.attend(
                q, keys, sink, s.sliding_window, segment.entries, segment.mask
            )
            if scores is not None and read is not None and torch.is_grad_enabled():
                trace.index_losses.append(_index_loss(scores, read, segment.mask))
        return output(s, w, prefix, out, (cos, sin), mode), segment

    def compress(
        self, w: dict[str, Tensor], prefix: str, x: Tensor, ratio: int, mode: Mode
    ) -> _Segment:
        """Entries and index keys of a KV source; all visible entries are read at first."""
        length = x.shape[1]
        values = linear(x, w[f"{prefix}compressor.wkv.weight"])
        if ratio > 1:
            gates = linear(x, w[f"{prefix}compressor.wgate.weight"])
            values = layers.pool_pairs(values.float(), gates.float()).to(x.dtype)
        latent = layers.rms_norm(values, w[f"{prefix}compressor.norm.weight"])
        cos, sin = (table[::ratio] for table in self.rotary(length).compressed)
        entries = layers.rotate(latent, cos, sin)
        index_keys = linear(latent.detach(), w[f"{prefix}indexer.wk.weight"])
        index_keys = layers.rms_norm(index_keys, w[f"{prefix}indexer.k_norm.weight"])
        index_keys = layers.rotate(index_keys, cos, sin)
        if mode.round_caches:
            entries, index_keys = entries_nvfp4(entries), index_mxfp4(index_keys)
        position = torch.arange(length, device=x.device)[:, None]
        entry = torch.arange(length // ratio, device=x.device)
        visible = ((entry + 1) * ratio - 1 <= position).unsqueeze(0)
        return _Segment(ratio, entries, index_keys, visible, visible)

    def select(
        self,
        w: dict[str, Tensor],
        layer: int,
        x: Tensor,
        q_latent: Tensor,
        segment: _Segment,
        mode: Mode,
    ) -> Tensor:
        """Index scores of all entries; in sparse mode they choose what the segment reads.

        The inputs carry no gradient: the scores learn from `_index_loss` alone.
        """
        s = self.sizes
        prefix = f"layers.{layer}.attn.indexer."
        inputs = q_latent.detach()
        if mode.round_activations:
            inputs = rows_mxfp8(inputs)
        q = linear(inputs, w[f"{prefix}wq_b.weight"])
        q = q.unflatten(-1, (s.index_n_heads, s.index_head_dim))
        cos, sin = self.rotary(x.shape[1]).compressed
        q = layers.rotate(q, cos[:, None], sin[:, None])
        if mode.round_caches:
            q = index_mxfp4(q)
        head_weights = linear(x.detach(), w[f"{prefix}weights_proj.weight"])
        scores = layers.index_scores(q, head_weights, segment.index_keys)
        if mode.sparse:
            with torch.no_grad():
                self._choose(layer, scores.detach(), segment)
        return scores

    def _choose(self, layer: int, scores: Tensor, segment: _Segment) -> None:
        s = self.sizes
        allowed = segment.visible
        is_candidate_user = 0 <= s.candidate_source_layer_id < layer
        if is_candidate_user and segment.candidates is not None:
            allowed = allowed & segment.candidates
        masked = scores.masked_fill(~allowed, _UNSEEN)
        segment.mask = allowed & _among_largest(masked, s.index_topk)
        if layer == s.candidate_source_layer_id:
            size = s.candidate_block_size
            blocks = masked.unflatten(-1, (-1, size)).amax(-1)
            newest = (segment.visible.sum(-1, keepdim=True) - 1).clamp_min(0) // size
            pinned = torch.arange(blocks.shape[-1], device=scores.device) == newest
            blocks = blocks.masked_fill(pinned, torch.finfo(blocks.dtype).max)
            chosen = _among_largest(blocks, s.candidate_topk_blocks)
            segment.candidates = chosen.repeat_interleave(size, dim=-1)


def hyper_mixes(s: Sizes, w: dict[str, Tensor], prefix: str, streams: Tensor) -> layers.Mixes:
    """Coefficients of the hyper-connection whose tensors start with `prefix`."""
    fn, scale, base = (w[f"{prefix}{name}"] for name in ("fn", "scale", "base"))
    return layers.hyper_mixes(streams, fn, scale, base, s.hc_sinkhorn_iters, s.hc_eps)


def queries_and_keys(
    s: Sizes,
    w: dict[str, Tensor],
    prefix: str,
    x: Tensor,
    rotary: tuple[Tensor, Tensor],
    mode: Mode,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query latent [.., rank], rotated queries [.., h, d] and rotated keys [.., d]."""
    cos, sin = rotary
    if mode.round_activations:
        x = rows_mxfp8(x)
    q_latent = layers.rms_norm(linear(x, w[f"{prefix}wq_a.weight"]), w[f"{prefix}q_norm.weight"])
    inputs = rows_mxfp8(q_latent) if mode.round_activations else q_latent
    q = linear(inputs, w[f"{prefix}wq_b.weight"])
    q = q.unflatten(-1, (s.num_attention_heads, s.head_dim))
    q = layers.rotate(q, cos.unsqueeze(-2), sin.unsqueeze(-2))
    keys = context_keys(w, prefix, x, rotary, mode)
    return q_latent, q, keys


def context_keys(
    w: dict[str, Tensor], prefix: str, x: Tensor, rotary: tuple[Tensor, Tensor], mode: Mode
) -> Tensor:
    """Rotated window keys [.., d] of inputs that are rounded already."""
    keys = layers.rms_norm(linear(x, w[f"{prefix}wkv.weight"]), w[f"{prefix}kv_norm.weight"])
    keys = layers.rotate(keys, *rotary)
    return rows_mxfp8(keys) if mode.round_caches else keys


def output(
    s: Sizes,
    w: dict[str, Tensor],
    prefix: str,
    out: Tensor,
    rotary: tuple[Tensor, Tensor],
    mode: Mode,
) -> Tensor:
    """Attention outputs [.., h, d], rotated back and projected in groups: [.., H]."""
    cos, sin = rotary
    out = layers.rotate(out, cos.unsqueeze(-2), -sin.unsqueeze(-2))
    grouped = out.flatten(-2).unflatten(-1, (s.o_groups, -1))
    matrices = w[f"{prefix}wo_a.weight"].view(s.o_groups, s.o_lora_rank, -1)
    joined = torch.cat(
        [linear(grouped[..., group, :], matrix) for group, matrix in enumerate(matrices)], dim=-1
    )
    if mode.round_activations:
        joined = rows_mxfp8(joined)
    return linear(joined, w[f"{prefix}wo_b.weight"])


def experts(
    s: Sizes,
    w: dict[str, Tensor],
    prefix: str,
    x: Tensor,
    bias: Tensor,
    active: int,
    mode: Mode,
) -> tuple[Tensor, Tensor]:
    """Routed and shared experts [.., H], and the share of tokens of each routed expert.

    All experts are computed for all tokens: with experts so small that is one product, and the
    weights of those not chosen are zero.
    """
    logits = linear(x.float(), w[f"{prefix}gate.weight"])
    weights = layers.route(logits, bias, active, s.routed_scaling_factor)
    load = (weights.detach() > 0).float().flatten(0, -2).mean(0)
    inputs = rows_mxfp8(x) if mode.round_activations else x
    routed, shared = w[f"{prefix}experts.w13"], w[f"{prefix}shared_experts.w13"]
    gate_up = linear(inputs, torch.cat((routed.flatten(0, 1), shared)))
    gate_up = gate_up.unflatten(-1, (routed.shape[0] + 1, -1))
    all_weights = torch.cat((weights, torch.ones_like(weights[..., :1])), dim=-1)
    inner = layers.gated_experts(gate_up, all_weights, s.swiglu_limit)
    if mode.round_activations:
        inner = rows_mxfp8(inner)
    down = w[f"{prefix}experts.w2"].transpose(0, 1).flatten(1)
    down = torch.cat((down, w[f"{prefix}shared_experts.w2"]), dim=1)
    return linear(inner.flatten(-2), down), load


def _among_largest(values: Tensor, count: int) -> Tensor:
    """Which values of the last dimension are among the `count` largest, exactly that many."""
    chosen = torch.topk(values, min(count, values.shape[-1]), dim=-1).indices
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, chosen, True)


def _index_loss(scores: Tensor, read: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy between attention to the entries read, and the scores among them."""
    target = read / read.sum(-1, keepdim=True).clamp_min(1e-6)
    logs = torch.log_softmax(scores.masked_fill(~mask, _UNSEEN), dim=-1)
    return -(target * logs.masked_fill(~mask, 0.0)).sum(-1).mean()
