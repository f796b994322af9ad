"""Edits, ordering and filters on tensors. The reference is `di_spec.sampling.transform`."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_spec.sampling.batch import SamplerBatch, SparseEdits
from di_spec.sampling.transform import MASS_BITS, RowStatus

__all__ = ["Survivors", "apply_edits", "log_softmax", "logits_status", "most_likely", "survivors"]

_GUESSES = (256, 8192)
"""Numbers of candidates to try before a whole row is sorted."""


def logits_status(largest: Tensor) -> Tensor:
    """`RowStatus` codes, uint8 [rows], of the row maxima (NaN wins a maximum)."""
    status = torch.zeros(largest.shape, dtype=torch.uint8, device=largest.device)
    status.masked_fill_(largest.isnan(), RowStatus.NAN)
    status.masked_fill_(largest.isposinf(), RowStatus.INFINITE)
    status.masked_fill_(largest.isneginf(), RowStatus.NOTHING_ALLOWED)
    return status


def apply_edits(logits: Tensor, batch: SamplerBatch, mask_bits: Tensor | None) -> Tensor:
    """Logits after every step before temperature, as a new float64 tensor."""
    device = logits.device
    edited = logits.to(torch.float64, copy=True)
    if batch.is_restricted.any():
        is_banned = to_device(batch.is_restricted, device).unsqueeze(1).repeat(1, edited.shape[1])
        is_banned[_places(batch.allowed, device)] = False
        edited.masked_fill_(is_banned, -torch.inf)
    if len(batch.banned):
        edited[_places(batch.banned, device)] = -torch.inf
    if len(batch.bias):
        edited[_places(batch.bias, device)] += to_device(batch.bias.value, device)
    if len(batch.counts):
        _apply_penalties(edited, batch)
    if len(batch.bad):
        edited[_places(batch.bad, device)] = -torch.inf
    if mask_bits is not None:
        edited.masked_fill_(~_unpack_mask(mask_bits, edited.shape[1]), -torch.inf)
    return edited


def _apply_penalties(edited: Tensor, batch: SamplerBatch) -> None:
    counts, device = batch.counts, edited.device
    places = _places(counts, device)
    value = edited[places]
    factor = to_device(batch.repetition_penalty[counts.row], device)
    value = torch.where(value > 0, value / factor, value * factor)
    value -= to_device(batch.frequency_penalty[counts.row] * counts.value, device)
    value -= to_device(batch.presence_penalty[counts.row] * (counts.value > 0), device)
    edited[places] = value


def _places(edits: SparseEdits, device: torch.device) -> tuple[Tensor, Tensor]:
    return to_device(edits.row, device), to_device(edits.token_id, device)


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A small host array on `device`."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def all_on_host(flags: Tensor) -> bool:
    """Whether all flags of a CPU tensor are set.

    Read as numpy, so that only values that may live on another device are read through torch: a
    debugging mode that forbids those then finds real waits alone.
    """
    return bool(flags.numpy().all())


def _unpack_mask(mask_bits: Tensor, vocab_size: int) -> Tensor:
    shifts = torch.arange(32, dtype=torch.int32, device=mask_bits.device)
    bits = (mask_bits.to(torch.int32).unsqueeze(-1) >> shifts) & 1
    return bits.view(len(mask_bits), -1)[:, :vocab_size].bool()


def masses(relative: Tensor) -> Tensor:
    """`exp` of logits relative to their row's maximum, int64 in units of 2**-44."""
    return (relative.exp() * 2.0**MASS_BITS).round_().to(torch.int64)


def log_of_mass(total: Tensor) -> Tensor:
    """Natural logarithm of sums of masses, float64."""
    return (total.to(torch.float64) * 2.0**-MASS_BITS).log()


def log_softmax(rows: Tensor, largest: Tensor) -> Tensor:
    """Log-probabilities of float64 rows [rows, V] with maxima `largest` [rows]."""
    relative = rows - largest.unsqueeze(1)
    return relative - log_of_mass(masses(relative).sum(1)).unsqueeze(1)


def most_likely(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest entries of each row in descending order, equal ones by ascending id.

    Which of several equal entries at the cut are returned is exact only if `width` is the row's
    whole width; `survivors` and `exact_top` check for a tie across the cut.

    Returns:
        Values [rows, width] and ids, int64 [rows, width].
    """
    if width >= rows.shape[1]:
        values, token_ids = (rows + 0.0).sort(dim=1, descending=True, stable=True)  # -0.0 is +0.0
        return values, token_ids
    _, token_ids = rows.topk(width, dim=1, sorted=False)
    token_ids = token_ids.sort(dim=1).values
    values, order = rows.gather(1, token_ids).sort(dim=1, descending=True, stable=True)
    return values, token_ids.gather(1, order)


def exact_top(rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The `n` largest entries of each row, equal ones by ascending id, exactly."""
    n = min(n, rows.shape[1])
    width = n + 16 if rows.device.type == "cpu" else rows.shape[1]
    values, token_ids = most_likely(rows, width)
    # A guess of less than the whole row is made on a CPU alone.
    if values.shape[1] < rows.shape[1] and not all_on_host(values[:, n - 1] > values[:, -1]):
        values, token_ids = most_likely(rows, rows.shape[1])
    return values[:, :n], token_ids[:, :n]


class Survivors:
    """The tokens that top-k, top-p and min-p leave, most likely first.

    Attributes:
        token_ids: int64 [rows, width].
        relative: (logit - largest) / temperature, float64 [rows, width]; -inf past the last
            survivor.
    """

    __slots__ = ("relative", "token_ids")

    def __init__(self, token_ids: Tensor, relative: Tensor) -> None:
        self.token_ids = token_ids
        self.relative = relative


def survivors(rows: Tensor, largest: Tensor, batch: SamplerBatch) -> Survivors:
    """Filters rows after their edits.

    Args:
        rows: Edited logits, [rows, V], float32 or float64.
        largest: Row maxima, [rows], finite.
        batch: Parameters of these rows; temperatures above 0.
    """
    largest = largest.to(torch.float64).unsqueeze(1)
    temperature = to_device(batch.temperature, rows.device).unsqueeze(1)
    total = None
    if (batch.top_p < 1).any():
        total = masses((rows - largest) / temperature).sum(1, keepdim=True)
    for width in _widths(batch, rows):
        values, token_ids = most_likely(rows, width)
        relative = (values - largest) / temperature
        num_kept = _num_kept(relative, total, batch)
        if width >= rows.shape[1] or _is_complete(values, num_kept):
            break
    places = torch.arange(relative.shape[1], device=rows.device)
    return Survivors(token_ids, relative.masked_fill(places >= num_kept.unsqueeze(1), -torch.inf))


def _widths(batch: SamplerBatch, rows: Tensor) -> list[int]:
    """Numbers of candidates to try in turn. Only the CPU may wait for the verdict of a guess."""
    vocab_size = rows.shape[1]
    if rows.device.type != "cpu":
        return [vocab_size]
    largest_k = int(batch.top_k.max())
    guesses = [*_GUESSES] if largest_k >= vocab_size else [largest_k + 32]
    return [*(guess for guess in guesses if guess < vocab_size // 2), vocab_size]


def _num_kept(relative: Tensor, total: Tensor | None, batch: SamplerBatch) -> Tensor:
    """Survivors of each row among the candidates, int64 [rows]; at least 1."""
    device = relative.device
    num_kept = to_device(batch.top_k, device).clamp(max=relative.shape[1])
    if total is not None:
        mass = masses(relative)
        before = mass.cumsum(1) - mass
        top_p = np.where(batch.top_p < 1, batch.top_p, np.inf)
        is_kept = before.double() / total.double() <= to_device(top_p, device).unsqueeze(1)
        num_kept = num_kept.minimum(is_kept.sum(1))
    if (batch.min_p > 0).any():
        floors = [math.log(p) if p > 0 else -math.inf for p in batch.min_p.tolist()]
        floor = to_device(np.array(floors), device).unsqueeze(1)
        num_kept = num_kept.minimum((relative >= floor).sum(1))
    return num_kept


def _is_complete(values: Tensor, num_kept: Tensor) -> bool:
    """Whether no row could have survivors, or ties with its last one, beyond the candidates."""
    last, smallest = values.gather(1, (num_kept - 1).unsqueeze(1)).squeeze(1), values[:, -1]
    is_inside = (num_kept < values.shape[1]) & (last > smallest)
    return all_on_host(is_inside | smallest.isneginf())
