"""Log-probabilities of given tokens, computed on the device and read a step later."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from di_engine.runner.host_copy import copy_to_host
from di_engine.runner.request import PositionLogprobs
from di_spec import torch as spec_torch

__all__ = ["LogprobTensors", "raw_logprobs"]


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log-probabilities of some rows, on the device or on the host.

    Attributes:
        token_ids: The token that is there, int64 [rows].
        chosen: Its log-probability, float32 [rows].
        top_ids: The most likely tokens, best first, int64 [rows, n].
        top_logprobs: Their log-probabilities, float32 [rows, n].
    """

    token_ids: torch.Tensor
    chosen: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor

    def to_host(self) -> LogprobTensors:
        """Starts copies to the host; see `copy_to_host`."""
        return LogprobTensors(
            copy_to_host(self.token_ids),
            copy_to_host(self.chosen),
            copy_to_host(self.top_ids),
            copy_to_host(self.top_logprobs),
        )

    def entries(self) -> list[PositionLogprobs]:
        """Returns one entry per row. The tensors must be on the host and complete."""
        return [
            PositionLogprobs(*entry)
            for entry in zip(
                self.token_ids.tolist(),
                self.chosen.tolist(),
                self.top_ids.tolist(),
                self.top_logprobs.tolist(),
                strict=True,
            )
        ]

    def entry(self, row: int, num_top: int) -> PositionLogprobs:
        """Returns one row with at most `num_top` alternatives, as `entries` does."""
        return PositionLogprobs(
            int(self.token_ids[row]),
            float(self.chosen[row]),
            self.top_ids[row, :num_top].tolist(),
            self.top_logprobs[row, :num_top].tolist(),
        )


def raw_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    """Log-probabilities before any sampling parameter acts.

    Args:
        logits: Shape (rows, vocab_size), float32 or float64.
        token_ids: One token per row, int64, same device; NaN where it is negative.
        num_top: Alternatives per row.
    """
    chosen = spec_torch.token_logprobs(logits, token_ids)
    num_top = min(num_top, logits.shape[1])
    if num_top:
        top_ids, top_values = spec_torch.top_logprobs(logits, num_top)
    else:
        top_ids, top_values = token_ids.new_empty(len(logits), 0), chosen.new_empty(len(logits), 0)
    return LogprobTensors(token_ids, chosen, top_ids, top_values)
