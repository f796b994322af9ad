"""Verification on tensors. Rules and randomness are those of `di_spec.verify`, which explains them.

Nothing waits for the device: the position of the last token of each request depends on how many
drafts were accepted, and the noise takes it from there.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_spec.drafting import Proposal, QKind
from di_spec.sampling.batch import SamplerBatch
from di_spec.sampling.philox import Stream, uniform53
from di_spec.sampling.transform import RowStatus
from di_spec.torch.filters import to_device
from di_spec.torch.sample import Samples, gumbel_argmax, process, sample
from di_spec.verify import RESIDUAL_FLOOR, VerifyMode, check_drafts

__all__ = ["Verified", "accept_samples", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a step; fields as in `di_spec.Verified`, tensors on the logits' device.

    `token_ids` is [requests, most rows of a request]. `num_accepted` and `num_emitted` are int64
    [requests], `status` is uint8 [requests].
    """

    token_ids: Tensor
    num_accepted: Tensor
    num_emitted: Tensor
    status: Tensor


def verify(
    target_logits: Tensor,
    drafts: Proposal,
    params: SamplerBatch,
    *,
    mode: VerifyMode = "coupled",
    mask_bits: Tensor | None = None,
    q_logprobs: Tensor | None = None,
    q_token_ids: Tensor | None = None,
) -> Verified:
    """Verifies the drafts of a batch of requests; see `di_spec.verify`.

    Args:
        target_logits: Logits of all rows, [rows, V], any device; not modified.
        drafts: The admitted drafts, on the host.
        params: Parameters of the rows, built from requests with these drafts, on the host.
        mode: Rule of acceptance.
        mask_bits: Grammar masks of the rows, int32 [rows, ceil(V / 32)], same device.
        q_logprobs: `Proposal.q_logprobs` where it lives on the device, [requests, length, width];
            for `ratio` and `block`.
        q_token_ids: `Proposal.q_token_ids` likewise.

    Raises:
        InvalidProposalError: If drafts and rows contradict each other.
        InvalidSamplingError: If shapes of logits, parameters and masks do.
        ValueError: If `mode` is unknown.
    """
    check_drafts(drafts, params)
    if mode in ("coupled", "greedy"):
        drawn = (
            replace(params, temperature=np.zeros(params.num_rows)) if mode == "greedy" else params
        )
        return accept_samples(sample(target_logits, drawn, mask_bits), params)
    if mode not in ("ratio", "block"):
        raise ValueError(f"`mode` must be coupled, greedy, ratio or block: got {mode!r}")
    rows = _Rows.of(params, target_logits.device)
    processed = process(target_logits, params, mask_bits)
    q = _DraftLaw(drafts, params.vocab_size, target_logits.device, q_logprobs, q_token_ids)
    rule = _accepted_by_ratio if mode == "ratio" else _accepted_by_block
    num_usable = rows.num_usable(processed.status)
    accepted, floor_scale = rule(processed.log_probs, q, rows, num_usable, params)
    lossless = _finish(processed.log_probs, q, rows, accepted, floor_scale, num_usable, params)
    result = _pack(rows, accepted, lossless, processed.status)
    if not params.is_greedy.any():
        return result
    greedy = replace(params, temperature=np.zeros(params.num_rows))
    samples = sample(target_logits, greedy, mask_bits)
    equal = _accept_equal(samples.token_ids, samples.status, rows)
    is_greedy = to_device(params.is_greedy[params.row_offsets[:-1]], target_logits.device)
    return Verified(
        torch.where(is_greedy.unsqueeze(1), equal.token_ids, result.token_ids),
        torch.where(is_greedy, equal.num_accepted, result.num_accepted),
        torch.where(is_greedy, equal.num_emitted, result.num_emitted),
        torch.where(is_greedy, equal.status, result.status),
    )


def accept_samples(samples: Samples, params: SamplerBatch) -> Verified:
    """Coupled verification of rows that were already sampled: drafts are accepted while equal.

    Does not wait for the device.

    Args:
        samples: What `sample` drew for the rows of `params`.
        params: Parameters of the rows with their drafts, on the host.
    """
    rows = _Rows.of(params, samples.token_ids.device)
    return _accept_equal(samples.token_ids, samples.status, rows)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the rows of each request are.

    Attributes:
        index: Row of request r at place j, [requests, width]; the last row repeated beyond.
        drafts: Draft after that row, [requests, width]; -1 where there is none.
        num_drafts: [requests].
        first: Row of each request on the host, int64 [requests].
    """

    index: Tensor
    drafts: Tensor
    num_drafts: Tensor
    first: NDArray[np.int64]

    @classmethod
    def of(cls, params: SamplerBatch, device: torch.device) -> "_Rows":
        num_drafts = np.diff(params.row_offsets) - 1
        first = params.row_offsets[:-1]
        places = np.arange(int(num_drafts.max(initial=0)) + 1)
        index = first[:, None] + np.minimum(places, num_drafts[:, None])
        drafts = params.draft_token_ids[index]
        return cls(
            to_device(index, device),
            to_device(drafts, device),
            to_device(num_drafts, device),
            first,
        )

    def num_usable(self, status: Tensor) -> Tensor:
        """Drafts before the first row that cannot be drawn from, [requests]."""
        is_good = (status[self.index] == RowStatus.OK).long().cumprod(1).sum(1)
        return is_good.minimum(self.num_drafts)


class _DraftLaw:
    """Distributions that drafts were drawn from, one block offset at a time."""

    def __init__(
        self,
        drafts: Proposal,
        vocab_size: int,
        device: torch.device,
        logprobs: Tensor | None,
        token_ids: Tensor | None,
    ) -> None:
        self.kind = drafts.q_kind
        self.vocab_size = vocab_size
        self.drafts = to_device(drafts.token_ids, device)
        if logprobs is None and drafts.q_logprobs is not None:
            logprobs = to_device(drafts.q_logprobs, device)
        if token_ids is None and drafts.q_token_ids is not None:
            token_ids = to_device(drafts.q_token_ids, device)
        self.logprobs, self.token_ids = logprobs, token_ids

    def dense(self, place: Tensor) -> Tensor:
        """Distribution of each request's draft at `place` [requests]: float64 [requests, V]."""
        requests = torch.arange(len(place), device=place.device)
        place = place.clamp(max=max(0, self.drafts.shape[1] - 1))
        dense = torch.zeros((len(place), self.vocab_size), dtype=torch.float64, device=place.device)
        if self.drafts.shape[1] == 0:
            return dense
        if self.kind is QKind.ONE_HOT:
            draft = self.drafts[requests, place].unsqueeze(1)
            is_known = (draft >= 0) & (draft < self.vocab_size)
            return dense.scatter_add(
                1, draft.clamp(0, self.vocab_size - 1), is_known.to(torch.float64)
            )
        assert self.logprobs is not None, "see `Proposal.check`"
        weights = self.logprobs[requests, place].to(torch.float64).exp()
        if self.kind is QKind.DENSE:
            width = min(self.vocab_size, weights.shape[1])
            dense[:, :width] = weights[:, :width]
            return dense
        assert self.token_ids is not None, "see `Proposal.check`"
        columns = self.token_ids[requests, place].long()
        is_known = (columns >= 0) & (columns < self.vocab_size)
        weights = weights.masked_fill(~is_known, 0.0)
        return dense.scatter_add(1, columns.clamp(0, self.vocab_size - 1), weights)


def _accept_equal(target_ids: Tensor, status: Tensor, rows: _Rows) -> Verified:
    ids, codes = target_ids[rows.index], status[rows.index]
    is_draft = torch.arange(ids.shape[1], device=ids.device) < rows.num_drafts.unsqueeze(1)
    is_equal = (ids == rows.drafts) & is_draft & (codes == RowStatus.OK)
    accepted = is_equal.long().cumprod(1).sum(1)
    final = ids.gather(1, accepted.unsqueeze(1)).squeeze(1)
    return _pack(rows, accepted, final, status)


def _pack(rows: _Rows, accepted: Tensor, final: Tensor, status: Tensor) -> Verified:
    """Accepted drafts followed by the final token, where its row is good."""
    codes = status[rows.index].gather(1, accepted.unsqueeze(1)).squeeze(1)
    num_emitted = accepted + (codes == RowStatus.OK)
    places = torch.arange(rows.index.shape[1], device=accepted.device)
    token_ids = torch.where(places == accepted.unsqueeze(1), final.unsqueeze(1), rows.drafts)
    token_ids = token_ids.masked_fill(places >= num_emitted.unsqueeze(1), -1)
    return Verified(token_ids, accepted, num_emitted, codes)


def _uniforms(rows: _Rows, params: SamplerBatch) -> Tensor:
    """Accept tests, float64 [requests, width]."""
    offset = np.arange(rows.index.shape[1], dtype=np.uint64)
    seed, position = params.seed[rows.first], params.position[rows.first]
    values = uniform53(seed[:, None], Stream.ACCEPT, position[:, None] + offset, offset)
    return to_device(values, rows.index.device)


def _of_draft(distribution: Tensor, drafts: Tensor) -> Tensor:
    """Probability of one draft per request; 0 for ids outside the vocabulary."""
    is_known = (drafts >= 0) & (drafts < distribution.shape[1])
    chosen = drafts.clamp(0, distribution.shape[1] - 1).unsqueeze(1)
    return distribution.gather(1, chosen).squeeze(1) * is_known


def _accepted_by_ratio(
    log_p: Tensor, q: _DraftLaw, rows: _Rows, num_usable: Tensor, params: SamplerBatch
) -> tuple[Tensor, Tensor]:
    """Numbers of accepted drafts [requests], and the factor of `p` in the residual (1)."""
    uniform = _uniforms(rows, params)
    accepted = torch.zeros_like(num_usable)
    is_alive = num_usable > 0
    for j in range(rows.index.shape[1] - 1):
        p, q_row = log_p[rows.index[:, j]].exp(), q.dense(torch.full_like(num_usable, j))
        p_draft, q_draft = _of_draft(p, rows.drafts[:, j]), _of_draft(q_row, rows.drafts[:, j])
        is_rounding = (p - q_row).clamp(min=0).sum(1) < RESIDUAL_FLOOR
        is_accepted = (uniform[:, j] * q_draft < p_draft) | (is_rounding & (p_draft > 0))
        is_alive = is_alive & (j < num_usable) & is_accepted
        accepted += is_alive
    return accepted, torch.ones_like(accepted, dtype=torch.float64)


def _accepted_by_block(
    log_p: Tensor, q: _DraftLaw, rows: _Rows, num_usable: Tensor, params: SamplerBatch
) -> tuple[Tensor, Tensor]:
    """Numbers of accepted drafts [requests], and the joint ratio that scales `p` after them."""
    uniform = _uniforms(rows, params)
    accepted = torch.zeros_like(num_usable)
    joint = torch.ones_like(num_usable, dtype=torch.float64)
    scale = joint.clone()
    for i in range(1, rows.index.shape[1]):
        draft, place = rows.drafts[:, i - 1], torch.full_like(num_usable, i - 1)
        q_draft = _of_draft(q.dense(place), draft)
        p_draft = _of_draft(log_p[rows.index[:, i - 1]].exp(), draft)
        ratio = torch.where(q_draft > 0, p_draft / q_draft, 0.0)
        joint = (joint * ratio).clamp(max=1.0)
        p_next, q_next = log_p[rows.index[:, i]].exp(), q.dense(place + 1)
        excess = (joint.unsqueeze(1) * p_next - q_next).clamp(min=0).sum(1)
        total = excess + 1 - joint
        chance = torch.where(total > 0, excess / total, 1.0)
        chance = torch.where(num_usable == i, joint, chance)
        is_accepted = (uniform[:, i - 1] < chance) & (i <= num_usable)
        accepted = torch.where(is_accepted, i, accepted)
        scale = torch.where(is_accepted, joint, scale)
    return accepted, scale


def _finish(
    log_p: Tensor,
    q: _DraftLaw,
    rows: _Rows,
    accepted: Tensor,
    scale: Tensor,
    num_usable: Tensor,
    params: SamplerBatch,
) -> Tensor:
    """The token after the accepted drafts of each request: residual, or fresh from the target."""
    log_weights = log_p[rows.index.gather(1, accepted.unsqueeze(1)).squeeze(1)]
    residual = (scale.unsqueeze(1) * log_weights.exp() - q.dense(accepted)).clamp(min=0)
    is_residual = (accepted < num_usable) & (residual.sum(1) >= RESIDUAL_FLOOR)
    place = accepted + to_device(params.position[rows.first].view(np.int64), accepted.device)
    seed = params.seed[rows.first]
    fresh = gumbel_argmax(_drawable(log_weights), seed, Stream.TARGET, place)
    rest = gumbel_argmax(_drawable(residual.log()), seed, Stream.RESIDUAL, place, accepted)
    return torch.where(is_residual, rest, fresh)


def _drawable(log_weights: Tensor) -> Tensor:
    """The weights, or any others in rows that nobody will draw from."""
    return log_weights.masked_fill(log_weights.isneginf().all(1, keepdim=True), 0.0)
