"""The drafter's golden vectors, for `check_model_vectors.py`.

`pN.dspark.*` holds, behind a prompt, some decode steps: the token that is fed, the token that the
backbone finds behind it, and the block that the drafter makes of that one. Prompt and fed tokens
are run through our backbone here, so the drafter's context is checked with its drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from di_engine.cache import BLOCK_TOKENS, Cache
from di_engine.checkpoint import open_checkpoint
from di_engine.model import Backbone, RequestRows, StepBatch
from di_engine.model.drafter import Drafter, DraftingModel

__all__ = ["DrafterErrors", "drafter_errors", "load_drafter"]


@dataclass(frozen=True, slots=True)
class DrafterErrors:
    """How far the drafts of a prompt are from the expected ones.

    Attributes:
        logits: Largest absolute error of a logit or a confidence.
        num_wrong_ids: Draft ids and backbone ids that differ.
    """

    logits: float
    num_wrong_ids: int


def load_drafter(checkpoint: Path, backbone: Backbone) -> Drafter:
    """The drafter of a checkpoint directory."""
    with open_checkpoint(checkpoint, backbone.config, parts=("text", "drafter")) as source:
        return Drafter.load(backbone.config, source, backbone)


def drafter_errors(
    backbone: Backbone, drafter: Drafter, expected: dict[str, Tensor], step_len: int
) -> DrafterErrors:
    """Runs prompt, decode steps and draft blocks, and compares.

    Args:
        backbone: The text model.
        drafter: Its drafter.
        expected: A `pN.dspark.*` file.
        step_len: Prompt tokens of one step.
    """
    request = _Request(backbone, drafter, expected["input_ids"].tolist())
    request.extend_prompt(step_len)
    logits_error, num_wrong = 0.0, 0
    for number, token_id in enumerate(expected["step_input"].tolist()):
        next_id = request.decode(token_id)
        want_ids = expected["draft_ids"][number].tolist()
        num_wrong += next_id != want_ids[0]
        token_ids, logits, confidence = request.draft(want_ids[0])
        num_wrong += sum(a != b for a, b in zip(token_ids, want_ids[1:], strict=True))
        for got, want in (
            (logits, expected["draft_logits"][number]),
            (confidence, expected["confidence"][number].flatten()),
        ):
            error = (got.double() - want.double()).abs().max().item()
            logits_error = max(logits_error, error if error == error else float("inf"))
    return DrafterErrors(logits_error, num_wrong)


class _Request:
    """One request with caches of its own."""

    def __init__(self, backbone: Backbone, drafter: Drafter, prompt: list[int]) -> None:
        self.model = DraftingModel(backbone, drafter)
        self.token_ids = prompt
        self.num_computed = 0
        self.num_blocks = -(-(len(prompt) + 64) // BLOCK_TOKENS)
        self.cache = Cache.allocate(
            backbone.config,
            backbone.numerics,
            num_blocks=self.num_blocks,
            num_state_slots=1,
            with_drafter=True,
        )

    def extend_prompt(self, step_len: int) -> None:
        """Runs the prompt in steps of `step_len`."""
        while self.num_computed < len(self.token_ids):
            self._run(min(self.num_computed + step_len, len(self.token_ids)))

    def decode(self, token_id: int) -> int:
        """Feeds one token; returns the most likely one behind it."""
        self.token_ids.append(token_id)
        return int(self._run(len(self.token_ids))[-1].argmax())

    def draft(self, anchor_id: int) -> tuple[list[int], Tensor, Tensor]:
        """Greedy drafts behind a token, their logits and confidence logits."""
        drafter = self.model.drafter
        token_ids = torch.tensor([anchor_id])
        zero, position = torch.tensor([0]), torch.tensor([self.num_computed])
        block = drafter.run(token_ids, position, zero, zero, self.cache)
        drafted, rows, confidence = [], [], []
        for row in range(drafter.block_size):
            logits, confidence_logit = drafter.correct(block, row, token_ids)
            token_ids = logits.argmax(-1)
            drafted.append(int(token_ids))
            rows.append(logits[0])
            confidence.append(confidence_logit[0])
        return drafted, torch.stack(rows), torch.stack(confidence)

    def _run(self, end: int) -> Tensor:
        start = self.num_computed
        rows = RequestRows(
            token_ids=self.token_ids[start:end],
            num_computed=start,
            block_table=range(self.num_blocks),
            state_slot=0,
            history=self.token_ids[:start],
            logits="all",
        )
        ngram_size = self.model.backbone.config.engram_max_ngram_size
        batch = StepBatch.build([rows], ngram_size=ngram_size)
        logits = self.model.logits(self.model.forward(batch, self.cache))
        self.num_computed = end
        return logits
