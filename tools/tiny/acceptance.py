"""How many drafts the target accepts, and how well confidences foretell it.

Contexts are held-out documents. For each the target gives the next token, the drafter a block
after it, and one more forward pass of the target decides how much of the block stands. Confidence
temperatures are fitted left to right, each to the calibration error of the product up to its
position (sequential temperature scaling of the DSpark paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from tiny.backbone import Backbone, Mode
from tiny.drafter import Drafter

_BINS = 15
_GRID = np.geomspace(0.1, 10.0, 41)
_SMALLEST = 1e-8


@dataclass(frozen=True, slots=True)
class Trials:
    """Drafted blocks and their fate, one row per context.

    Attributes:
        accepted: Drafts accepted before the first rejection, 0 to R, shape [T].
        confidence: Confidence logits of all R positions, shape [T, R].
        chance: Probability that a position is accepted given the ones before, shape [T, R].
    """

    accepted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    chance: NDArray[np.float64]

    @property
    def mean_length(self) -> float:
        """Tokens per step, the target's own included."""
        return 1.0 + float(self.accepted.mean())

    @property
    def by_position(self) -> list[float]:
        """Share of the blocks that are accepted up to each position."""
        rows = self.confidence.shape[1]
        return [float((self.accepted >= count).mean()) for count in range(1, rows + 1)]

    @property
    def conditional(self) -> list[float]:
        """Share of the blocks accepted at each position, of those that got so far."""
        reached = [1.0, *self.by_position]
        pairs = zip(reached[1:], reached, strict=False)
        return [after / before if before else 0.0 for after, before in pairs]

    @staticmethod
    def joined(parts: list[Trials]) -> Trials:
        """All rows of several trials."""
        return Trials(
            np.concatenate([part.accepted for part in parts]),
            np.concatenate([part.confidence for part in parts]),
            np.concatenate([part.chance for part in parts]),
        )


@torch.no_grad()
def try_drafts(
    backbone: Backbone,
    drafter: Drafter,
    w: dict[str, Tensor],
    biases: tuple[Tensor, Tensor],
    contexts: Tensor,
    mode: Mode,
    *,
    greedy: bool,
    coupled: bool = False,
) -> Trials:
    """Drafts once after each context and verifies.

    Args:
        backbone: The target.
        drafter: The drafter.
        w: Weights of both.
        biases: Router biases of both.
        contexts: Int64 [B, N], N a multiple of 32.
        mode: How to compute.
        greedy: Largest logits instead of samples at temperature 1.
        coupled: Target and drafter sample with the same noise, and a draft stands where they agree;
            otherwise it stands with probability min(1, p / q).
    """
    batch, length = contexts.shape
    rows = drafter.sizes.dspark_block_size
    device = contexts.device
    vocab = w["head.weight"].shape[0]
    noise = -torch.log(-torch.log(torch.rand(batch, rows + 1, vocab, device=device)))
    hidden, trace = backbone(w, biases[0], contexts, mode)
    anchor = _pick(linear(hidden[:, -1], w["head.weight"]).float(), None if greedy else noise[:, 0])
    known = torch.cat((contexts, anchor[:, None], contexts.new_zeros(batch, 31)), dim=1)
    anchors = torch.full((batch, 1), length, device=device)
    features = torch.cat(trace.features, dim=-1)
    rotary = backbone.rotary(length + 32)
    draft, _ = drafter(w, biases[1], features, known, anchors, rotary, mode)
    draft_noise = noise[:, 1:]
    if not coupled:
        draft_noise = -torch.log(-torch.log(torch.rand_like(draft_noise)))
    entering, proposals, confidences = anchor[:, None, None], [], []
    for row in range(rows):
        part = type(draft)(draft.hidden[:, :, row : row + 1], draft.logits[:, :, row : row + 1])
        logits, confidence = drafter.corrected(w, part, entering)
        chosen = _pick(logits[:, 0, 0], None if greedy else draft_noise[:, row])
        known[:, length + 1 + row] = chosen
        proposals.append(logits[:, 0, 0])
        confidences.append(confidence[:, 0, 0])
        entering = chosen[:, None, None]
    hidden, _ = backbone(w, biases[0], known, mode)
    target = linear(hidden[:, length : length + rows], w["head.weight"]).float()
    drafted = known[:, length + 1 : length + 1 + rows]
    p, q = torch.softmax(target, -1), torch.softmax(torch.stack(proposals, 1), -1)
    if greedy:
        is_accepted = target.argmax(-1) == drafted
        chance = is_accepted.double()
    else:
        chance = torch.minimum(p, q).sum(-1).double()
        if coupled:
            is_accepted = (target + noise[:, 1:]).argmax(-1) == drafted
        else:
            ratio = (p / q).gather(-1, drafted.unsqueeze(-1)).squeeze(-1)
            is_accepted = torch.rand_like(ratio) < ratio
    accepted = is_accepted.long().cumprod(1).sum(1)
    confidence = torch.stack(confidences, 1).double()
    return Trials(accepted.cpu().numpy(), confidence.cpu().numpy(), chance.cpu().numpy())


def _pick(logits: Tensor, noise: Tensor | None) -> Tensor:
    return (logits if noise is None else logits + noise).argmax(-1)


def survival(confidence: NDArray[np.float64], temperatures: list[float]) -> NDArray[np.float64]:
    """Probability that the prefix up to each position is accepted, shape of `confidence`."""
    scaled = np.clip(confidence / np.array(temperatures), -60, 60)
    return np.cumprod(1 / (1 + np.exp(-scaled)), axis=1)


def calibration_error(predicted: NDArray[np.float64], happened: NDArray[np.bool_]) -> float:
    """Expected calibration error over 15 bins of equal width."""
    bins = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for number in range(_BINS):
        inside = bins == number
        if inside.any():
            gap = abs(predicted[inside].mean() - happened[inside].mean())
            error += float(gap * inside.mean())
    return error


def fit_temperatures(trials: Trials) -> list[float]:
    """One temperature per position, left to right; of equal errors the lowest wins."""
    rows = trials.confidence.shape[1]
    fitted: list[float] = []
    for row in range(rows):
        happened = trials.accepted > row
        errors = []
        for temperature in _GRID:
            product = survival(trials.confidence[:, : row + 1], [*fitted, float(temperature)])
            clamped = np.clip(product[:, -1], _SMALLEST, 1 - _SMALLEST)
            errors.append(calibration_error(clamped, happened))
        fitted.append(float(_GRID[int(np.argmin(errors))]))
    return fitted


def calibration_of(trials: Trials) -> dict[str, Any]:
    """Temperatures fitted on one half of the trials, errors by position on the other."""
    first = Trials(trials.accepted[::2], trials.confidence[::2], trials.chance[::2])
    second = Trials(trials.accepted[1::2], trials.confidence[1::2], trials.chance[1::2])
    temperatures = fit_temperatures(first)
    rows = trials.confidence.shape[1]

    def errors(values: list[float]) -> list[float]:
        product = survival(second.confidence, values)
        return [
            round(calibration_error(product[:, row], second.accepted > row), 4)
            for row in range(rows)
        ]

    return {
        "temperatures": [round(value, 4) for value in temperatures],
        "error_before": errors([1.0] * rows),
        "error_after": errors(temperatures),
        "trials": len(trials.accepted),
    }
