"""A model without weights: it counts."""

from __future__ import annotations

from collections.abc import Collection

import torch

from di_engine.model.batch import StepBatch

__all__ = ["CountingModel"]


class CountingModel:
    """Finds token `t + 1` most likely after token `t`, and `t + 1 + d` less likely by `d`.

    It looks at the newest token only, so every split of a prompt into chunks and every batch give
    the same logits.

    Attributes:
        batches: The batches it was run on, oldest first.
        fail_on_step: Number of the forward pass, from 0, that raises; None for never.
    """

    def __init__(self, vocab_size: int, *, nan_after: Collection[int] = ()) -> None:
        """Makes a model of `vocab_size` tokens.

        Args:
            vocab_size: Width of the logits.
            nan_after: Tokens after which every logit is NaN.
        """
        self._vocab_size = vocab_size
        self._nan_after = torch.tensor(sorted(nan_after), dtype=torch.float32)
        self.batches: list[StepBatch] = []
        self.fail_on_step: int | None = None

    def forward(self, batch: StepBatch, cache: object) -> torch.Tensor:
        """Hidden states that hold the token, shape (num_tokens, 1); the cache is not touched."""
        self.batches.append(batch)
        if self.fail_on_step == len(self.batches) - 1:
            raise RuntimeError("told to fail")
        return batch.token_ids.to(torch.float32).unsqueeze(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Minus the distance from the next token, shape (rows, vocab_size), float32."""
        candidates = torch.arange(self._vocab_size, dtype=torch.float32)
        logits = -((candidates - hidden - 1) % self._vocab_size)
        is_bad = torch.isin(hidden[:, 0], self._nan_after)
        logits = logits.masked_fill(is_bad.unsqueeze(1), torch.nan)
        return logits
