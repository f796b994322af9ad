"""The split of a budget on the device, from confidences that the host has not seen."""

import torch
from torch import Tensor

__all__ = ["split_budget", "survival"]


def survival(confidence: Tensor, num_drafts: Tensor) -> Tensor:
    """Running product of confidences, 0 past the last draft; `di_spec.Proposal.survival`.

    Args:
        confidence: [requests, drafts].
        num_drafts: int64 [requests], same device.

    Returns:
        float64 [requests, drafts].
    """
    places = torch.arange(confidence.shape[1], device=confidence.device)
    kept = confidence.double().masked_fill(places >= num_drafts.unsqueeze(1), 0.0)
    return kept.cumprod(1)


def split_budget(survival: Tensor, num_rows: int | Tensor) -> Tensor:
    """Rows of each request, int64 [requests]: the result of `di_spec.split_budget`, on tensors.

    Runs without waiting for the device; `num_rows` may be a tensor there.

    Args:
        survival: float [requests, drafts], not increasing along a row.
        num_rows: Total to split.
    """
    num_requests, width = survival.shape
    order = survival.flatten().sort(descending=True, stable=True).indices
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    is_admitted = rank.view(num_requests, width) < num_rows - num_requests
    return 1 + is_admitted.sum(1)
