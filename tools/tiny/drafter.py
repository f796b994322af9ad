"""The DSpark drafter over many anchors at once.

An anchor is a known token at position t; its block of rows stands at t, t + 1, ... with the anchor
and noise tokens as inputs, reads the target's features up to t - 1 and predicts the tokens at
t + 1, t + 2, ... (DeepSeek-V4.1 reference `inference/model.py`; DSpark paper, training objective).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, linear

from tiny import layers
from tiny.backbone import Mode, Rotary, context_keys, experts, hyper_mixes, output, queries_and_keys
from tiny.config import Sizes
from tiny.fuse import fusable
from tiny.quantise import rows_mxfp8

_CROSS_ENTROPY_SHARE = 0.1
_DISTANCE_SHARE = 0.9
_UNSEEN_PAIRS = 0.5


class Draft(NamedTuple):
    """What the blocks give for A anchors per sequence and R rows per anchor.

    Args:
        hidden: Collapsed streams before the final norm, [B, A, R, H].
        logits: Base logits, without the Markov correction, float32 [B, A, R, V].
    """

    hidden: Tensor
    logits: Tensor


class DraftLosses(NamedTuple):
    """Losses of a batch and what they are made of, all scalars."""

    total: Tensor
    cross_entropy: Tensor
    distance: Tensor
    confidence: Tensor


class Drafter:
    """Forward pass of the drafter.

    Args:
        sizes: The model.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.last = f"mtp.{sizes.num_nextn_predict_layers - 1}."

    def __call__(
        self,
        w: dict[str, Tensor],
        biases: Tensor,
        features: Tensor,
        tokens: Tensor,
        anchors: Tensor,
        rotary: Rotary,
        mode: Mode,
    ) -> tuple[Draft, list[Tensor]]:
        """Runs the blocks.

        Args:
            w: Weights of drafter and backbone (embedding and head are shared).
            biases: Router biases, float32 [blocks, E].
            features: Concatenated target features of every position, [B, N, layers * H].
            tokens: Int64 [B, N].
            anchors: Positions of the anchors, int64 [B, A], at least 1.
            rotary: Tables for positions up to N + block size.
            mode: How to compute.

        Returns:
            The draft, and the share of rows of each expert per block.
        """
        s = self.sizes
        rows = s.dspark_block_size
        context = self.context(w, features, mode)
        offsets = torch.arange(rows, device=tokens.device)
        positions = anchors.unsqueeze(-1) + offsets
        cos, sin = (table[positions] for table in rotary.window)
        back = torch.arange(-s.sliding_window, 0, device=tokens.device)
        seen = anchors.unsqueeze(-1) + back  # [B, A, W]
        is_valid = torch.cat((seen >= 0, torch.ones_like(positions, dtype=torch.bool)), dim=-1)
        inputs = torch.full_like(positions, s.dspark_noise_token_id)
        inputs[..., 0] = tokens.gather(1, anchors)

        streams = embedding(inputs, w["embed.weight"]).unsqueeze(-2).repeat(1, 1, 1, s.hc_mult, 1)
        pre = torch.zeros(*inputs.shape, s.hc_mult, device=tokens.device)
        pre[..., 0] = 1
        loads = []
        for block in range(s.num_nextn_predict_layers):
            prefix = f"mtp.{block}."
            mixes = hyper_mixes(s, w, f"{prefix}hc_attn_", streams)
            x = layers.collapse_norm(streams, pre, w[f"{prefix}attn_norm.weight"])
            attn = f"{prefix}attn."
            length = context.shape[1]
            table = tuple(angles[:length] for angles in rotary.window)
            keys = context_keys(w, attn, context, (table[0], table[1]), mode)
            _, q, own = queries_and_keys(s, w, attn, x, (cos, sin), mode)
            both = torch.cat((_gather(keys, seen.clamp_min(0)), own), dim=2)
            out = layers.attend_block(
                q.flatten(0, 1), both.flatten(0, 1), is_valid.flatten(0, 1), w[f"{attn}attn_sink"]
            ).view_as(q)
            y = output(s, w, attn, out, (cos, sin), mode)
            streams = layers.expand(y, streams, mixes.post, mixes.residual)
            pre = mixes.pre
            mixes = hyper_mixes(s, w, f"{prefix}hc_ffn_", streams)
            x = layers.collapse_norm(streams, pre, w[f"{prefix}ffn_norm.weight"])
            active = s.dspark_num_experts_per_tok
            y, load = experts(s, w, f"{prefix}ffn.", x, biases[block], active, mode)
            loads.append(load)
            streams = layers.expand(y, streams, mixes.post, mixes.residual)
            pre = mixes.pre
        hidden = layers.collapse(streams, pre)
        normed = layers.rms_norm(hidden, w[f"{self.last}norm.weight"])
        return Draft(hidden, linear(normed, w["head.weight"]).float()), loads

    def context(self, w: dict[str, Tensor], features: Tensor, mode: Mode) -> Tensor:
        """Projected and normalised features, the input of every block's context keys."""
        inputs = rows_mxfp8(features) if mode.round_activations else features
        projected = linear(inputs, w["mtp.0.main_proj.weight"])
        context = layers.rms_norm(projected, w["mtp.0.main_norm.weight"])
        return rows_mxfp8(context) if mode.round_activations else context

    def corrected(
        self, w: dict[str, Tensor], draft: Draft, entering: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits after the Markov correction, and confidence logits.

        Args:
            w: Weights.
            draft: Result of the blocks.
            entering: Token that enters each row: the anchor, then the drafts, int64 [B, A, R].

        Returns:
            Logits [B, A, R, V] and confidence logits [B, A, R], float32.
        """
        markov = embedding(entering, w[f"{self.last}markov_head.embed.weight"])
        correction = linear(markov, w[f"{self.last}markov_head.head.weight"])
        joined = torch.cat((draft.hidden, markov), dim=-1).float()
        confidence = linear(joined, w[f"{self.last}confidence_head.proj.weight"].float())
        return draft.logits + correction.float(), confidence.squeeze(-1)

    def losses(
        self,
        w: dict[str, Tensor],
        draft: Draft,
        tokens: Tensor,
        target_logits: Tensor,
        anchors: Tensor,
    ) -> DraftLosses:
        """Teacher-forced losses against the target's own distributions.

        Args:
            w: Weights.
            draft: Result of the blocks.
            tokens: Int64 [B, N].
            target_logits: Logits of the target at the rows' positions, [B, A, R, V].
            anchors: Int64 [B, A], at most N - 1 - block size.
        """
        rows = self.sizes.dspark_block_size
        following = anchors.unsqueeze(-1) + torch.arange(rows + 1, device=tokens.device)
        known = tokens.gather(1, following.flatten(1)).view_as(following)
        logits, confidence = self.corrected(w, draft, known[..., :-1])
        decay = torch.exp(-torch.arange(rows, device=tokens.device) / rows)
        weights = decay.expand_as(confidence)
        weights = weights / weights.sum()
        cross_entropy = (weights * layers.token_losses(logits, known[..., 1:])).sum()
        distances = half_distance(logits, target_logits)
        label = (1 - distances.detach()).clamp(0, 1)
        errors = binary_cross_entropy_with_logits(confidence, label, reduction="none")
        confidence_loss = (weights * errors).sum()
        distance = (weights * 2 * distances).sum()
        total = _CROSS_ENTROPY_SHARE * cross_entropy + _DISTANCE_SHARE * distance + confidence_loss
        return DraftLosses(total, cross_entropy, distance, confidence_loss)


def markov_from_pairs(sizes: Sizes, tokens: NDArray[np.uint16]) -> dict[str, Tensor]:
    """Markov head of the rank that best explains how often tokens follow each other.

    The logarithm of observed over expected counts of pairs, cut off after the rank by a singular
    value decomposition.
    """
    vocab, rank = sizes.vocab_size, sizes.dspark_markov_rank
    pairs = tokens[:-1].astype(np.int64) * vocab + tokens[1:]
    counts = torch.from_numpy(np.bincount(pairs, minlength=vocab**2)).view(vocab, vocab).float()
    expected = counts.sum(1, keepdim=True) * counts.sum(0) / counts.sum()
    ratio = torch.log((counts + _UNSEEN_PAIRS) / (expected + _UNSEEN_PAIRS))
    torch.manual_seed(0)
    left, values, right = torch.svd_lowrank(ratio, q=rank, niter=4)
    root = values.sqrt()
    prefix = f"mtp.{sizes.num_nextn_predict_layers - 1}.markov_head."
    return {f"{prefix}embed.weight": left * root, f"{prefix}head.weight": right * root}


@fusable
def half_distance(logits: Tensor, other: Tensor) -> Tensor:
    """Total variation between two softmax distributions."""
    first, second = torch.softmax(logits.float(), -1), torch.softmax(other.float(), -1)
    return 0.5 * (first - second).abs().sum(-1)


def _gather(values: Tensor, positions: Tensor) -> Tensor:
    """Rows of values [B, N, d] at positions [B, A, W]."""
    batch, count, width = positions.shape
    index = positions.reshape(batch, count * width, 1).expand(-1, -1, values.shape[-1])
    return values.gather(1, index).view(batch, count, width, -1)
