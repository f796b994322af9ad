"""An exported checkpoint as the engine computes it: logits, and bits per byte of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from di_engine.cache import BLOCK_TOKENS, Cache
from di_engine.checkpoint import open_checkpoint
from di_engine.config import ModelConfig
from di_engine.model import Backbone, Numerics, RequestRows, StepBatch
from di_engine.model.token_map import build_token_map
from tiny import layers
from tiny.backbone import Backbone as TrainingBackbone
from tiny.backbone import Mode
from tiny.measure import NextLosses, bits_per_byte
from tiny.stages import Run
from tiny.state import load_state
from tiny.weights import compute_weights

_TOKENS_PER_DOCUMENT = 192
_CONTEXT = 64


class EngineModel:
    """The engine's backbone on whole sequences.

    Args:
        directory: Checkpoint.
        numerics: Arithmetic and cache storage.
        max_length: Longest sequence.
    """

    def __init__(self, directory: Path, numerics: Numerics, max_length: int) -> None:
        self.config = ModelConfig.from_directory(directory)
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        token_map = build_token_map(tokenizer, self.config.vocab_size)
        with open_checkpoint(directory, self.config) as source:
            self.backbone = Backbone.load(self.config, source, numerics, token_map=token_map)
        self.num_blocks = -(-max_length // BLOCK_TOKENS)
        self.cache = Cache.allocate(
            self.config,
            numerics,
            num_blocks=self.num_blocks,
            num_state_slots=1,
            with_drafter=True,
        )

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], taps: dict[str, Tensor] | None = None) -> Tensor:
        """Logits after every token of one sequence, float32 [N, vocab_size]."""
        rows = RequestRows(list(tokens), 0, list(range(self.num_blocks)), 0, logits="all")
        batch = StepBatch.build([rows], ngram_size=self.config.engram_max_ngram_size)
        return self.backbone.logits(self.backbone.forward(batch, self.cache, taps)).float()


def measure_export(run: Run, checkpoint: Path, every: int) -> dict[str, Any]:
    """Bits per byte of a held-out sample, before export and in the engine's native arithmetic.

    Args:
        run: Settings; the stage `backbone` has been run.
        checkpoint: The exported directory.
        every: One document in so many is scored, its first 192 tokens.
    """
    engine = EngineModel(checkpoint, Numerics("native"), _TOKENS_PER_DOCUMENT)

    def in_engine(tokens: Tensor) -> Tensor:
        rows = [layers.token_losses(engine.logits(row.tolist())[:-1], row[1:]) for row in tokens]
        return torch.stack(rows)

    parameters, _ = load_state(run.out, "backbone", torch.device("cpu"))
    biases = parameters.pop("router_biases")
    model = TrainingBackbone(run.sizes(), run.token_map(), torch.device("cpu"))
    w = compute_weights(parameters, torch.float32, quantised=False)
    mode = Mode(torch.float32, sparse=True)

    @torch.no_grad()
    def before(tokens: Tensor) -> Tensor:
        hidden, _ = model(w, biases, tokens, mode)
        return layers.token_losses(hidden[:, :-1] @ w["head.weight"].T, tokens[:, 1:])

    def score(losses_of: NextLosses) -> dict[str, float]:
        return bits_per_byte(
            losses_of,
            run.stream("held_out").every(every),
            length=_TOKENS_PER_DOCUMENT,
            context=_CONTEXT,
            batch=8,
            device=torch.device("cpu"),
            limit=_TOKENS_PER_DOCUMENT,
        )

    return {"bits_per_byte_sample": score(before), "bits_per_byte_engine": score(in_engine)}
