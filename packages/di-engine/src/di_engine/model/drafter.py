"""DSpark: the drafter of the checkpoint, blocks `mtp.*`.

It drafts a block of tokens in one pass over a few transformer blocks. Their rows are the newest
token and noise tokens; they attend to each other and to a window of context, whose keys are made
from the *backbone's* streams, never from the drafter's own. The rows give base logits in parallel;
a small sequential head, indexed by the token before, corrects each row once that token is drawn,
and another predicts whether the draft will be accepted (DeepSeek-V4.1 reference
`inference/model.py`; DSpark, arXiv 2607.05147).

The block is always run at its trained length, because its rows see each other: whoever wants fewer
drafts draws fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di_engine.cache import Cache
from di_engine.checkpoint import TensorSource
from di_engine.config import ModelConfig
from di_engine.errors import ConfigError
from di_engine.model.backbone import Backbone
from di_engine.model.batch import StepBatch
from di_engine.model.layer import Layer
from di_engine.model.step import Rotations, Step, WindowPlan
from di_engine.model.weights import WeightReader
from di_kernels import ops

__all__ = ["DraftBlock", "Drafter", "DraftingModel"]


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Output of one pass; R requests, B rows of a block.

    Attributes:
        hidden: Collapsed streams before the final norm, compute dtype, shape [R, B, H].
        base_logits: Logits of each row alone, wide dtype, shape [R, B, vocab_size].
    """

    hidden: Tensor
    base_logits: Tensor


class Drafter:
    """The drafter of one rank. Make it with `load`.

    Args:
        config: The model.
        weights: Where weights come from.
        backbone: The model it drafts for; embedding, head and rotations are shared.
    """

    def __init__(self, config: ModelConfig, weights: WeightReader, backbone: Backbone) -> None:
        num_blocks = config.num_nextn_predict_layers
        if num_blocks == 0:
            raise ConfigError(
                "the model has no drafter (`num_nextn_predict_layers`: 0); use "
                "`speculation.drafter`: none or ngram"
            )
        first = config.num_hidden_layers
        last = config.block_name(first + num_blocks - 1)
        self.config = config
        self.backbone = backbone
        self.block_size = config.dspark_block_size
        self.layer_ids = range(first, first + num_blocks)
        self.blocks = [Layer(config, layer, weights) for layer in self.layer_ids]
        names = [config.block_name(layer) for layer in self.layer_ids]
        self.context_project = weights.linear(f"{names[0]}.main_proj")
        self.context_norm = weights.wide(f"{names[0]}.main_norm.weight")
        self.context_wkv = weights.linear(*(f"{name}.attn.wkv" for name in names))
        self.norm = weights.wide(f"{last}.norm.weight")
        self.markov_embedding = weights.tensor(f"{last}.markov_head.embed.weight")
        self.markov_head = weights.wide_linear(f"{last}.markov_head.head")
        self.confidence_head = weights.wide_linear(f"{last}.confidence_head.proj")
        offsets = torch.arange(self.block_size, device=backbone.device)
        self.row_offsets = offsets
        self.window_offsets = torch.arange(-config.sliding_window, 0, device=backbone.device)

    @staticmethod
    def load(
        config: ModelConfig,
        source: TensorSource,
        backbone: Backbone,
        *,
        keep_packed: bool | None = None,
    ) -> Drafter:
        """Takes the weights of the drafter from `source`.

        Args:
            config: The model.
            source: Checkpoint tensors by name.
            backbone: The model it drafts for, with its numerics and device.
            keep_packed: As for `Backbone.load`.

        Raises:
            CheckpointError: A tensor is missing.
            ConfigError: The model has no drafter.
        """
        reader = WeightReader(source, backbone.numerics, backbone.device, keep_packed)
        return Drafter(config, reader, backbone)

    @torch.inference_mode()
    def extend_context(self, step: Step) -> None:
        """Stores the context keys of a step's rows, accepted or not.

        The rows of rejected drafts lie where the next step writes before anything reads there.

        Args:
            step: A step whose layers have run with `draft_features` as an empty list. Modifies the
                drafter's rings of its cache.
        """
        features, store_slots = step.draft_features, step.window.store_slots
        assert features is not None, "the step was run for a drafter"
        assert store_slots is not None, "the step keeps its rows"
        wide, compute = self.norm.dtype, features[0].dtype
        means = [streams.to(wide).mean(1).to(compute) for streams in features]
        context = self.context_project(torch.cat(means, dim=1))
        context = ops.rms_norm(context, self.context_norm, self.config.rms_norm_eps)
        keys = self.context_wkv(context).split(self.config.head_dim, dim=1)
        for layer, block, key in zip(self.layer_ids, self.blocks, keys, strict=True):
            key = ops.rms_norm(key, block.attention.kv_norm, self.config.rms_norm_eps)
            key = ops.apply_rope(key, step.window_rotations.forward)
            ops.write_records(step.cache.window(layer), store_slots, key)

    @torch.inference_mode()
    def run(
        self,
        anchor_ids: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        window_starts: Tensor,
        cache: Cache,
        taps: dict[str, Tensor] | None = None,
    ) -> DraftBlock:
        """Runs the block of every request.

        Args:
            anchor_ids: Newest token of each request, which the backbone has not seen yet, int64
                [R].
            positions: Position of that token; all context before it is stored, int64 [R].
            state_slots: State slot of each request, int64 [R].
            window_starts: First position whose context key may be read, int64 [R].
            cache: Rings; read only.
            taps: As for `Backbone.forward`.
        """
        num_requests = anchor_ids.shape[0]
        step = self._step(anchor_ids, positions, state_slots, window_starts, cache)
        step.taps = taps
        streams, pre_mix = self.backbone.embed(step.batch)
        for block in self.blocks:
            streams, pre_mix = block(streams, pre_mix, step)
        invariant = self.backbone.numerics.deterministic
        hidden = ops.hc_collapse(streams, pre_mix, batch_invariant=invariant)
        normed = ops.rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        logits = self.backbone.logits(normed)
        shape = (num_requests, self.block_size, -1)
        return DraftBlock(hidden.view(shape), logits.view(shape))

    @torch.inference_mode()
    def correct(self, block: DraftBlock, row: int, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and confidence of one row, once the token that enters it is known.

        Args:
            block: The pass.
            row: Row of the block.
            token_ids: The token before the one to draw, int64 [R]: the anchor for row 0, then the
                drafts.

        Returns:
            Logits, wide dtype, shape [R, vocab_size], and the confidence logit of the draft that
            is drawn from them, shape [R].
        """
        embedded = self.markov_embedding[token_ids].to(block.hidden.dtype)
        logits = block.base_logits[:, row] + self.markov_head(embedded)
        inputs = torch.cat([block.hidden[:, row], embedded], dim=1)
        return logits, self.confidence_head(inputs).squeeze(1)

    def _step(
        self,
        anchor_ids: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        window_starts: Tensor,
        cache: Cache,
    ) -> Step:
        """The block's rows as a step that keeps nothing."""
        num_requests, block_size = anchor_ids.shape[0], self.block_size
        token_ids = anchor_ids.new_full(
            (num_requests, block_size), self.config.dspark_noise_token_id
        )
        token_ids[:, 0] = anchor_ids
        row_positions = (positions[:, None] + self.row_offsets).flatten()
        requests = torch.arange(num_requests, device=positions.device)
        forward = ops.rope_rotation(
            row_positions,
            self.backbone.planner.window_frequencies,
            self.backbone.planner.rotation_dtype,
        )
        rotations = Rotations(forward, forward.inverse())
        query_lens = positions.new_full((num_requests,), block_size)
        batch = StepBatch(
            token_ids=token_ids.flatten(),
            positions=row_positions,
            query_lens=query_lens,
            context_lens=positions + block_size,
            block_tables=state_slots.new_empty((num_requests, 0), dtype=torch.int32),
            state_slots=state_slots,
            ngram_history=positions.new_empty((num_requests, 0)),
            logits_rows=positions.new_empty(0),
            window_starts=window_starts,
            write_floors=torch.zeros_like(positions),
            max_query_len=block_size,
            max_context_len=0,
        )
        return Step(
            batch=batch,
            cache=cache,
            row_request=torch.repeat_interleave(
                requests, block_size, output_size=num_requests * block_size
            ),
            window=self._window(positions, state_slots, window_starts, cache.layout.ring_len),
            entries={},
            window_rotations=rotations,
            compressed_rotations=rotations,
        )

    def _window(
        self, positions: Tensor, state_slots: Tensor, window_starts: Tensor, ring_len: int
    ) -> WindowPlan:
        """Every row of a block sees the same keys: the context before it, then the whole block."""
        num_requests, window = positions.shape[0], self.window_offsets.shape[0]
        context = positions[:, None] + self.window_offsets
        is_valid = context >= window_starts[:, None]
        history_slots = torch.where(
            is_valid, state_slots[:, None] * ring_len + context % ring_len, -1
        )
        in_history = torch.arange(num_requests * window, device=positions.device)
        in_history = torch.where(is_valid, in_history.view(num_requests, window), -1)
        in_block = torch.arange(num_requests * self.block_size, device=positions.device)
        in_block = in_block.view(num_requests, self.block_size) + num_requests * window
        keys = torch.cat([in_history, in_block], dim=1)
        read_slots = keys[:, None].expand(-1, self.block_size, -1).flatten(0, 1)
        return WindowPlan(
            store_slots=None,
            history_slots=history_slots.flatten(),
            read_slots=read_slots,
            is_valid=read_slots >= 0,
        )


class DraftingModel:
    """A backbone that keeps its drafter's context up to date.

    Args:
        backbone: The text model.
        drafter: Its drafter.
    """

    def __init__(self, backbone: Backbone, drafter: Drafter) -> None:
        self.backbone = backbone
        self.drafter = drafter

    @torch.inference_mode()
    def forward(
        self, batch: StepBatch, cache: Cache, taps: dict[str, Tensor] | None = None
    ) -> Tensor:
        """As `Backbone.forward`; also stores the context keys of the rows."""
        step = self.backbone.start(batch, cache, taps)
        step.draft_features = []
        hidden = self.backbone.run(step)
        self.drafter.extend_context(step)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Backbone.logits`."""
        return self.backbone.logits(hidden)
